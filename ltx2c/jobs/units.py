"""Doing the units of a job, in this process."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ltx2c.engines.units import UnitFuser
from ltx2c.errors import RefusedError, printable
from ltx2c.files.positional import PositionalFile
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.marks import Mark, Written
from ltx2c.jobs.order import Order
from ltx2c.plan.opened import OpenedPlan, reopened
from ltx2c.threads import resolve_threads


class UnitWorker:
    """Does units of one job, one after the other."""

    def __init__(self, folder: JobFolder, order: Order, fuser: UnitFuser, opened: OpenedPlan) -> None:
        self._folder = folder
        self._order = order
        self._fuser = fuser
        self._opened = opened

    def do(self, number: int) -> Mark:
        """Do a unit, whether it is done or not: write it, make that durable, and mark it.

        Raises:
            OSError: as the system says.
            RefusedError: ``file-changed``.
        """
        written = Written(checksum=self._order.checksums)
        with contextlib.ExitStack() as stack:
            files: dict[str, PositionalFile] = {}

            def put(name: str, offset: int, data: memoryview) -> None:
                if name not in files:
                    files[name] = stack.enter_context(PositionalFile(self._folder.parts / name))
                files[name].write(offset, data)
                written.add(name, offset, data)

            fused = self._fuser.make(self._order.units[number], put)
            for file in files.values():
                file.sync()
        self._opened.sources.check_unchanged()
        mark = written.mark(number, fused)
        mark.write(self._folder.mark(number))
        return mark


@contextlib.contextmanager
def working(folder: JobFolder, order: Order, threads: int | None) -> Iterator[UnitWorker]:
    """Open what a job's units are made of, for the length of the block.

    Raises:
        OSError: as the system says.
        RefusedError: ``file-changed``: an input is not the one that the job was created for; ``job-other-version``,
            ``threads``.
    """
    with reopened(order.plan) as opened:
        layout = order.form.lay_out(opened)
        order.check_layout(layout)
        yield UnitWorker(folder, order, UnitFuser(opened, layout, resolve_threads(threads), measure=True), opened)


@contextlib.contextmanager
def naming_unit(order: Order, number: int) -> Iterator[None]:
    """Say of what goes wrong in the block which unit it was."""
    file, begin, end = order.units[number]
    several = len({one.file for one in order.units}) > 1
    unit = f"unit {number} (bytes {begin} to {end} of {printable(order.out / file if several else order.out)})"
    try:
        yield
    except RefusedError as error:
        raise RefusedError(f"{unit}: {error}", code=error.code, keys=error.keys) from error
    except OSError as error:
        raise OSError(error.errno, f"{unit}: {error.strerror or error}", error.filename) from error
    except Exception as error:  # of an engine: a worker died
        raise OSError(errno.EIO, f"{unit}: {type(error).__name__}: {printable(error)}", str(order.out)) from error
