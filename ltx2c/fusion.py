"""Fuse adapters into arrays: checks what it is given, and hands byte views to the kernels."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ltx2c import kernels
from ltx2c.errors import RefusedError, printable
from ltx2c.threads import resolve_threads

Array = npt.NDArray[Any]
Term = tuple[Array, Array, float]

# The kernels' numbers for dtypes (core.h).
_DTYPES: dict[np.dtype[Any], int] = {
    np.dtype(ml_dtypes.bfloat16): 0,
    np.dtype(np.float32): 1,
    np.dtype(np.float16): 2,
}

# Work between two looks for Ctrl-C: about a second on two fast cores.
_BATCH_MACS = 200_000_000_000


class Job(NamedTuple):
    """One weight of a list: ``out = weight + the terms' delta``; ``out`` may be the weight itself."""

    weight: Array
    terms: Sequence[Term]
    out: Array


def fuse_tensor(
    weight: Any, terms: Sequence[tuple[Any, Any, float]], *, out: Any = None, threads: int | None = None
) -> Any:
    """Fuse adapters into one weight, bit for bit as the contract says (see ``ltx2c.reference``).

    Args:
        weight: ``[out, in]``, bfloat16, float32 or float16: a NumPy array (bfloat16 from ml_dtypes) or a torch tensor
            on the CPU. Rows may be apart in memory; the elements of a row must be adjacent. Not copied.
        terms: ``(A [rank, in], B [out, rank], strength)`` in fusion order; bfloat16, float32 or float16 factors, which
            are rounded to bfloat16 first. Never modified. The first term scales B before the product, later ones
            scale the product: that is upstream's ``fuse_loras.py``.
        out: where the result goes: the weight itself, or an array of its shape and dtype that shares no memory with it
            or with any factor. A new one when None.
        threads: how many to use; by default what ``OMP_NUM_THREADS``, the affinity mask and the cgroup allow.

    Returns:
        ``out``, or a new array of the weight's kind (NumPy or torch). Without terms, the weight's bytes.

    Raises:
        RefusedError: shapes, ranks or dtypes do not fit, a strength is not a finite float32, ``out`` overlaps, is
            read-only or has another layout, or ``threads`` is below 1.
    """
    if out is None:
        out = _empty_like(weight)
    fuse_tensors([Job(weight, terms, out)], threads=threads)
    return out


def fuse_tensors(
    jobs: Iterable[tuple[Any, Sequence[tuple[Any, Any, float]], Any]], *, threads: int | None = None
) -> None:
    """Fuse many weights, as ``fuse_tensor`` does each, without waking the threads for every one.

    Args:
        jobs: ``(weight, terms, out)`` each, as for ``fuse_tensor``; ``out`` is required and may be the weight. No
            ``out`` may share memory with another job's arrays: jobs run at the same time.
        threads: as for ``fuse_tensor``.

    Raises:
        RefusedError: as for ``fuse_tensor``. All jobs are checked before the first is run.
    """
    checked = [_checked(weight, terms, out) for weight, terms, out in jobs]
    _refuse_shared_outputs(checked)
    fuse_jobs(checked, threads=threads)


def fuse_jobs(jobs: Iterable[Job], *, threads: int | None = None) -> list[int]:
    """What engines call: jobs of NumPy arrays that fit each other (the plan saw to that).

    Ctrl-C is noticed between batches of about a second's work, and jobs are taken from the iterable batch by batch.

    Returns:
        Per job, how many values of the result are inf or NaN where the weight's value was finite.
    """
    count = resolve_threads(threads)
    kernel = kernels.selected()
    nonfinite: list[int] = []
    for batch in _batches(jobs):
        nonfinite += _run(batch, kernel, count)
    return nonfinite


def _batches(jobs: Iterable[Job]) -> Iterable[list[Job]]:
    batch: list[Job] = []
    macs = 0
    for job in jobs:
        batch.append(job)
        macs += job.weight.size * sum(a.shape[0] for a, _, _ in job.terms)
        if macs >= _BATCH_MACS:
            yield batch
            batch, macs = [], 0
    if batch:
        yield batch


def _run(jobs: list[Job], kernel: str, threads: int) -> list[int]:
    fused = [job for job in jobs if job.terms and job.weight.size]
    structures = kernels.Jobs(len(fused), sum(len(job.terms) for job in fused))
    for weight, terms, out in fused:
        structures.add_job(_bytes(weight), _bytes(out), _DTYPES[weight.dtype], weight.shape[1])
        for a, b, strength in terms:
            a, b = _rows_adjacent(a), _rows_adjacent(b)
            structures.add_term(_bytes(a), _DTYPES[a.dtype], _bytes(b), _DTYPES[b.dtype], strength)
    for weight, terms, out in jobs:
        if not terms and out is not weight:
            out[...] = weight
    counts = iter(structures.run(kernel, threads))
    return [next(counts) if job.terms and job.weight.size else 0 for job in jobs]


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    """``[rows, columns]`` as bytes ``[rows, columns * itemsize]``, without a copy."""
    return array.view(np.uint8)


