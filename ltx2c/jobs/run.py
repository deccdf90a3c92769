"""Doing all the units of a job that are missing: here, or by the workers of an executor."""

from __future__ import annotations

import os
from concurrent.futures import Executor, as_completed
from pathlib import Path

from ltx2c.jobs.folder import JobFolder
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
    tracker = Tracker(sum(map(order.unit_bytes, missing)), 0, progress)
    if executor is not None:
        _spread(executor, folder.path, order, missing, threads, tracker)
    elif missing:
        with working(folder, order, threads) as worker:
            for number in missing:
                with naming_unit(order, number):
                    worker.do(number)
                tracker.advance(order.unit_bytes(number), 0)


def _spread(
    executor: Executor, path: Path, order: Order, missing: list[int], threads: int | None, tracker: Tracker
) -> None:
    attempt = os.urandom(8).hex()  # some engines answer equal calls from memory
    futures = {executor.submit(work_unit, str(path), number, threads, attempt): number for number in missing}
    try:
        for future in as_completed(futures):
            with naming_unit(order, futures[future]):
                future.result()
            tracker.advance(order.unit_bytes(futures[future]), 0)
    finally:
        for future in futures:
            future.cancel()


def work_unit(job: str, number: int, threads: int | None, attempt: str) -> int:
    """What an executor's worker does: one unit of a job. ``attempt`` tells one run's calls from another's."""
    folder = JobFolder(job)
    with working(folder, Order.read(folder.order), threads) as worker:
        worker.do(number)
    return number
