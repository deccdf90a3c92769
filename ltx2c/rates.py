"""What this machine does in a second, measured in a blink, for predictions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

from ltx2c.crew import Crew
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.plan.cost import Rates
from ltx2c.threads import resolve_threads

_OUT, _RANK, _IN = 2048, 256, 2048
_COPY_BYTES = 64 << 20
_REPEATS = 3


def measure_rates(threads: int | None = None) -> Rates:
    """Measure, once for each number of threads; None for what this process may use.

    The best of three runs each, under 0.2 s in all on two cores.

    Arithmetic: one fuse of a bfloat16 weight, ``[2048, 2048]`` at rank 256, in memory. Bytes: a copy of 64 MB by all
    threads, which is what reading from the page cache costs; a file that is not cached is as slow as its disk.
    """
    return _measured(resolve_threads(threads))


@functools.cache
def _measured(threads: int) -> Rates:
    weight, a, b = (np.full(shape, 0.01, ml_dtypes.bfloat16) for shape in ((_OUT, _IN), (_RANK, _IN), (_OUT, _RANK)))
    source, target = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)
    fusing = _best(lambda: fuse_jobs([Job(weight, [(a, b, 0.5)], weight)], threads=threads))
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with Crew(threads, "ltx2c-copy") as crew:
        copying = _best(lambda: [copy.result() for copy in [crew.submit(np.copyto, *part) for part in parts]])
    return Rates(flops=2 * _OUT * _RANK * _IN / fusing, bytes=_COPY_BYTES / copying)


def _best(run: Callable[[], object]) -> float:
    return min(timed(run) for _ in range(_REPEATS))


def timed(run: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
