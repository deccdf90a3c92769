"""Which arrays share bytes: of one job, and of jobs that run at the same time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ltx2c.arrays import Array

# NumPy's measure of work for one question. Slices of one array take a few steps; what takes more counts as shared.
_MOST_WORK = 10_000


class Use(NamedTuple):
    """An array that one job reads or writes."""

    job: int
    array: Array
    written: bool


def same_memory(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape and dtype are the same bytes in the same order."""
    return one.ctypes.data == other.ctypes.data and _steps(one) == _steps(other)


def _steps(array: Array) -> list[int]:
    """The strides that mean something: one along a side of length 1 may be anything."""
    return [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]


def shares_memory(one: Array, other: Array) -> bool:
    """Whether two arrays have a byte in common. Columns of one array lie between each other's, and share none."""
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[arg-type]  # the stubs know two values
    except np.exceptions.TooHardError:
        return True


def find_race(uses: Iterable[Use]) -> tuple[Use, Use] | None:
    """A use that writes and one of another job that shares a byte with it, or None.

    Walks the arrays by address and compares each with those that have not ended where it begins.
    """
    spans = sorted(((*_span(use.array), use) for use in uses if use.array.size), key=lambda span: span[:2])
    open_uses: dict[bool, list[tuple[int, int, Use]]] = {False: [], True: []}  # by written: heaps of (end, number, use)
    for number, (low, high, use) in enumerate(spans):
        for heap in open_uses.values():
            while heap and heap[0][0] <= low:
                heapq.heappop(heap)
        others = open_uses[True] + open_uses[False] if use.written else open_uses[True]
        found = _first_sharing(use, [other for _, _, other in others])
        if found:
            return (use, found) if use.written else (found, use)
        heapq.heappush(open_uses[use.written], (high, number, use))
    return None


def _first_sharing(use: Use, others: Sequence[Use]) -> Use | None:
    return next((o for o in others if o.job != use.job and shares_memory(use.array, o.array)), None)


def _span(array: Array) -> tuple[int, int]:
    """The first byte of an array and the one behind its last."""
    start: int = array.ctypes.data
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize
