"""Byte ranges of many slices of one array as rectangles, and which of them meet, in n log n.

Rows of a slice are ``pitch`` bytes apart. With memory written down in lines of ``pitch`` bytes, the slice is a
rectangle of lines and columns there, or several where it passes a line's end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Rectangle(NamedTuple):
    """Lines ``top`` to ``bottom``, columns ``left`` to ``right`` (ends excluded), of the use numbered ``use``."""

    top: int
    bottom: int
    left: int
    right: int
    use: int
    job: int
    written: bool


def spread(start: int, width: int, rows: int, pitch: int) -> Iterator[tuple[int, int, int, int]]:
    """``(top, bottom, left, right)`` of the rectangles of ``rows`` rows of ``width`` bytes: up to ``pitch``, or a row.

    Args:
        start: address of the first byte.
    """
    if width == pitch:  # row touches row
        width, rows = width * rows, 1
    line, left = divmod(start, pitch)
    if rows > 1:
        yield line, line + rows, left, min(left + width, pitch)
        if left + width > pitch:
            yield line + 1, line + 1 + rows, 0, left + width - pitch
        return
    last, right = divmod(start + width, pitch)
    if line == last:
        yield line, line + 1, left, right
        return
    yield line, line + 1, left, pitch
    if line + 1 < last:
        yield line + 1, last, 0, pitch
    if right:
        yield last, last + 1, 0, right


def first_race(rectangles: Sequence[Rectangle]) -> tuple[int, int] | None:
    """The use of a rectangle that is written and that of one of another job which it meets, or None.

    A line sweeps from top to bottom. The rectangles on it are in two sets, written and only read; each new one is
    looked up in both, or, if it is only read itself, among the written.
    """
    rectangles = sorted(rectangles)
    columns = sorted(rectangles, key=lambda rectangle: rectangle.left)
    lefts = [rectangle.left for rectangle in columns]
    place = {id(rectangle): at for at, rectangle in enumerate(columns)}
    sets = {written: _Spans([rectangle.right for rectangle in columns]) for written in (False, True)}
    ends: list[tuple[int, int]] = []  # bottom, place: of those on the line
    of_job: dict[int, set[int]] = {}  # places on the line, by job
    for new in rectangles:
        while ends and ends[0][0] <= new.top:
            gone = heapq.heappop(ends)[1]
            sets[columns[gone].written].remove(gone)
            of_job[columns[gone].job].discard(gone)
        own = of_job.setdefault(new.job, set())
        for at in own:
            sets[columns[at].written].remove(at)
        behind = bisect_left(lefts, new.right)  # those from here on begin to the right of it
        for written in (True, False) if new.written else (True,):
            met = sets[written].reaching(new.left, behind)
            if met is not None:
                return (new.use, columns[met].use) if new.written else (columns[met].use, new.use)
        own.add(place[id(new)])
        for at in own:
            sets[columns[at].written].add(at)
        heapq.heappush(ends, (new.bottom, place[id(new)]))
    return None


class _Spans:
    """Column spans that come and go, numbered by where they begin: a tree of the farthest end below each node."""

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = ends
        self._leaves = 1 << max(0, len(ends) - 1).bit_length()
        self._farthest = [-1] * (2 * self._leaves)

    def add(self, number: int) -> None:
        self._set(number, self._ends[number])

    def remove(self, number: int) -> None:
        self._set(number, -1)

    def _set(self, number: int, end: int) -> None:
        tree, node = self._farthest, self._leaves + number
        tree[node] = end
        while node := node // 2:
            farther = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == farther:
                return
            tree[node] = farther

    def reaching(self, column: int, behind: int) -> int | None:
        """One of those numbered below ``behind`` that ends beyond ``column``."""
        tree = self._farthest
        low, high = self._leaves, self._leaves + behind
        while low < high:
            if high % 2:
                high -= 1
                if tree[high] > column:
                    return self._leaf(high, column)
            if low % 2:  # the root
                if tree[low] > column:
                    return self._leaf(low, column)
                low += 1
            low, high = low // 2, high // 2
        return None

    def _leaf(self, node: int, column: int) -> int:
        while node < self._leaves:
            node = 2 * node if self._farthest[2 * node] > column else 2 * node + 1
        return node - self._leaves
