"""What a worker process keeps between units of one run: the inputs open, buffers, the plan read.

All of that takes a large model's unit a good part of a second, which many small units would show. It is let go when
the process is asked for units of another run, or for none for a while.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.order import Order
from ltx2c.jobs.units import UnitWorker, working

_SECONDS = 10.0  # far longer than from one unit's end to the next one's beginning


class Run(NamedTuple):
    """A run of a job, as one of its workers knows it; ``attempt`` tells it from others of the same job."""

    job: str
    threads: int | None
    attempt: str


class _Kept(NamedTuple):
    run: Run
    worker: UnitWorker
    closing: contextlib.ExitStack


_idle: list[_Kept] = []
_lock = threading.Lock()


@contextlib.contextmanager
def unit_worker(run: Run) -> Iterator[UnitWorker]:
    """One that no other thread uses meanwhile. Raises as ``working`` does. One that fails is not kept."""
    kept = _taken(run) or _made(run)
    try:
        yield kept.worker
    except BaseException:
        kept.closing.close()
        raise
    with _lock:
        _idle.append(kept)
    timer = threading.Timer(_SECONDS, _let_go, [kept])
    timer.daemon = True
    timer.start()


def _taken(run: Run) -> _Kept | None:
    with _lock:
        ours = [kept for kept in _idle if kept.run == run]
        others = [kept for kept in _idle if kept.run != run]
        _idle[:] = ours[1:]
    for kept in others:
        kept.closing.close()
    return ours[0] if ours else None


def _made(run: Run) -> _Kept:
    with contextlib.ExitStack() as stack:
        folder = JobFolder(run.job)
        worker = stack.enter_context(working(folder, Order.read(folder.order), run.threads))
        return _Kept(run, worker, stack.pop_all())


def _let_go(kept: _Kept) -> None:
    with _lock:
        if not any(one is kept for one in _idle):
            return
        _idle[:] = [one for one in _idle if one is not kept]
    kept.closing.close()
