"""Fusing rows of weights that are in memory: every kind of delta, into whole weights or parts of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.arithmetic import LTX, Arithmetic
from ltx2c.arrays import numbered
from ltx2c.dora import rescale
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.kernels import codecs
from ltx2c.kernels.elementwise import store
from ltx2c.terms import FullTerm, KernelTerm
from ltx2c.threads import resolve_threads

Array = npt.NDArray[Any]

# Float32 values that are made for one range of rows and used at once, for each thread.
ALONE_BYTES = 2 << 20


class Placed(Protocol):
    """How a delta enters a weight: the part of ``ltx2c.plan.plan.AppliedDelta`` that fusing needs."""

    @property
    def effective_strength(self) -> float: ...
    @property
    def rows(self) -> tuple[int, int] | None: ...
    @property
    def at(self) -> int: ...
    @property
    def step(self) -> float | None: ...


class Loaded(NamedTuple):
    """One delta of a weight, read, and how it enters."""

    delta: LoadedDelta
    applied: Placed


class Rows(NamedTuple):
    """Some rows of one weight, fused where they lie.

    Attributes:
        values: ``[rows, the rest]``.
        first: which row of the weight the first is.
        deltas: of the weight, in fusion order.
    """

    values: Array
    first: int
    deltas: Sequence[Loaded]


def fuse_rows(parts: Sequence[Rows], threads: int | None, arithmetic: Arithmetic = LTX) -> list[int]:
    """Fuse parts of weights in place.

    Returns:
        Per part, how many values are infinite or NaN where they were finite.
    """
    count = resolve_threads(threads)
    nonfinite = [0] * len(parts)
    together: list[tuple[int, Job]] = []
    for index, part in enumerate(parts):
        for some in _ranges(part):
            if some.alone:
                nonfinite[index] += sum(_fuse_alone(few, count, arithmetic) for few in _cut(some, count))
            else:
                together.append((index, Job(some.target, some.terms(count), some.target, arithmetic)))
    for (index, _), found in zip(together, fuse_jobs([job for _, job in together], threads=count), strict=True):
        nonfinite[index] += found
    return nonfinite


class _Range(NamedTuple):
    """Rows of a weight, from ``begin`` on, that the same deltas enter; ``target`` is where they lie."""

    target: Array
    begin: int
    deltas: Sequence[Loaded]

    @property
    def last(self) -> LoadedDelta:
        """The delta that replaces or rescales, if any does."""
        return self.deltas[-1].delta

    @property
    def alone(self) -> bool:
        """Whether there is more to do than the kernels do, which is done before the next range is looked at."""
        return self.last.replaces or self.last.lengths is not None or any(one.delta.computed for one in self.deltas)

    def terms(self, threads: int) -> list[KernelTerm]:
        """What enters these rows."""
        end = self.begin + len(self.target)
        return [term for one in self.deltas for term in _terms(one, self.begin, end, threads)]


def _cut(some: _Range, threads: int) -> Iterator[_Range]:
    """The same rows, few enough at a time to stay in cache; all of them where columns are rescaled."""
    rows = len(some.target)
    step = rows if some.last.by_column else max(1, threads * ALONE_BYTES // (4 * max(1, some.target.shape[1])))
    for at in range(0, rows, step):
        yield _Range(some.target[at : at + step], some.begin + at, some.deltas)


def _fuse_alone(some: _Range, threads: int, arithmetic: Arithmetic) -> int:
    """Fuse one range; how many values are infinite or NaN where they were finite."""
    target, last, terms = some.target, some.last, some.terms(threads)
    if last.replaces:
        return _store(target, _only_values(terms), False, threads)
    if last.lengths is None:
        (count,) = fuse_jobs([Job(target, terms, target, arithmetic)], threads=threads)
        return count
    wide = np.empty(target.shape, np.float32)
    codecs.cast(*numbered(target), *numbered(wide), target.shape[1], threads)
    fuse_jobs([Job(wide, terms, wide, arithmetic.unrounded)], threads=threads)
    lengths = last.lengths if last.by_column else last.lengths[some.begin : some.begin + len(target)]
    rescale(wide, lengths, by_column=last.by_column, step=some.deltas[-1].applied.step, threads=threads)
    return _store(target, wide, arithmetic.rounds_sum, threads)


def _only_values(terms: Sequence[KernelTerm]) -> Array:
    (term,) = terms
    assert isinstance(term, FullTerm)
    values: Array = term.d
    return values


def _ranges(part: Rows) -> Iterator[_Range]:
    """Ranges of the weight's rows within a part, each with the deltas that enter it; none without any."""
    first, last = part.first, part.first + len(part.values)
    spans = [_span(one.applied, first, last) for one in part.deltas]
    cuts = sorted({cut for span in spans for cut in span})
    for begin, end in itertools.pairwise(cuts):
        deltas = [one for one, span in zip(part.deltas, spans, strict=True) if span[0] <= begin and end <= span[1]]
        if deltas:
            yield _Range(part.values[begin - first : end - first], begin, deltas)


def _span(applied: Placed, first: int, last: int) -> tuple[int, int]:
    """The rows of the weight that a delta enters, of those from ``first`` to ``last``."""
    if applied.rows is None:
        return first, last
    begin, end = applied.at, applied.at + applied.rows[1] - applied.rows[0]
    return min(max(begin, first), last), max(min(end, last), first)


def _terms(one: Loaded, begin: int, end: int, threads: int) -> Sequence[KernelTerm]:
    shift = (one.applied.rows or (0, 0))[0] - one.applied.at
    return one.delta.terms(one.applied.effective_strength, slice(begin + shift, end + shift), threads=threads)


def _store(target: Array, values: Array, through_bf16: bool, threads: int) -> int:
    """Round ``values`` to the target's dtype and store them; how many are not finite where the target was."""
    wide = np.ascontiguousarray(values, np.float32)
    return store(wide, *numbered(target), through_bf16, threads)
