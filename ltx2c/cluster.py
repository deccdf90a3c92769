"""A cluster at work on units, played: how long it takes, and what it waits for. Pure; seconds and bytes.

Workers take units from one list, each a unit at a time. Reading, computing and writing of a unit overlap, so that it
goes as fast as the slowest of them lets it: the worker's arithmetic, its network (as fast in each direction), and its
share of the storage, which all that are at work share evenly, none getting more than it can use. Between two events
nothing changes, and an event is a unit that begins to move bytes, or ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_DONE = 1e-9  # of a unit: what is left of one that rounding has kept from its end


class UnitWork(NamedTuple):
    """What one unit takes.

    Attributes:
        result: the number of the result that it is a part of.
        read, written: bytes, from and to the storage.
        seconds: of one worker's arithmetic.
    """

    result: int
    read: int
    written: int
    seconds: float


@dataclass(frozen=True)
class Cluster:
    """Workers and what they share.

    Attributes:
        workers: how many.
        network: bytes per second of each, in each direction.
        storage: bytes per second of all together, read and written.
        start: seconds before a unit begins to move bytes: a process starts, and opens files.
    """

    workers: int
    network: float
    storage: float
    start: float = 0.0


@dataclass(frozen=True)
class Played:
    """What came of it.

    Attributes:
        seconds: until all results are in place.
        units_done: until the last unit is done; what follows is checking results that are whole.
        read, written: bytes, of each worker.
    """

    seconds: float
    units_done: float
    read: tuple[int, ...]
    written: tuple[int, ...]


def play(units: Sequence[UnitWork], checks: Sequence[UnitWork], cluster: Cluster) -> Played:
    """Play a cluster's work.

    Args:
        units: in the order in which they are taken.
        checks: of each result, by number: done when all its units are, before any unit that nobody has begun.
    """
    return _Play(units, checks, cluster).run()


class _Play:
    def __init__(self, units: Sequence[UnitWork], checks: Sequence[UnitWork], cluster: Cluster) -> None:
        self._cluster = cluster
        self._ready = deque((unit, False) for unit in units)
        self._missing = Counter(unit.result for unit in units)
        self._checks = checks
        count = cluster.workers
        self._at: list[tuple[UnitWork, bool] | None] = [None] * count
        self._idle = list(range(count))[::-1]
        self._delay = np.zeros(count)
        self._left = np.zeros(count)
        self._fastest = np.zeros(count)  # units per second that its own worker allows; 0 of an idle one
        self._bytes = np.zeros(count)
        self._read, self._written = [0] * count, [0] * count
        self._now = self._units_done = 0.0

    def run(self) -> Played:
        self._begin()
        while len(self._idle) < self._cluster.workers:
            self._advance()
            self._begin()
        return Played(self._now, self._units_done, tuple(self._read), tuple(self._written))

    def _begin(self) -> None:
        while self._ready and self._idle:
            worker, (unit, is_check) = self._idle.pop(), self._ready.popleft()
            self._at[worker] = unit, is_check
            self._delay[worker], self._left[worker] = self._cluster.start, 1.0
            self._fastest[worker] = _fastest(unit, self._cluster.network)
            self._bytes[worker] = unit.read + unit.written
            self._read[worker] += unit.read
            self._written[worker] += unit.written

    def _advance(self) -> None:
        """Go on to the next event."""
        waits = (self._fastest > 0) & (self._delay > 0)
        moves = (self._fastest > 0) & ~waits
        speed = np.where(moves, self._speeds(moves), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(moves, self._left / speed, np.inf)
        step = min(float(np.min(ends)), float(np.min(np.where(waits, self._delay, np.inf))))
        self._now += step
        self._delay = np.where(waits, np.maximum(self._delay - step, 0.0), self._delay)
        self._left -= np.where(np.isfinite(speed), speed, 0.0) * step
        for worker in np.flatnonzero(moves & ((self._left <= _DONE) | ~np.isfinite(speed))):
            self._end(int(worker))

    def _speeds(self, moves: npt.NDArray[np.bool_]) -> Floats:
        """Units per second of each: what its worker allows, and its share of the storage."""
        with np.errstate(invalid="ignore"):
            wanted = np.where(moves & (self._bytes > 0), self._fastest * self._bytes, 0.0)
        level = _level(wanted[wanted > 0], self._cluster.storage)
        with np.errstate(divide="ignore"):
            return np.minimum(self._fastest, np.where(self._bytes > 0, level / self._bytes, np.inf))

    def _end(self, worker: int) -> None:
        found = self._at[worker]
        assert found is not None
        unit, is_check = found
        self._at[worker] = None
        self._fastest[worker] = 0.0
        self._idle.append(worker)
        if is_check:
            return
        self._units_done = self._now
        self._missing[unit.result] -= 1
        if not self._missing[unit.result] and self._checks:
            self._ready.appendleft((self._checks[unit.result], True))


def _fastest(unit: UnitWork, network: float) -> float:
    slowest = max(unit.seconds, unit.read / network, unit.written / network)
    return 1 / slowest if slowest else np.inf


def _level(wanted: Floats, most: float) -> float:
    """Of which none gets more, so that all that is wanted up to it comes to ``most``; infinite where all is given."""
    if float(wanted.sum()) <= most:
        return np.inf
    rising = np.sort(wanted)
    below = np.concatenate(([0.0], np.cumsum(rising)[:-1]))
    levels = (most - below) / np.arange(len(rising), 0, -1)
    return float(levels[np.argmax(levels <= rising)])


def bottleneck(units: Sequence[UnitWork], checks: Sequence[UnitWork], cluster: Cluster) -> str:
    """What would shorten it most: ``compute``, ``network``, ``storage`` doubled; ``units`` halved, begun at once."""
    faster = [unit._replace(seconds=unit.seconds / 2) for unit in (*units, *checks)]
    changed: dict[str, tuple[Any, Any, Cluster]] = {
        "units": ([half for unit in units for half in _halves(unit)], checks, replace(cluster, start=0.0)),
        "compute": (faster[: len(units)], faster[len(units) :], cluster),
        "network": (units, checks, replace(cluster, network=2 * cluster.network)),
        "storage": (units, checks, replace(cluster, storage=2 * cluster.storage)),
    }
    times = {name: play(*how).seconds for name, how in changed.items()}
    now = play(units, checks, cluster).seconds
    best = min(times, key=lambda name: times[name])
    return best if times[best] < 0.99 * now else "units"


def _halves(unit: UnitWork) -> list[UnitWork]:
    read, written = unit.read // 2, unit.written // 2
    first = unit._replace(read=read, written=written, seconds=unit.seconds / 2)
    return [first, first._replace(read=unit.read - read, written=unit.written - written)]
