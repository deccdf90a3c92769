"""Merge the adapters of a PEFT model into its base, in memory: ``merge_and_unload`` by this library's kernels.

Neither PEFT nor torch is imported here: whoever has a model to merge has done that.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ltx2c.arithmetic import F32
from ltx2c.arrays import mark_written
from ltx2c.engines.rows import Loaded, Rows, fuse_rows
from ltx2c.errors import RefusedError, printable
from ltx2c.fusion import Job, checked_job, race_among
from ltx2c.peft.model import Merge, merges_of, tuner_of
from ltx2c.strength import check_strength
from ltx2c.terms import KroneckerTerm

__all__ = ["merge"]


def merge(model: Any, *, threads: int | None = None) -> Any:
    """Merge the active adapters of a PEFT model into its base weights, and return the base model without them.

    What ``model.merge_and_unload()`` does, under the ``f32`` arithmetic (see ``ltx2c.reference``): per adapter, in the
    order in which they are active, each weight in its place becomes ``f32(W + f32(scaling * D))``, rounded once to the
    weight's dtype; D is ``B @ A``, LoHa's or LoKr's (``ltx2c.adapters.deltas``). With DoRA the rows of that sum are
    brought to their magnitudes before it is rounded (``ltx2c.dora``). An adapter's low-rank deltas are fused in one
    parallel region. PEFT leaves the order of sums to torch, and rounds the delta of bfloat16 and float16 adapters to
    their dtype before it is added; so results are equal where every order of summation is exact, and otherwise differ
    by a rounding in some elements.

    Adapters that are merged already stay as they are, and whether adapters are disabled makes no difference, as in
    PEFT. ``modules_to_save`` take their modules' places.

    Args:
        model: a ``peft.PeftModel`` with LoRA, LoHa or LoKr adapters, or its ``base_model``, in memory on the CPU:
            ``lora.Linear`` (``fan_in_fan_out`` and ``lora_bias`` too), ``lora.Embedding`` and ``lora.Conv1d`` to
            ``Conv3d`` without groups, with DoRA where that is the first adapter of its module; ``loha`` and ``lokr``
            ``Linear``, ``Conv2d`` and, of LoHa, ``Conv1d``; of bfloat16, float32 or float16. It must not be used any
            more: its base model is the result.
        threads: how many to use; by default what this process may use.

    Returns:
        The base model.

    Raises:
        RefusedError: not such a model (``peft-model``, ``peft-version``); a module of another kind, quantised, or with
            another variant than DoRA (``peft-kind``), of a dtype, shape or device that cannot be fused, or whose weight
            overlaps another's, named in the message. All are found before the first weight changes.
    """
    tuner = tuner_of(model)
    merges = merges_of(tuner)
    rounds = [_checked(merges_at_once) for merges_at_once in _rounds(merges)]
    nonfinite = sum(_run(*merges_at_once, threads=threads) for merges_at_once in rounds)
    base = tuner.merge_and_unload(adapter_names=[])  # no adapter is left to merge: PEFT's own way to take them off
    for merged in merges:
        merged.mark()
    if nonfinite:
        warnings.warn(f"{nonfinite} weights are infinite or NaN after the merge and were not before", stacklevel=2)
    return base


def _run(merges: list[Merge], parts: list[Rows], *, threads: int | None) -> int:
    """Fuse what can be fused at the same time; how many values became infinite or NaN."""
    for merged in merges:
        mark_written(merged.parameter)
    return sum(fuse_rows(parts, threads, F32))


def _rounds(merges: list[Merge]) -> Iterator[list[Merge]]:
    """The n-th merge of every tensor together, each tensor's in PEFT's order: a round per adapter.

    Modules with one tensor in common, such as tied embeddings, take turns: PEFT merges into it as often.
    """
    of_tensor: dict[int, list[Merge]] = defaultdict(list)
    for merged in merges:
        of_tensor[merged.parameter.data_ptr()].append(merged)
    for number in range(max(map(len, of_tensor.values()), default=0)):
        yield [queue[number] for queue in of_tensor.values() if number < len(queue)]


def _checked(merges: list[Merge]) -> tuple[list[Merge], list[Rows]]:
    """What is fused in a round, or a refusal that names the module."""
    jobs = [_checked_one(merged) for merged in merges]
    race = race_among(jobs)
    if race:
        one, other = (printable(merges[use.job].module_name) for use in race)
        raise RefusedError(f"{one}: its weight overlaps a tensor of {other} without being it", code="overlap")
    return merges, [
        Rows(job.out, 0, [Loaded(merged.change.delta, merged.change)]) for merged, job in zip(merges, jobs, strict=True)
    ]


def _checked_one(merged: Merge) -> Job:
    change = merged.change
    with merged.named():
        check_strength(change.effective_strength, "scaling")
        # A difference that is yet to be computed has no arrays to check: its shape was, with its factors.
        terms = [] if change.delta.computed else change.delta.terms(change.effective_strength)
        stored = [term for term in terms if not isinstance(term, KroneckerTerm)]
        job = checked_job(change.target, stored, change.target, F32)
        if (change.delta.computed or change.delta.lengths is not None) and not job.out.flags.c_contiguous:
            raise RefusedError(f"the weight's rows are apart in memory: strides {job.out.strides}", code="layout")
        return job
