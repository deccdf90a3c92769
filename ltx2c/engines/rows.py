"""Fusing rows of weights that are in memory: every kind of delta, into whole weights or parts of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.arithmetic import F32, LTX, LTX_WIDE, Arithmetic
from ltx2c.dora import rescale
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.plan.plan import AppliedDelta
from ltx2c.reference import BFLOAT16, CANONICAL_NAN
from ltx2c.terms import FullTerm, Term

Array = npt.NDArray[Any]


class Loaded(NamedTuple):
    """One delta of a weight, read, and how it enters."""

    delta: LoadedDelta
    applied: AppliedDelta


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


def fuse_rows(parts: Iterable[Rows], threads: int | None, arithmetic: Arithmetic = LTX) -> list[int]:
    """Fuse parts of weights in place.

    Returns:
        Per part, how many values are infinite or NaN where they were finite.
    """
    steps = [list(_steps(part, threads, arithmetic)) for part in parts]
    found = iter(fuse_jobs([step.job for each in steps for step in each if step.job is not None], threads=threads))
    return [sum(step.finish(0 if step.job is None else next(found)) for step in each) for each in steps]


class _Step(NamedTuple):
    """What is done to some rows of one weight.

    Attributes:
        target: the rows.
        job: what the kernels do: over the target, or over a float32 copy of a target that is rescaled. None where it
            is replaced.
        values: what is stored after that; None where the job has stored its result.
        lengths: DoRA's, of these rows or of all columns.
        last: the delta that rescales.
        through_bf16: whether what is rescaled is rounded to bfloat16 before it is stored.
    """

    target: Array
    job: Job | None
    values: Array | None = None
    lengths: Array | None = None
    last: Loaded | None = None
    through_bf16: bool = False

    def finish(self, nonfinite: int) -> int:
        """Store what is not yet; how many values are infinite or NaN where they were finite."""
        if self.values is None:
            return nonfinite
        if self.lengths is not None and self.last is not None:
            delta, applied = self.last
            rescale(self.values, self.lengths, by_column=delta.by_column, step=applied.step)
        return _store(self.target, self.values.astype(BFLOAT16) if self.through_bf16 else self.values)


def _steps(part: Rows, threads: int | None, arithmetic: Arithmetic) -> Iterator[_Step]:
    """The steps of one part: of each range of rows that the same deltas enter."""
    for begin, end, deltas in _ranges(part):
        target = part.values[begin - part.first : end - part.first]
        terms = [term for one in deltas for term in _terms(one, begin, end, threads)]
        last = deltas[-1]
        lengths = last.delta.lengths
        if last.delta.replaces:
            yield _Step(target, None, _only_values(terms))
        elif lengths is not None:
            wide = target.astype(np.float32)
            job = Job(wide, terms, wide, F32 if arithmetic is F32 else LTX_WIDE)
            own = lengths if last.delta.by_column else lengths[begin:end]
            yield _Step(target, job, wide, own, last, through_bf16=arithmetic is LTX)
        else:
            yield _Step(target, Job(target, terms, target, arithmetic))


def _only_values(terms: Sequence[Term]) -> Array:
    (term,) = terms
    assert isinstance(term, FullTerm)
    values: Array = term.d
    return values


def _ranges(part: Rows) -> Iterator[tuple[int, int, list[Loaded]]]:
    """Ranges of the weight's rows within a part, each with the deltas that enter it; none without any."""
    first, last = part.first, part.first + len(part.values)
    spans = [_span(one.applied, first, last) for one in part.deltas]
    cuts = sorted({cut for span in spans for cut in span})
    for begin, end in itertools.pairwise(cuts):
        deltas = [one for one, span in zip(part.deltas, spans, strict=True) if span[0] <= begin and end <= span[1]]
        if deltas:
            yield begin, end, deltas


def _span(applied: AppliedDelta, first: int, last: int) -> tuple[int, int]:
    """The rows of the weight that a delta enters, of those from ``first`` to ``last``."""
    if applied.rows is None:
        return first, last
    begin, end = applied.at, applied.at + applied.rows[1] - applied.rows[0]
    return min(max(begin, first), last), max(min(end, last), first)


def _terms(one: Loaded, begin: int, end: int, threads: int | None) -> Sequence[Term]:
    shift = (one.applied.rows or (0, 0))[0] - one.applied.at
    return one.delta.terms(one.applied.effective_strength, slice(begin + shift, end + shift), threads=threads)


def _store(target: Array, values: Array) -> int:
    """Round ``values`` to the target's dtype and store them; how many are not finite where the target was."""
    with np.errstate(all="ignore"):
        rounded = values.astype(target.dtype)
        new = ~np.isfinite(rounded.astype(np.float32))
    nonfinite = int(np.count_nonzero(new & np.isfinite(target.astype(np.float32)))) if new.any() else 0
    target[...] = rounded
    if new.any():
        bits = CANONICAL_NAN[np.dtype(target.dtype)]
        target.view(bits.dtype)[np.isnan(target)] = bits
    return nonfinite
