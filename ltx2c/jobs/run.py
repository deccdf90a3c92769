"""Doing all the units of a job that are missing: here, or by the workers of an executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed, wait
from pathlib import Path

from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.kept import Run, unit_worker
from ltx2c.jobs.order import Order
from ltx2c.jobs.units import naming_unit, working
from ltx2c.progress import OnProgress, Tracker


def do_missing(
    folder: JobFolder, order: Order, *, threads: int | None, executor: Executor | None, progress: OnProgress | None
) -> None:
    """Do the units that are not marked. Args are as for ``Job.run``.

    Raises:
        OSError: as the system says, or a worker died again and again: the message names the unit.
        RefusedError: as a unit's maker does.
    """
    missing = folder.missing(len(order.units))
    done = _done(order, missing, progress)
    if executor is not None:
        _spread(executor, folder.path, order, missing, threads, done)
    elif missing:
        with working(folder, order, threads) as worker:
            for number in missing:
                with naming_unit(order, number):
                    worker.do(number)
                done(number)


def _done(order: Order, missing: Sequence[int], progress: OnProgress | None) -> Callable[[int], None]:
    """Takes the number of each unit that is done, and tells; of the arithmetic each has as much as of the bytes."""
    whole = sum(map(order.unit_bytes, range(len(order.units))))
    macs = {number: order.plan.macs * order.unit_bytes(number) // whole for number in missing}
    tracker = Tracker(sum(map(order.unit_bytes, missing)), sum(macs.values()), progress)
    return lambda number: tracker.advance(order.unit_bytes(number), macs[number])


def _spread(
    executor: Executor,
    path: Path,
    order: Order,
    missing: Sequence[int],
    threads: int | None,
    done: Callable[[int], None],
) -> None:
    run = Run(str(path), threads, os.urandom(8).hex())  # no call is an earlier one's equal, answered from memory
    futures: dict[Future[int], int] = {}
    try:
        for number in missing:
            with naming_unit(order, number):
                futures[executor.submit(work_unit, run, number)] = number
        for future in as_completed(futures):
            with naming_unit(order, futures[future]):
                future.result()
            done(futures[future])
    except Exception:
        wait([future for future in futures if not future.cancel()])  # what is under way would go on for nobody
        raise
    except BaseException:  # Ctrl-C
        for future in futures:
            future.cancel()
        raise


def work_unit(run: Run, number: int) -> int:
    """What an executor's worker does: one unit of a job."""
    with unit_worker(run) as worker:
        worker.do(number)
    return number
