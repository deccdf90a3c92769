"""A job in its folder: created, done unit by unit by whoever comes, and finished by one.

    JOB/order.json      what to make; there from when the job can be worked on
    JOB/parts/...       the result's files, of their whole size from the start, without headers until the end
    JOB/done/00012.json a mark for each unit that is done
    JOB/lease           locked by whoever runs or finishes the job

Any unit may be done again, by two at once, on another kind of machine: the bytes are the same. A kill leaves the
destination as it was and costs the units that were under way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ltx2c.api import check_destination, lay_out_whole
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.report import FuseReport, outline
from ltx2c.engines.units import Unit, UnitFuser
from ltx2c.engines.writing import write_beside
from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination
from ltx2c.files.folder import Folder
from ltx2c.files.layout import OutputLayout
from ltx2c.files.leftovers import leftovers
from ltx2c.files.positional import PositionalFile
from ltx2c.files.staging import publish, stage
from ltx2c.jobs.marks import Mark, Written, write_durably
from ltx2c.jobs.order import Order, headers_digest
from ltx2c.plan import Plan
from ltx2c.plan.opened import OpenedPlan, reopened
from ltx2c.progress import OnProgress, Tracker
from ltx2c.threads import resolve_threads

# Enough that a unit's own costs do not show, little enough that a kill loses seconds.
UNIT_BYTES = 512 << 20

# What a job puts into its folder; the order, without which it is none, goes last.
_ENTRIES = ("parts", "done", "lease", "order.json")


@dataclass(frozen=True)
class JobStatus:
    """How far a job has come.

    Attributes:
        job: its folder.
        out: where the result will go.
        units: how many there are.
        missing: the numbers of those that are not done.
        published: whether the result is in place.
    """

    job: Path
    out: Path
    units: int
    missing: tuple[int, ...]
    published: bool

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return {**vars(self), "job": str(self.job), "out": str(self.out)}


class Job:
    """A job that was created.

    Attributes:
        path: its folder.
        order: what it is to make.
    """

    def __init__(self, path: Path, order: Order) -> None:
        self.path = path
        self.order = order
        self._parts = path / "parts"

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        plan: Plan,
        out: str | os.PathLike[str],
        *,
        units: int | None = None,
        force: bool = False,
        allow_nonfinite: bool = False,
        max_shard_bytes: int | None = None,
    ) -> Job:
        """Make the folder of a job, with room for the result in it.

        Args:
            path: the folder, new, on the file system of ``out``.
            plan: from ``plan_fuse``.
            units: about how many to cut it into; by default one for 512 MB.
            out, force, allow_nonfinite, max_shard_bytes: as for ``fuse_checkpoint``.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-exists``, ``job-elsewhere``; as ``fuse_checkpoint`` before a weight is read.
        """
        folder = Path(path).absolute()
        with reopened(plan) as opened:
            layout, _ = lay_out_whole(opened, out, max_shard_bytes)
            destination = check_destination(opened, out, layout, force=force)
            count = max(1, layout.size // UNIT_BYTES) if units is None else units
            if count < 1:
                raise RefusedError(f"a job has 1 unit or more, not {count}", code="bad-units")
            cut = tuple(UnitFuser(opened, layout, 1).cut(count))
            order = Order(plan, destination.path, force, allow_nonfinite, max_shard_bytes, cut, headers_digest(layout))
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise RefusedError(
                f"{printable(folder)}: it exists; a job has a new folder of its own", code="job-exists"
            ) from None
        job = cls(folder, order)
        try:
            job._make_parts(layout, destination)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        write_durably(folder / "order.json", order.to_json())
        return job

    def _make_parts(self, layout: OutputLayout, destination: Destination) -> None:
        self._parts.mkdir()
        (self.path / "done").mkdir()
        for file in layout.files:
            part = self._parts / file.name
            part.parent.mkdir(parents=True, exist_ok=True)
            PositionalFile.create(part, file.size)
        with stage(destination) as staged:  # whether it can be put in place in the end
            first = layout.files[0].name
            try:
                staged.adopt(first, self._parts / first)
            except OSError as error:
                raise RefusedError(
                    f"{printable(self.path)}: a job's folder must be on the file system of its result, which knows "
                    f"hard links: {error.strerror}",
                    code="job-elsewhere",
                ) from None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Job:
        """A job by its folder.

        Raises:
            OSError: it cannot be read.
            RefusedError: ``no-job``: there is none; ``bad-job``.
        """
        folder = Path(path).absolute()
        file = folder / "order.json"
        try:
            return cls(folder, Order.from_json(file.read_text(), file))
        except FileNotFoundError:
            raise RefusedError(f"{printable(folder)}: no job: it has no order.json", code="no-job") from None

    def status(self) -> JobStatus:
        """How far it has come. Raises OSError."""
        return JobStatus(self.path, self.order.out, len(self.order.units), tuple(self.missing()), self._is_published())

    def missing(self) -> list[int]:
        """The numbers of the units that are not marked as done."""
        return [number for number in range(len(self.order.units)) if not self._mark(number).exists()]

    def unit(self, number: int, *, threads: int | None = None) -> Mark:
        """Do a unit, whether it is done or not.

        Raises:
            OSError: as the system says.
            RefusedError: ``bad-unit``; ``file-changed``: an input is not the one that the job was created for;
                ``job-other-version``, ``threads``.
        """
        if not 0 <= number < len(self.order.units):
            last = len(self.order.units) - 1
            raise RefusedError(f"{printable(self.path)}: it has units 0 to {last}, not {number}", code="bad-unit")
        with self._working(threads) as (fuser, opened):
            return self._do(number, fuser, opened)

    @contextlib.contextmanager
    def _working(self, threads: int | None) -> Iterator[tuple[UnitFuser, OpenedPlan]]:
        with reopened(self.order.plan) as opened:
            layout, _ = lay_out_whole(opened, self.order.out, self.order.max_shard_bytes)
            self.order.check_layout(layout)
            yield UnitFuser(opened, layout, resolve_threads(threads)), opened

    def _do(self, number: int, fuser: UnitFuser, opened: OpenedPlan) -> Mark:
        written = Written()
        with contextlib.ExitStack() as stack:
            files: dict[str, PositionalFile] = {}

            def put(name: str, offset: int, data: memoryview) -> None:
                if name not in files:
                    files[name] = stack.enter_context(PositionalFile(self._parts / name))
                files[name].write(offset, data)
                written.add(name, offset, data)

            fused = fuser.make(self.order.units[number], put)
            for file in files.values():
                file.sync()
        opened.sources.check_unchanged()
        mark = written.mark(number, fused)
        mark.write(self._mark(number))
        return mark

    def run(
        self,
        *,
        threads: int | None = None,
        executor: Executor | None = None,
        progress: OnProgress | None = None,
    ) -> FuseReport:
        """Do all units that are missing, and finish.

        Args:
            threads: to compute with; of each worker where there is an executor.
            executor: any of ``concurrent.futures``' kind, whose workers see this folder and the inputs under the same
                paths; None does the units here, one after the other.
            progress: called after each unit, in the calling thread.

        Raises:
            OSError: as the system says, or a worker died again and again: the message names the unit.
            RefusedError: as ``unit`` and ``finish`` do; ``job-busy``.
        """
        began = time.perf_counter()
        with self._lease():
            missing = [] if self._is_published() else self.missing()
            units = [self.order.units[number] for number in missing]
            tracker = Tracker(sum(unit.end - unit.begin for unit in units), 0, progress)
            if executor is not None:
                self._spread(executor, missing, threads, tracker)
            elif missing:
                with self._working(threads) as (fuser, opened):
                    for number in missing:
                        with self._naming(number):
                            self._do(number, fuser, opened)
                        tracker.advance(_size(self.order.units[number]), 0)
            return self._finish(threads, began)

    def _spread(self, executor: Executor, missing: list[int], threads: int | None, tracker: Tracker) -> None:
        attempt = os.urandom(8).hex()  # some engines answer equal calls from memory
        futures = {executor.submit(work_unit, str(self.path), number, threads, attempt): number for number in missing}
        try:
            for future in as_completed(futures):
                with self._naming(futures[future]):
                    future.result()
                tracker.advance(_size(self.order.units[futures[future]]), 0)
        finally:
            for future in futures:
                future.cancel()

    @contextlib.contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Say of what goes wrong in the block which unit it was."""
        file, begin, end = self.order.units[number]
        unit = f"unit {number} (bytes {begin} to {end} of {printable(file)})"
        try:
            yield
        except RefusedError as error:
            raise RefusedError(f"{unit}: {error}", code=error.code, keys=error.keys) from error
        except OSError as error:
            raise OSError(error.errno, f"{unit}: {error.strerror or error}", error.filename) from error
        except Exception as error:  # of the engine: a worker died
            problem = f"{unit}: {type(error).__name__}: {printable(error)}"
            raise OSError(None, problem, str(self.path)) from error

    def finish(self, *, threads: int | None = None) -> FuseReport:
        """Check all marks against the bytes, put the result in place, remove the job.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-unfinished``, ``job-damaged``, ``nonfinite``, ``file-changed``, ``job-busy``; as
                ``publish`` does. The job stays as it is.
        """
        with self._lease():
            return self._finish(threads, time.perf_counter())

    def _finish(self, threads: int | None, began: float) -> FuseReport:
        order = self.order
        if self._is_published():
            known = outline(order.plan, order.out, threads)
            self._remove()
            return _report(replace(known, notes=(*known.notes, "it was in place already")), {}, began)
        if missing := self.missing():
            raise RefusedError(
                f"{printable(self.path)}: {len(missing)} of {len(order.units)} units are not done, such as "
                f"{missing[0]}",
                code="job-unfinished",
            )
        with reopened(order.plan) as opened:
            layout, notes = lay_out_whole(opened, order.out, order.max_shard_bytes)
            order.check_layout(layout)
            nonfinite = self._check_marks(layout)
            destination = check_destination(opened, order.out, replace(layout, files=()), force=order.force)
            self._clear_links()
            with stage(destination) as staged:
                for file in layout.files:
                    with PositionalFile(self._parts / file.name) as part:
                        part.write(0, memoryview(file.header))
                        part.sync()
                    staged.adopt(file.name, self._parts / file.name)
                write_beside(layout, staged)
                opened.sources.check_unchanged()
                publish(staged)
        known = outline(order.plan, order.out, threads)
        self._remove()
        return _report(replace(known, notes=(*known.notes, *notes, *staged.notes)), dict(nonfinite.counts), began)

    def _clear_links(self) -> None:
        """Remove the second names that a killed run gave to parts; what else it left, ``stage`` clears."""
        parts = {_inode(path) for path in self._parts.rglob("*")}
        with Folder.open(self.order.out.parent) as folder:
            names = [name for name, _ in leftovers(folder, self.order.out.name)]
        for left in (self.order.out.parent / name for name in names):
            for path in [left, *left.rglob("*")]:
                if path.is_file() and _inode(path) in parts:
                    path.unlink()

    def _check_marks(self, layout: OutputLayout) -> Nonfinite:
        nonfinite = Nonfinite(self.order.plan.base.path, allowed=self.order.allow_nonfinite)
        ranges = [Unit(file.name, 0, len(file.header)) for file in layout.files]
        for number in range(len(self.order.units)):
            mark = Mark.read(self._mark(number))
            mark.check(self._parts)
            nonfinite.add(mark.fused)
            ranges += mark.ranges
        nonfinite.refuse()
        _check_whole(ranges, layout)
        return nonfinite

    def abandon(self) -> None:
        """Remove the job, whatever was done of it. The destination is left as it is.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-busy``.
        """
        with self._lease():
            self._remove()

    def _remove(self) -> None:
        """Remove what the job has put into its folder, and the folder unless somebody put something else there."""
        for path in (self.path / name for name in _ENTRIES):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def _mark(self, number: int) -> Path:
        return self.path / "done" / f"{number:05}.json"

    def _is_published(self) -> bool:
        """Whether the result is in place, and only the job's folder was left by a kill."""
        parts = [path for path in self._parts.rglob("*") if path.is_file()]
        out = self.order.out
        try:
            within = out.is_dir()
            return bool(parts) and all(
                part.samefile(out / part.relative_to(self._parts) if within else out) for part in parts
            )
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _lease(self) -> Iterator[None]:
        """Be the one that runs or finishes the job. Units are done by anybody."""
        descriptor = os.open(self.path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    f"{printable(self.path)}: another process runs or finishes this job", code="job-busy"
                ) from None
            except OSError:  # no locks on this file system: two may run it, to the same bytes
                pass
            yield
        finally:
            os.close(descriptor)


def work_unit(job: str, number: int, threads: int | None, attempt: str) -> int:
    """What an executor's worker does: one unit of a job. ``attempt`` tells one run's calls from another's."""
    Job.open(job).unit(number, threads=threads)
    return number


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _size(unit: Unit) -> int:
    return unit.end - unit.begin


def _report(known: Any, nonfinite: dict[str, int], began: float) -> FuseReport:
    return FuseReport(**vars(known), nonfinite=nonfinite, seconds=time.perf_counter() - began)


def _check_whole(ranges: list[Unit], layout: OutputLayout) -> None:
    """Make sure that all bytes of all files were written."""
    for file in layout.files:
        reached = 0
        for _, begin, end in sorted(one for one in ranges if one.file == file.name):
            if begin > reached:
                break
            reached = max(reached, end)
        if reached != file.size:
            raise RefusedError(
                f"{printable(file.name)}: by the units' marks nothing was written at byte {reached} of {file.size}",
                code="job-damaged",
            )
