"""Fuse adapters into arrays: checks what it is given, and hands it to the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ltx2c import kernels
from ltx2c.arithmetic import LTX, Arithmetic, arithmetic_named
from ltx2c.arrays import KERNEL_DTYPES, Array, as_array, empty_like, mark_written
from ltx2c.crew import current_stop
from ltx2c.errors import RefusedError
from ltx2c.overlaps import Use, find_race, same_memory, shares_memory
from ltx2c.strength import check_strength
from ltx2c.terms import FullTerm, KernelTerm, KroneckerTerm, Term
from ltx2c.threads import resolve_threads

__all__ = ["FullTerm", "Job", "Term", "fuse_jobs", "fuse_tensor", "fuse_tensors"]

# About a second on two cores with AVX512_BF16. It bounds what is held at once; kernels look for Ctrl-C more often.
_BATCH_MACS = 200_000_000_000

# Least work that is worth one more thread, a tenth of a millisecond or so: below it a second one gains nothing where it
# is awake, and costs a time slice where something else has its core. A value of the weight costs as much as 8 products.
_THREAD_MACS = 4_000_000
_VALUE_MACS = 8

_FULL = (FullTerm, KroneckerTerm)


class Job(NamedTuple):
    """One weight of a list: ``out = weight + the terms' delta``; ``out`` may be the weight itself."""

    weight: Array
    terms: Sequence[KernelTerm]
    out: Array
    arithmetic: Arithmetic = LTX

    @property
    def macs(self) -> int:
        """Multiply-adds: of its products, and one per value of a full term."""
        return self.weight.size * sum([1 if isinstance(term, _FULL) else len(term[0]) for term in self.terms])


def fuse_tensor(
    weight: Any,
    terms: Sequence[tuple[Any, Any, float] | FullTerm],
    *,
    out: Any = None,
    arithmetic: str | Arithmetic = LTX,
    threads: int | None = None,
) -> Any:
    """Fuse adapters into one weight, bit for bit as the contract says (see ``ltx2c.reference``).

    Args:
        weight: ``[out, in]``, bfloat16, float32 or float16: a NumPy array (bfloat16 from ml_dtypes) or a torch tensor
            on the CPU. Rows may be apart in memory; the elements of a row must be adjacent. Not copied.
        terms: in fusion order, each ``(A [rank, in], B [out, rank], strength)`` or ``FullTerm(D [out, in], strength)``,
            of bfloat16, float32 or float16. Never modified.
        out: where the result goes: the weight itself, or an array of its shape and dtype that shares no memory with it
            or with any term. A new one when None. Autograd does not record the fusion: a torch parameter may be
            fused in place while it requires a gradient, and a backward pass that needs its old values says so.
        arithmetic: ``"ltx"`` rounds factors, aggregate and sum through bfloat16; its first term scales B before the
            product, later ones scale the product: that is upstream's ``fuse_loras.py``. ``"f32"`` uses factors as they
            are stored, sums in float32 and rounds once, to the weight's dtype.
        threads: how many to use; by default what ``OMP_NUM_THREADS``, the affinity mask and the cgroup allow, and a
            weight too small to be worth more than the calling thread has that alone.

    Returns:
        ``out``, or a new array of the weight's kind (NumPy or torch). Without terms, the weight's bytes.

    Raises:
        RefusedError: shapes, ranks or dtypes do not fit, a strength is not a finite float32, ``out`` overlaps, is
            read-only or has another layout, there is no such arithmetic, or ``threads`` is below 1 or above 4096.
    """
    if out is None:
        out = empty_like(weight)
    fuse_tensors([(weight, terms, out)], arithmetic=arithmetic, threads=threads)
    return out


