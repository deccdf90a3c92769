"""Which weights a state fuses, with which deltas at which strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ltx2c.adapters import Adapter, Delta
from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX, arithmetic_named
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.layouts import StoredWeight, check_companions, check_none_foreign, converted, detect, to_convert
from ltx2c.plan.applied import applied_delta, check_together
from ltx2c.plan.block_weights import BlockWeights, Factors
from ltx2c.plan.checks import (
    check_base,
    check_distinct,
    check_reference_scales,
    rounding_notes,
    version_notes,
)
from ltx2c.plan.match import Matches, OnUnmatched, UnmatchedKey, check_fits, check_on_unmatched, match_deltas
from ltx2c.plan.opened import AdapterArgument, BaseArgument, Sources, opened
from ltx2c.plan.options import Options
from ltx2c.plan.plan import AppliedDelta, Deltas, Fusions, Plan, PlannedAdapter
from ltx2c.plan.sources import Source
from ltx2c.plan.written import written_components, written_tensors
from ltx2c.strength import check_strength


def plan_fuse(
    base: BaseArgument,
    adapters: Sequence[AdapterArgument],
    *,
    arithmetic: str = LTX.name,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    out_dtype: str | None = None,
    keep: Sequence[str] = (),
) -> Plan:
    """Plan the fusion of adapters into a base, from headers alone. Reads no weight, writes nothing.

    Args:
        base: a ``.safetensors`` file, a model's or a pipeline's folder, an index, a hub name, or an open checkpoint.
        adapters: ``(path or open adapter, strength)`` in fusion order. One of strength 0 beside others takes part.
        arithmetic: ``"ltx"``, upstream LTX's, which rounds through bfloat16, or ``"f32"``.
        unmatched: what to do about a delta whose module the base does not have: ``"error"`` refuses, ``"warn"`` goes
            on without it and lists it in the plan. An adapter of which nothing matches is refused either way.
        nvfp4_scales: the order of NVFP4's block scales in the base, ``"swizzled"`` or ``"linear"``, where it does not
            say so itself.
        alpha: of adapters given by path, as for ``Adapter.open``: ``"ignore"`` takes strengths alone, ``"file"``
            also an alpha in metadata that otherwise is only noted.
        block_weights: ``(pattern, factor)``: strengths are multiplied by the factors of all patterns, globs over the
            base's module names (keys without ``.weight``), that fit the module.
        variant: of a folder given as the base that holds weights of several, which: ``"fp16"``.
        out_dtype: how the result stores weights, where otherwise than the base: ``"bf16"``, ``"f16"`` or ``"f32"``, of
            all that are quantised, whose scales leave the file; ``"fp8"`` or ``"fp8-scaled"``, of plain ones of linear
            layers (norms, biases, embeddings stay). Fused or not: under ``ltx`` through bfloat16.
        keep: globs over the base's keys; weights that one fits are stored as the base has them.

    Raises:
        OSError: as the system raised it.
        RefusedError: whatever stands against the fuse, naming files, keys and both values.
    """
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    with opened(base, adapters, alpha=alpha, variant=variant) as (sources, strengths):
        return plan_sources(sources, strengths, options)


def plan_sources(
    sources: Sources, strengths: Sequence[float], options: Options, factors: Factors | None = None
) -> Plan:
    """``plan_fuse`` of what is open already, at one strength per adapter.

    ``factors``: those of the options, where several plans share them and the caller checks that each is used in one.
    """
    arithmetic = arithmetic_named(options.arithmetic)
    check_on_unmatched(options.unmatched)
    base, adapters = sources.base, sources.adapters
    strengths = [check_strength(strength, adapter.path) for adapter, strength in zip(adapters, strengths, strict=True)]
    check_base(base)
    check_companions(base.tensors)
    check_distinct(adapters)
    check_reference_scales(adapters)
    matches = [match_deltas(base, adapter, options.unmatched) for adapter in adapters]
    origins = [Source.of(adapter.checkpoint) for adapter in adapters]
    stored = _stored(base, adapters, matches, options)
    shared, factors = factors is not None, factors or Factors(options.block_weights)
    fusions = _fusions(base, matches, origins, strengths, factors)
    if not shared:
        factors.check_used(base)
    weights = _weights(base, stored, fusions, options)
    written = {key: converted(one, options.out_dtype, options.keep) for key, one in weights.items()}
    sources_written = {key for one in written_components(base, weights) for key in one.tensors}
    tensors = [one for one in written_tensors(base, weights, written) if one.source.key in sources_written]
    return Plan(
        base=Source.of(base),
        adapters=tuple(
            PlannedAdapter(origin, strength, len(adapter.deltas), match.matched if fusions else 0)
            for adapter, origin, strength, match in zip(adapters, origins, strengths, matches, strict=True)
        ),
        fusions=MappingProxyType(fusions),
        weights=MappingProxyType(weights),
        arithmetic=arithmetic,
        options=MappingProxyType(options.given()),
        unmatched=tuple(
            UnmatchedKey(adapter.path, key)
            for adapter, match in zip(adapters, matches, strict=True)
            for key in match.unmatched
        ),
        notes=(
            *_notes(base, adapters, matches),
            *rounding_notes(arithmetic, weights.values(), _factors(fusions, matches)),
        ),
        tensors=len(tensors),
        bytes_written=sum(tensor.nbytes for tensor in tensors),
        base_bytes=sum(base.tensors[key].nbytes for key in sources_written),
    )


def _stored(
    base: Checkpoint, adapters: Sequence[Adapter], matches: Sequence[Matches], options: Options
) -> dict[str, StoredWeight]:
    """How each target is stored; a delta that does not fit its own is refused."""
    stored: dict[str, StoredWeight] = {}
    for adapter, match in zip(adapters, matches, strict=True):
        for key in match.placed:
            if key not in stored:
                stored[key] = _detected(base, key, options)
        check_fits(base, adapter, match, {key: stored[key].shape for key in match.placed})
    return stored


def _weights(
    base: Checkpoint, stored: Mapping[str, StoredWeight], fusions: Fusions, options: Options
) -> dict[str, StoredWeight]:
    """How each weight is stored that is fused, or that the result stores otherwise; in the base's order."""
    weights = {key: stored[key] for key in fusions}
    check_none_foreign(base.tensors, options.out_dtype)
    for key in to_convert(base.tensors, options.out_dtype, options.keep):
        if key not in weights:
            found = stored.get(key) or _detected(base, key, options)
            if converted(found, options.out_dtype, options.keep) != found:
                weights[key] = found
    return {key: weights[key] for key in base.tensors if key in weights} if len(weights) > len(fusions) else weights


