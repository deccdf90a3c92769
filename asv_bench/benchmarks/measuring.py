"""Inputs and stopwatch that the benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

_POOL = 1_048_573  # prime, so that the rows of a tensor do not repeat each other

_BURSTS, _PAUSE = 3, 0.05
_SERIES, _FEWEST = 0.05, 4


def trained_like(
    shape: tuple[int, int], sd: float, dtype: npt.DTypeLike = ml_dtypes.bfloat16
) -> npt.NDArray[np.generic]:
    """An array of normally distributed values; a pool of them repeated, which takes no time."""
    pool = np.random.default_rng(0).standard_normal(_POOL, np.float32) * np.float32(sd)
    return np.resize(pool.astype(dtype), shape)


def best_seconds(work: Callable[[], object], *, at_least: float = 0.45) -> float:
    """The shortest of the runs that together take ``at_least`` seconds; ``work`` has run before, to warm up.

    They come in bursts: two virtual CPUs that have to share a core go on doing so while they are busy, and are often
    given one each when they wake from a pause (``ltx2c/kernels/README.md``).
    """
    times: list[float] = []
    for burst in range(1, _BURSTS + 1):
        time.sleep(_PAUSE)
        while sum(times) < at_least * burst / _BURSTS:
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return min(times)


def in_turn(runs: Mapping[str, Callable[[], object]], *, rounds: int = 7) -> dict[str, float]:
    """The median seconds of each, which take turns: for a while each, as one would be measured with the threads of the
    one before still awake, and its own first runs do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, work in runs.items():
            series: list[float] = []
            while sum(series) < _SERIES or len(series) < _FEWEST:
                started = time.perf_counter()
                work()
                series.append(time.perf_counter() - started)
                if series[0] > _SERIES:
                    break
            times[name] += series[len(series) // 4 :]
    return {name: statistics.median(found) for name, found in times.items()}


def read_into_cache(*paths: Path) -> None:
    """Bring files into the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(16 << 20)
            while file.readinto(buffer):
                pass