def fuse_tensors(
    jobs: Iterable[tuple[Any, Sequence[tuple[Any, Any, float] | FullTerm], Any]],
    *,
    arithmetic: str | Arithmetic = LTX,
    threads: int | None = None,
) -> None:
    """Fuse many weights, as ``fuse_tensor`` does each, without waking the threads for every one.

    Args:
        jobs: ``(weight, terms, out)`` each, as for ``fuse_tensor``; ``out`` is required and may be the weight. No
            ``out`` may share memory with another job's arrays: jobs run at the same time.
        arithmetic, threads: as for ``fuse_tensor``.

    Raises:
        RefusedError: as for ``fuse_tensor``. All jobs are checked before the first is run.
    """
    jobs = list(jobs)
    chosen = arithmetic_named(arithmetic)
    checked = [checked_job(weight, terms, out, chosen) for weight, terms, out in jobs]
    _refuse_shared_outputs(checked)
    for _, _, out in jobs:
        mark_written(out)
    fuse_jobs(checked, threads=threads)


def fuse_jobs(jobs: Iterable[Job], *, threads: int | None = None) -> list[int]:
    """What engines call: jobs of NumPy arrays that fit each other (the plan saw to that).

    Jobs are taken from the iterable batch by batch. Ctrl-C is noticed within a tenth of a second, and leaves the
    outs of a batch that is being computed unfinished.

    Returns:
        Per job, how many values of the result are inf or NaN where the weight's value was finite.
    """
    count = None if threads is None else resolve_threads(threads)
    kernel = kernels.selected()
    nonfinite: list[int] = []
    for batch, work in _batches(jobs):
        nonfinite += _run(batch, kernel, count or _threads_worth(work))
    return nonfinite


def _threads_worth(work: int) -> int:
    """The machine's share of this process or fewer; not looked up, as that takes a while, where one will do."""
    worthwhile = work // _THREAD_MACS
    return min(worthwhile, resolve_threads(None)) if worthwhile > 1 else 1


def _batches(jobs: Iterable[Job]) -> Iterable[tuple[list[Job], int]]:
    """Jobs that run together, and their work in multiply-adds."""
    batch: list[Job] = []
    work = 0
    for job in jobs:
        batch.append(job)
        work += job.macs + _VALUE_MACS * job.weight.size
        if work >= _BATCH_MACS:
            yield batch, work
            batch, work = [], 0
    if batch:
        yield batch, work


def _run(jobs: list[Job], kernel: str, threads: int) -> list[int]:
    work = [job for job in jobs if job.terms and job.weight.size]
    structures = kernels.Jobs(len(work), sum([len(job.terms) for job in work]))
    for weight, terms, out, arithmetic in work:
        structures.add_job(weight, out, KERNEL_DTYPES[weight.dtype], arithmetic.code)
        for term in terms:
            _add_term(structures, term)
    for job in jobs:
        if not job.terms and job.out is not job.weight:
            job.out[...] = job.weight
    counts = structures.run(kernel, threads, current_stop())
    if len(work) == len(jobs):
        return counts
    left = iter(counts)
    return [next(left) if job.terms and job.weight.size else 0 for job in jobs]


def _add_term(structures: kernels.Jobs, term: KernelTerm) -> None:
    if isinstance(term, FullTerm):
        d = _rows_adjacent(term.d)
        structures.add_full_term(d, KERNEL_DTYPES[d.dtype], term.strength)
    elif isinstance(term, KroneckerTerm):
        structures.add_kronecker_term(*term)
    else:
        a, b = _rows_adjacent(term[0]), _rows_adjacent(term[1])
        structures.add_term(a, KERNEL_DTYPES[a.dtype], b, KERNEL_DTYPES[b.dtype], term[2])


def _rows_adjacent(factor: Array) -> Array:
    """The factor or difference itself if the elements of each row are adjacent, else a copy that is so."""
    return factor if factor.strides[1] == factor.itemsize else np.ascontiguousarray(factor)


# ---- Checks ---------------------------------------------------------------------------------------------------------


