"""What a plan writes: which of a pipeline's components, and which tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from ltx2c import layouts
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.checkpoint import Component
from ltx2c.files.layout import OutputTensor
from ltx2c.layouts import StoredWeight
from ltx2c.layouts.markers import SCALED_FP8

if TYPE_CHECKING:
    from ltx2c.plan.plan import Plan


def written_components(base: Checkpoint, worked_on: Container[str]) -> tuple[Component, ...]:
    """Those of ``base`` that a plan writes which changes the weights ``worked_on``; the others are copied as they are.

    The main one is written always.
    """
    main, *others = base.components
    return (main, *(one for one in others if any(key in worked_on for key in one.tensors)))


def written_tensors(
    base: Checkpoint, weights: Mapping[str, StoredWeight], written: Mapping[str, StoredWeight]
) -> tuple[OutputTensor, ...]:
    """The tensors of a result, in the base's key order: what changed weights write, and copies of all others.

    New companions follow their weight. What belonged to a weight in codes is left out where it is in none any more.

    Args:
        weights: how the base stores each weight that is changed.
        written: how the result does.
    """
    changed = {spec.key: spec for one in written.values() for spec in one.outputs}
    gone = _gone(base, weights, written)
    tensors = []
    for key, source in base.tensors.items():
        if key in gone:
            continue
        tensors.append(OutputTensor(*changed[key], source) if key in changed else OutputTensor.copy_of(source))
        if key in written:
            new = (spec for spec in written[key].companions.values() if spec.key not in base.tensors)
            tensors += [OutputTensor(*spec, source) for spec in new]
    return tuple(tensors)


def _gone(base: Checkpoint, weights: Mapping[str, StoredWeight], written: Mapping[str, StoredWeight]) -> set[str]:
    gone: set[str] = set()
    for key, stored in weights.items():
        if stored.layout != written[key].layout and not stored.layout.in_place:
            gone.update(spec.key for spec in stored.companions.values())
            gone.update(layouts.unneeded(base.tensors, key.removesuffix(".weight")))
    if gone:
        left = [key for key in layouts.in_codes(base.tensors) if key not in written or written[key] == weights[key]]
        if not left:
            gone.update(key for key in base.tensors if key.endswith(SCALED_FP8))
    return gone


def left_in_codes(plan: Plan, tensors: Mapping[str, StoredTensor]) -> int | None:
    """How many of some tensors of the base are in codes in the result too; None where it dequantises none of them."""
    ways = ((plan.weights[key].layout, plan.written[key].layout) for key in tensors if key in plan.weights)
    if not any(written.in_place and not stored.in_place for stored, written in ways):
        return None
    codes = layouts.in_codes(tensors)
    return sum(key not in plan.written or not plan.written[key].layout.in_place for key in codes)
