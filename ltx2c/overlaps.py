"""Which arrays share bytes: of one job, and of jobs that run at the same time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ltx2c.arrays import Array
from ltx2c.rectangles import Rectangle, first_race, spread

# NumPy's measure of work for one question. Slices of one array take a few steps; what takes more counts as shared.
_MOST_WORK = 10_000
_WHOLE_MEMORY = 1 << 62


class Use(NamedTuple):
    """An array that one job reads or writes."""

    job: int
    array: Array
    written: bool


def same_memory(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape and dtype are the same bytes in the same order."""
    return one is other or (one.ctypes.data == other.ctypes.data and _steps(one) == _steps(other))


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
    """A use that writes and one of another job that shares a byte with it, or None. For slices of matrices n log n."""
    for group in _by_address(use for use in uses if use.array.size):
        if len({use.job for use in group}) > 1 and any(use.written for use in group):
            race = _race_among(group)
            if race:
                return race
    return None


def _by_address(uses: Iterable[Use]) -> Iterator[list[Use]]:
    """Uses whose byte spans touch, directly or by others between them."""
    spans = sorted(((*_span(use.array), number, use) for number, use in enumerate(uses)), key=lambda span: span[:3])
    group: list[Use] = []
    reached = 0
    for low, high, _, use in spans:
        if group and low >= reached:
            yield group
            group = []
        group.append(use)
        reached = max(reached, high) if len(group) > 1 else high
    if group:
        yield group


def _race_among(uses: Sequence[Use]) -> tuple[Use, Use] | None:
    matrices = [_rows(use.array) for use in uses]
    pitches = {abs(matrix.strides[0]) for matrix in matrices if len(matrix) > 1}
    pitch = pitches.pop() if pitches else _WHOLE_MEMORY
    if pitches or any(matrix.strides[1] != matrix.itemsize or _wide(matrix, pitch) for matrix in matrices):
        return _race_pair_by_pair(uses)
    race = first_race(
        [
            Rectangle(*place, number, use.job, use.written)
            for number, (use, matrix) in enumerate(zip(uses, matrices, strict=True))
            for place in spread(_span(matrix)[0], matrix.shape[1] * matrix.itemsize, len(matrix), pitch)
        ]
    )
    return race and (uses[race[0]], uses[race[1]])


def _rows(array: Array) -> Array:
    """The matrix, or its transpose where that has adjacent elements in its rows."""
    return array.T if array.strides[1] != array.itemsize and array.strides[0] == array.itemsize else array


def _wide(matrix: Array, pitch: int) -> bool:
    return len(matrix) > 1 and matrix.shape[1] * matrix.itemsize > pitch


def _race_pair_by_pair(uses: Sequence[Use]) -> tuple[Use, Use] | None:
    """The same for arrays of any strides: each is compared with those that have not ended where it begins."""
    spans = sorted(((*_span(use.array), number, use) for number, use in enumerate(uses)), key=lambda span: span[:3])
    open_uses: dict[bool, list[tuple[int, int, Use]]] = {False: [], True: []}  # by written: heaps of (end, number, use)
    for low, high, number, use in spans:
        for heap in open_uses.values():
            while heap and heap[0][0] <= low:
                heapq.heappop(heap)
        others = open_uses[True] + open_uses[False] if use.written else open_uses[True]
        for _, _, other in others:
            if use.job != other.job and shares_memory(use.array, other.array):
                return (use, other) if use.written else (other, use)
        heapq.heappush(open_uses[use.written], (high, number, use))
    return None


def _span(array: Array) -> tuple[int, int]:
    """The first byte of an array and the one behind its last."""
    start: int = array.ctypes.data
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize
