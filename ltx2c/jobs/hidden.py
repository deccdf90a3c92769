"""A result that is made in units in a hidden folder beside it, by one call; and what killed calls left of it.

Such a folder is a job's. Its name is random, its owner this user, its lease held by the process that makes the result.
What a killed one left is taken over by the next that is asked to resume, and removed by any other.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.report import FuseReport, outline
from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination, cannot_write, disk_bytes
from ltx2c.files.layout import OutputLayout
from ltx2c.files.paths import place
from ltx2c.files.temporaries import is_job_name, job_name
from ltx2c.jobs.create import fill_folder, make_order
from ltx2c.jobs.finish import put_in_place
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.order import Order
from ltx2c.jobs.run import do_missing
from ltx2c.plan.opened import OpenedPlan
from ltx2c.prepare import OutputForm
from ltx2c.progress import OnProgress
from ltx2c.threads import resolve_threads

# As large as a unit is at most, so that a kill loses seconds; and at least, so that its own costs do not show.
UNIT_BYTES = 512 << 20
SMALLEST_UNIT_BYTES = 16 << 20
_UNITS = 16  # unless that makes them too large or too small: enough that workers end at about the same time


class HiddenJobs:
    """The hidden folders of a result: those that killed runs left, and the next."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        """``out``: where the result goes, whether or not that is possible."""
        try:
            self._out = place(out)
            self._left = list(_left(self._out))
        except OSError:
            self._out, self._left = Path(out), []

    @property
    def disk_bytes(self) -> int:
        """What they take, and will not when the result is there."""
        return sum(disk_bytes(folder.path) for folder in self._left)

    @property
    def in_place(self) -> bool:
        """Whether a killed run had put its result in place, and only its folder is left."""
        return any(folder.is_published(self._out) for folder in self._left)

    def clear(self) -> tuple[str, ...]:
        """Remove what killed runs left; a note of it, if there was any.

        Raises:
            OSError: as the system says.
            RefusedError: ``output-busy``: one is of a run that goes on.
        """
        freed = 0
        for folder in self._left:
            with _held(folder, self._out):
                freed += disk_bytes(folder.path)
                self._remove(folder)
        return (f"removed {freed} bytes that an earlier run, killed before it was done, had left",) if freed else ()

    def make(
        self,
        opened: OpenedPlan,
        layout: OutputLayout,
        destination: Destination,
        form: OutputForm,
        *,
        resume: bool,
        executor: Executor | None,
        threads: int | None,
        force: bool,
        allow_nonfinite: bool,
        progress: OnProgress | None,
    ) -> FuseReport:
        """Make a result in units, and publish it. Args are as for ``fuse_checkpoint``.

        Raises:
            OSError: as the system says; with ``resume``, what was done stays.
            RefusedError: as ``fuse_checkpoint``; nothing stays, but for what is another's or another request's.
        """
        began = time.perf_counter()
        count = resolve_threads(1 if executor is not None and threads is None else threads)
        known = outline(opened.plan, destination.path, count)
        order = make_order(
            opened,
            layout,
            destination,
            form,
            checksums=False,  # what is marked is durable: no byte is read again, as none is of a file that is streamed
            units=max(1, min(_UNITS, layout.size // SMALLEST_UNIT_BYTES), layout.size // UNIT_BYTES),
            force=force,
            allow_nonfinite=allow_nonfinite,
        )
        notes: tuple[str, ...] = ()
        with contextlib.ExitStack() as stack:
            folder = self._taken_over(order, stack) if resume else None
            if folder is None:
                notes = self.clear()
                folder = JobFolder(destination.path.with_name(job_name(destination.path.name)))
                folder.make()
                stack.enter_context(_held(folder, self._out))
            else:
                order = replace(Order.read(folder.order), force=force, allow_nonfinite=allow_nonfinite)
                done = len(order.units) - len(folder.missing(len(order.units)))
                notes = (f"resumed: {done} of {len(order.units)} units had been done",)
            with self._staying(folder, resume):
                if not folder.order.exists():
                    fill_folder(folder, order, layout, destination)
                nonfinite, more = _make(folder, order, count, executor, progress)
            self._remove(folder)
        if executor is not None and threads is None:
            notes += ("1 thread for each unit that a worker does, as none were asked for",)
        told = vars(replace(known, notes=(*known.notes, *notes, *more)))
        seconds = time.perf_counter() - began
        return FuseReport(**told, nonfinite=dict(nonfinite.counts), seconds=seconds, loss=nonfinite.loss)

    def _taken_over(self, order: Order, stack: contextlib.ExitStack) -> JobFolder | None:
        """What a killed run left of the same request, held; None where there is none."""
        for folder in list(self._left):
            stack.enter_context(_held(folder, self._out))
            if not folder.order.exists():  # killed before there was anything to be done
                self._remove(folder)
                self._left.remove(folder)
                continue
            different = Order.read(folder.order).difference(order)
            if different:
                raise RefusedError(
                    f"cannot resume {printable(self._out)}: what a killed run left there is of another request: "
                    f"{different}; without --resume it is removed",
                    code="resume-other-request",
                )
            return folder
        return None

    def _remove(self, folder: JobFolder) -> None:
        folder.vanish(job_name(self._out.name))

    @contextlib.contextmanager
    def _staying(self, folder: JobFolder, resume: bool) -> Iterator[None]:
        """Remove the folder where the block fails for good."""
        try:
            yield
        except BaseException as error:
            if not resume or isinstance(error, RefusedError):
                with contextlib.suppress(OSError):  # what stopped the run is what has to be told
                    self._remove(folder)
            raise


def _left(out: Path) -> Iterator[JobFolder]:
    """The folders that are called so, and are this user's."""
    for name in sorted(os.listdir(out.parent)):  # noqa: PTH208 (a name that is no text)
        if is_job_name(out.name, name):
            path = out.with_name(name)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                yield JobFolder(path)


@contextlib.contextmanager
def _held(folder: JobFolder, out: Path) -> Iterator[None]:
    """Be the one that works on it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lease())
        except RefusedError:
            raise cannot_write(out, "another run is writing to it", "output-busy") from None
        yield


def _make(
    folder: JobFolder, order: Order, threads: int, executor: Executor | None, progress: OnProgress | None
) -> tuple[Nonfinite, tuple[str, ...]]:
    if folder.is_published(order.out):
        return Nonfinite(order.plan.base.path, allowed=True), ("it was in place already",)
    do_missing(folder, order, threads=threads, executor=executor, progress=progress)
    return put_in_place(folder, order)