def _rows_adjacent(factor: Array) -> Array:
    """The factor itself if the elements of each row are adjacent, else a copy that is so."""
    return factor if factor.strides[1] == factor.itemsize else np.ascontiguousarray(factor)


# ---- Checks ---------------------------------------------------------------------------------------------------------


def _checked(weight: Any, terms: Sequence[tuple[Any, Any, float]], out: Any) -> Job:
    """The job as NumPy arrays over the same memory, or a refusal."""
    given = _array(weight, "weight")
    result = given if out is weight else _array(out, "out")
    _check_weight(given, result)
    checked = [_checked_term(index, given, result, *term) for index, term in enumerate(terms)]
    return Job(given, checked, result)


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
        raise RefusedError(f"out's rows overlap each other: strides {out.strides}", code="overlap")
    if not _same_memory(weight, out) and np.may_share_memory(weight, out):
        raise RefusedError("out overlaps the weight without being the weight", code="overlap")


def _same_memory(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.strides == other.strides


def _checked_term(index: int, weight: Array, out: Array, a: Any, b: Any, strength: float) -> Term:
    a, b = _array(a, f"A of term {index}"), _array(b, f"B of term {index}")
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
    if np.may_share_memory(out, a) or np.may_share_memory(out, b):
        raise RefusedError(f"out overlaps a factor of term {index}", code="overlap")
    return a, b, _checked_strength(index, strength)


def _checked_strength(index: int, strength: float) -> float:
    try:
        with np.errstate(over="ignore"):
            scale = float(np.float32(strength))
    except (TypeError, ValueError):
        scale = math.nan
    if not math.isfinite(scale):
        raise RefusedError(
            f"term {index}: strength must be a finite float32, not {printable(strength)}", code="strength"
        )
    return scale


def _refuse_shared_outputs(jobs: Sequence[Job]) -> None:
    """Jobs run at the same time: what one writes, no other may touch."""
    spans = sorted(
        (*_span(array), index, written)
        for index, job in enumerate(jobs)
        for array, written in _touched(job)
        if array.size
    )
    reach, writer = (0, -1), (0, -1)  # (end, job) of the widest read so far, and of the widest write
    for low, high, index, written in spans:
        clash = max(writer, reach if written else (0, -1))
        if low < clash[0] and clash[1] != index:
            raise RefusedError(
                f"out of job {index if written else clash[1]} overlaps an array of another", code="overlap"
            )
        reach = max(reach, (high, index))
        writer = max(writer, (high, index)) if written else writer


def _span(array: Array) -> tuple[int, int]:
    """The first byte of an array and the one behind its last."""
    start: int = array.ctypes.data
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


def _touched(job: Job) -> list[tuple[Array, bool]]:
    factors = [(factor, False) for a, b, _ in job.terms for factor in (a, b)]
    return [(job.out, True), (job.weight, False), *factors]


# ---- Kinds of array -------------------------------------------------------------------------------------------------


def _array(given: Any, name: str) -> Array:
    """A 2-D NumPy array over the memory of an array or a torch tensor, of a dtype there are kernels for."""
    array = _from_torch(given, name) if _is_torch(given) else given
    if not isinstance(array, np.ndarray):
        raise RefusedError(f"{name} is neither a NumPy array nor a torch tensor: {type(given).__name__}", code="type")
    if array.ndim != 2:
        raise RefusedError(f"{name} must have 2 dimensions, not {array.ndim}: {list(array.shape)}", code="dimensions")
    if array.dtype not in _DTYPES:
        raise RefusedError(f"{name} is {array.dtype}; bfloat16, float32 and float16 can be fused", code="dtype")
    if array.shape[1] == 1:  # one column's stride means nothing, and may be anything
        return np.lib.stride_tricks.as_strided(array, strides=(array.strides[0], array.itemsize))
    return array


def _is_torch(given: Any) -> bool:
    """Whether this is a torch tensor; torch is never imported here, a tensor's owner has done that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def _from_torch(tensor: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise RefusedError(f"{name} is not a dense tensor on the CPU: {tensor.layout}, {tensor.device}", code="device")
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    array = tensor.numpy()
    return array


def _empty_like(weight: Any) -> Any:
    if _is_torch(weight):
        return sys.modules["torch"].empty(weight.shape, dtype=weight.dtype)
    return np.empty(_array(weight, "weight").shape, weight.dtype)