def checked_job(
    weight: Any, terms: Sequence[tuple[Any, Any, float] | FullTerm], out: Any, arithmetic: Arithmetic
) -> Job:
    """The job of one weight as NumPy arrays over the same memory. Raises as ``fuse_tensor`` does."""
    given = as_array(weight, "weight")
    result = given if out is weight else as_array(out, "out")
    _check_weight(given, result)
    checked: list[Term] = [
        _checked_full(index, given, result, term)
        if isinstance(term, FullTerm)
        else _checked_pair(index, given, result, *term)
        for index, term in enumerate(terms)
    ]
    return Job(given, checked, result, arithmetic)


def _check_weight(weight: Array, out: Array) -> None:
    if out.shape != weight.shape or out.dtype != weight.dtype:
        raise RefusedError(
            f"out is {out.dtype} {list(out.shape)}, but the weight is {weight.dtype} {list(weight.shape)}",
            code="out-mismatch",
        )
    for name, array in (("weight", weight), ("out", out)):
        if array.size and array.strides[1] != array.itemsize:
            raise RefusedError(
                f"the elements of {name}'s rows are not adjacent in memory: strides {array.strides}", code="layout"
            )
    if not out.flags.writeable:
        raise RefusedError("out is read-only", code="read-only")
    if abs(out.strides[0]) < out.shape[1] * out.itemsize and out.shape[0] > 1:
        raise RefusedError(f"out's rows overlap each other: strides {out.strides}", code="overlapping-rows")
    if out is not weight and shares_memory(weight, out) and not same_memory(weight, out):
        raise RefusedError("out overlaps the weight without being the weight", code="overlap")


def _checked_pair(index: int, weight: Array, out: Array, a: Any, b: Any, strength: float) -> Term:
    a, b = as_array(a, f"A of term {index}"), as_array(b, f"B of term {index}")
    if a.shape[0] != b.shape[1]:
        raise RefusedError(
            f"term {index}: A {list(a.shape)} has rank {a.shape[0]}, but B {list(b.shape)} has rank {b.shape[1]}",
            code="rank-mismatch",
        )
    if (b.shape[0], a.shape[1]) != weight.shape:
        raise RefusedError(
            f"term {index}: B {list(b.shape)} times A {list(a.shape)} does not give the weight's shape "
            f"{list(weight.shape)}",
            code="shape-mismatch",
        )
    if shares_memory(out, a) or shares_memory(out, b):
        raise RefusedError(f"out overlaps a factor of term {index}", code="overlap")
    return a, b, check_strength(strength, f"term {index}")


def _checked_full(index: int, weight: Array, out: Array, term: FullTerm) -> Term:
    d = as_array(term.d, f"D of term {index}")
    if d.shape != weight.shape:
        raise RefusedError(
            f"term {index}: D {list(d.shape)} does not have the weight's shape {list(weight.shape)}",
            code="shape-mismatch",
        )
    if shares_memory(out, d):
        raise RefusedError(f"out overlaps D of term {index}", code="overlap")
    return FullTerm(d, check_strength(term.strength, f"term {index}"))


def _refuse_shared_outputs(jobs: Sequence[Job]) -> None:
    """Jobs run at the same time: what one writes, no other may touch."""
    race = race_among(jobs)
    if race:
        writer, other = race
        verb = "writes" if other.written else "reads"
        raise RefusedError(f"out of job {writer.job} overlaps an array that job {other.job} {verb}", code="overlap")


def race_among(jobs: Sequence[Job]) -> tuple[Use, Use] | None:
    """What one of these jobs writes and another touches, or None: only then may they run at the same time."""
    if len(jobs) == 1:  # nothing to race with, and a small weight's fusion takes less time than the search
        return None
    return find_race(use for index, job in enumerate(jobs) for use in _uses(index, job))


def _uses(index: int, job: Job) -> list[Use]:
    factors = [Use(index, part, False) for term in job.terms for part in term if isinstance(part, np.ndarray)]
    read = [] if same_memory(job.weight, job.out) else [Use(index, job.weight, False)]
    return [Use(index, job.out, True), *read, *factors]
