"""A job in its folder: created, done unit by unit by whoever comes, and finished by one.

Any unit may be done again, by two at once, on another kind of machine: the bytes are the same. A kill leaves the
destination as it was and costs the units that were under way.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.report import FuseReport, outline
from ltx2c.errors import RefusedError, printable
from ltx2c.files.places import on_disk
from ltx2c.jobs.create import fill_folder, make_order
from ltx2c.jobs.finish import put_in_place
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.marks import Mark
from ltx2c.jobs.order import Order
from ltx2c.jobs.run import do_missing
from ltx2c.jobs.units import working
from ltx2c.plan import Plan
from ltx2c.plan.opened import reopened
from ltx2c.prepare import OutputForm, check_destination, lay_out_whole
from ltx2c.progress import OnProgress

# Enough that a unit's own costs do not show, little enough that a kill loses seconds.
UNIT_BYTES = 512 << 20


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

    def __init__(self, folder: JobFolder, order: Order) -> None:
        self.path = folder.path
        self.order = order
        self._folder = folder

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
        folder, form = JobFolder(path), OutputForm(max_shard_bytes)
        with reopened(plan) as opened:
            layout = lay_out_whole(opened, out, form).layout
            destination = on_disk(check_destination(opened, out, layout, force=force), "the result of a job")
            count = max(1, layout.size // UNIT_BYTES) if units is None else units
            order = make_order(
                opened,
                layout,
                destination,
                form,
                checksums=True,
                units=count,
                force=force,
                allow_nonfinite=allow_nonfinite,
            )
        folder.make()
        fill_folder(folder, order, layout, destination)
        return cls(folder, order)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Job:
        """A job by its folder.

        Raises:
            OSError: it cannot be read.
            RefusedError: ``no-job``: there is none; ``bad-job``.
        """
        folder = JobFolder(path)
        return cls(folder, Order.read(folder.order))

    def status(self) -> JobStatus:
        """How far it has come. Raises OSError."""
        published = self._folder.is_published(self.order.out)
        return JobStatus(self.path, self.order.out, len(self.order.units), tuple(self.missing()), published)

    def missing(self) -> list[int]:
        """The numbers of the units that are not marked as done."""
        return self._folder.missing(len(self.order.units))

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
        with working(self._folder, self.order, threads) as worker:
            return worker.do(number)

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
        with self._folder.lease():
            if not self._folder.is_published(self.order.out):
                do_missing(self._folder, self.order, threads=threads, executor=executor, progress=progress)
            return self._finish(threads, began)

    def finish(self, *, threads: int | None = None) -> FuseReport:
        """Check all marks against the bytes, put the result in place, remove the job.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-unfinished``, ``job-damaged``, ``nonfinite``, ``file-changed``, ``job-busy``; as
                ``publish`` does. The job stays as it is.
        """
        with self._folder.lease():
            return self._finish(threads, time.perf_counter())

    def _finish(self, threads: int | None, began: float) -> FuseReport:
        known = outline(self.order.plan, self.order.out, threads)
        if self._folder.is_published(self.order.out):
            nonfinite = Nonfinite(self.order.plan.base.path, allowed=True)
            notes: tuple[str, ...] = ("it was in place already",)
        else:
            nonfinite, notes = put_in_place(self._folder, self.order)
        self._folder.remove()
        told = vars(replace(known, notes=(*known.notes, *notes)))
        return FuseReport(
            **told, nonfinite=dict(nonfinite.counts), seconds=time.perf_counter() - began, loss=nonfinite.loss
        )

    def abandon(self) -> None:
        """Remove the job, whatever was done of it. The destination is left as it is.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-busy``.
        """
        with self._folder.lease():
            self._folder.remove()