def _detected(base: Checkpoint, key: str, options: Options) -> StoredWeight:
    return detect(base.tensors, key, metadata=base.metadata, nvfp4_scales=options.nvfp4_scales)


def _factors(fusions: Fusions, matches: Sequence[Matches]) -> list[StoredTensor]:
    """The tensors of all deltas that take part."""
    every = (one for match in matches for key, placed in match.placed.items() if key in fusions for one in placed)
    return [tensor for delta in {one.delta: None for one in every} for tensor in delta.tensors]


def _notes(base: Checkpoint, adapters: Sequence[Adapter], matches: Sequence[Matches]) -> list[str]:
    return [
        *base.notes,
        *(note for adapter in adapters for note in adapter.notes),
        *(note for match in matches for note in match.notes),
        *version_notes(base, adapters),
    ]


def _fusions(
    base: Checkpoint,
    matches: Sequence[Matches],
    origins: Sequence[Source],
    strengths: Sequence[float],
    factors: Factors,
) -> dict[str, Deltas]:
    """Weight key -> deltas, in the base's order; empty when every strength is zero as a float32."""
    applied: dict[str, list[tuple[Delta, AppliedDelta]]] = {}
    for match, origin, strength in zip(matches, origins, strengths, strict=True):
        for key, placed in match.placed.items():
            own = strength * factors.of(key)
            applied.setdefault(key, []).extend((one.delta, applied_delta(one, origin, own)) for one in placed)
    if all(np.float32(strength) == 0 for strength in strengths):
        return {}
    for key, together in applied.items():
        check_together(key, together)
    return {key: tuple(one for _, one in applied[key]) for key in base.tensors if key in applied}
