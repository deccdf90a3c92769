"""Refusals and notes about a base and the adapters given for it, before their pairs are matched."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from ltx2c.adapters import Adapter
from ltx2c.adapters import keys as adapter_keys
from ltx2c.adapters.metadata import DOWNSCALE, TEMPORAL_SCALE
from ltx2c.arithmetic import Arithmetic
from ltx2c.dtypes import FUSIBLE
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.layouts import StoredWeight

# Weights of these have digits that bfloat16 has not.
ROUNDED_WEIGHTS = tuple(name for name in FUSIBLE if name != "BF16")


def check_base(base: Checkpoint) -> None:
    """Refuse a base that is an adapter."""
    if base.tensors and all(map(adapter_keys.parse, base.tensors)):
        raise RefusedError(
            f"{printable(base.path)}: BASE holds only factors such as {printable(next(iter(base.tensors)))}: it is an "
            "adapter; are BASE and adapter swapped?",
            code="base-is-adapter",
        )


def check_distinct(adapters: Sequence[Adapter]) -> None:
    """Refuse one adapter file given twice, also by another name for it."""
    for one, other in itertools.combinations(adapters, 2):
        if one.identity & other.identity:
            raise RefusedError(
                f"adapter {printable(other.path)} is given twice: it is the same file as {printable(one.path)}",
                code="same-adapter-twice",
            )


def check_reference_scales(adapters: Sequence[Adapter]) -> None:
    """Refuse two different reference scales. A scale of 1 never conflicts."""
    for name in (DOWNSCALE, TEMPORAL_SCALE):
        scaled = [adapter for adapter in adapters if getattr(adapter, name) != 1]
        for one, other in itertools.pairwise(scaled):
            if getattr(one, name) != getattr(other, name):
                raise RefusedError(
                    f"metadata {name} conflicts: {getattr(one, name)} in {printable(one.path)}, "
                    f"{getattr(other, name)} in {printable(other.path)}",
                    code="reference-scale-conflict",
                )


def version_notes(base: Checkpoint, adapters: Sequence[Adapter]) -> list[str]:
    """A note per adapter that was made for another version of the model than the base is."""
    own = base.metadata.get("model_version")
    return [
        f"{printable(adapter.path)}: made for model_version {printable(version)}, the base is {printable(own)}"
        for adapter in adapters
        if (version := adapter.metadata.get("model_version")) is not None and own is not None and version != own
    ]


def rounding_notes(
    arithmetic: Arithmetic, weights: Iterable[StoredWeight], factors: Iterable[StoredTensor]
) -> list[str]:
    """A note on what is stored with more digits than the arithmetic keeps; none where it keeps all."""
    if not arithmetic.through_bf16:
        return []
    stored = Counter(weight.codes.dtype for weight in weights if weight.codes.dtype in ROUNDED_WEIGHTS)
    counts = [_count(stored[dtype], f"{dtype} weight") for dtype in ROUNDED_WEIGHTS if stored[dtype]]
    wide = sum(factor.dtype == "F32" for factor in factors)
    if wide:
        counts.append(_count(wide, "F32 factor"))
    if not counts:
        return []
    return [
        f"arithmetic {arithmetic.name} rounds {' and '.join(counts)} through BF16, as upstream LTX does; f32 does not"
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
