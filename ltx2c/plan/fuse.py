"""Which weights a state fuses, with which deltas at which strength."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from ltx2c.adapters import Adapter, Delta
from ltx2c.arithmetic import LTX, arithmetic_named
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.layouts import StoredWeight, detect
from ltx2c.plan.checks import (
    check_base,
    check_distinct,
    check_reference_scales,
    rounding_notes,
    version_notes,
)
from ltx2c.plan.match import Matches, OnUnmatched, check_on_unmatched, match_pairs
from ltx2c.plan.opened import AdapterArgument, BaseArgument, Sources, opened
from ltx2c.plan.options import Options
from ltx2c.plan.plan import AppliedDelta, Deltas, Fusions, Plan, PlannedAdapter
from ltx2c.plan.sources import DeltaRef, Source
from ltx2c.strength import check_strength


def plan_fuse(
    base: BaseArgument,
    adapters: Sequence[AdapterArgument],
    *,
    arithmetic: str = LTX.name,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
) -> Plan:
    """Plan the fusion of adapters into a base, from headers alone. Reads no weight, writes nothing.

    Args:
        base: a ``.safetensors`` file, a folder of shards, its ``.safetensors.index.json``, or an open one.
        adapters: ``(path or open adapter, strength)`` in fusion order. One of strength 0 beside others takes part.
        arithmetic: ``"ltx"``, upstream LTX's, which rounds through bfloat16, or ``"f32"``.
        unmatched: what to do about a delta whose module the base does not have: ``"error"`` refuses, ``"warn"`` goes
            on without it and lists it in the plan. An adapter of which nothing matches is refused either way.
        nvfp4_scales: the order of NVFP4's block scales in the base, ``"swizzled"`` or ``"linear"``, where it does not
            say so itself.

    Raises:
        OSError: as the system raised it.
        RefusedError: whatever stands against the fuse, naming files, keys and both values.
    """
    with opened(base, adapters) as (sources, strengths):
        return plan_sources(sources, strengths, Options(arithmetic, unmatched, nvfp4_scales))


def plan_sources(sources: Sources, strengths: Sequence[float], options: Options) -> Plan:
    """``plan_fuse`` of what is open already, at one strength per adapter."""
    arithmetic = arithmetic_named(options.arithmetic)
    check_on_unmatched(options.unmatched)
    base, adapters = sources.base, sources.adapters
    strengths = [check_strength(strength, adapter.path) for adapter, strength in zip(adapters, strengths, strict=True)]
    check_base(base)
    check_distinct(adapters)
    check_reference_scales(adapters)
    matches = [match_pairs(base, adapter, options.unmatched) for adapter in adapters]
    origins = [Source.of(adapter.checkpoint) for adapter in adapters]
    stored = _stored(base, matches, options)
    fusions = _fusions(base, matches, origins, strengths)
    weights = {key: stored[key] for key in fusions}
    return Plan(
        base=Source.of(base),
        adapters=tuple(
            PlannedAdapter(origin, strength, len(adapter.deltas), len(match.homes) if fusions else 0)
            for adapter, origin, strength, match in zip(adapters, origins, strengths, matches, strict=True)
        ),
        fusions=MappingProxyType(fusions),
        weights=MappingProxyType(weights),
        arithmetic=arithmetic,
        options=MappingProxyType(options.given()),
        unmatched=tuple(left for match in matches for left in match.unmatched),
        notes=(*_notes(base, adapters), *rounding_notes(arithmetic, weights.values(), _factors(fusions, matches))),
        tensors=len(base.tensors),
        bytes_written=sum(tensor.nbytes for tensor in base.tensors.values()),
    )


def _stored(base: Checkpoint, matches: Sequence[Matches], options: Options) -> dict[str, StoredWeight]:
    """How each target weight is stored; a delta that does not fit its own is refused."""
    stored: dict[str, StoredWeight] = {}
    for match in matches:
        for key, delta in match.homes.items():
            if key not in stored:
                stored[key] = detect(base.tensors, key, metadata=base.metadata, nvfp4_scales=options.nvfp4_scales)
            if stored[key].shape != delta.shape:
                keys = " and ".join(printable(tensor.key) for tensor in reversed(delta.tensors))
                raise RefusedError(
                    f"{printable(delta.adapter)}: the delta of {keys} is {list(delta.shape)}, the weight "
                    f"{printable(key)} in {printable(base.path)} is {list(stored[key].shape)}",
                    code="shape-mismatch",
                )
    return stored


def _factors(fusions: Fusions, matches: Sequence[Matches]) -> list[StoredTensor]:
    """The tensors of all deltas that take part."""
    return [
        tensor for match in matches for key, delta in match.homes.items() if key in fusions for tensor in delta.tensors
    ]


def _notes(base: Checkpoint, adapters: Sequence[Adapter]) -> list[str]:
    return [
        *base.notes,
        *(note for adapter in adapters for note in adapter.notes),
        *version_notes(base, adapters),
    ]


def _fusions(
    base: Checkpoint, matches: Sequence[Matches], origins: Sequence[Source], strengths: Sequence[float]
) -> dict[str, Deltas]:
    """Weight key -> deltas, in the base's order; empty when every strength is zero as a float32."""
    if all(np.float32(strength) == 0 for strength in strengths):
        return {}
    deltas: dict[str, list[AppliedDelta]] = {}
    for match, origin, strength in zip(matches, origins, strengths, strict=True):
        for key, delta in match.homes.items():
            ref = DeltaRef(origin, delta.tensors[0].key, delta.macs, delta.nbytes)
            deltas.setdefault(key, []).append(AppliedDelta(ref, _finite_strength(delta, strength)))
    return {key: tuple(deltas[key]) for key in base.tensors if key in deltas}


def _finite_strength(delta: Delta, strength: float) -> float:
    effective = delta.effective_strength(strength)
    if not math.isfinite(effective):
        raise RefusedError(
            f"{printable(delta.adapter)}: {delta.strength_reason(strength)} of module {printable(delta.module)} is "
            "beyond float32",
            code="bad-strength",
        )
    return effective
