"""Which weights a state fuses, with which deltas at which strength."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ltx2c.adapters import Adapter, Delta
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.plan.checks import (
    check_base,
    check_distinct,
    check_reference_scales,
    rounding_notes,
    version_notes,
)
from ltx2c.plan.match import Matches, OnUnmatched, UnmatchedKey, check_on_unmatched, match_pairs
from ltx2c.strength import check_strength


@dataclass(frozen=True)
class Term:
    """One delta at its effective strength. Two terms are equal when they are the same delta at the same strength."""

    delta: Delta
    effective_strength: float


@dataclass(frozen=True, eq=False)
class Plan:
    """What it takes to bring ``base`` to a state.

    Attributes:
        base: the checkpoint that the plan is for.
        adapters: the state: adapters with their strengths, in fusion order.
        terms: weight key -> its terms in fusion order, in the base's key order. Only weights that are fused; empty
            when every strength is 0, which is the base state.
        unmatched: adapter keys with no home in the base, in adapter order.
        notes: what a user should be told.
        pairs_fused: per adapter, how many of its pairs take part.
    """

    base: Checkpoint
    adapters: tuple[tuple[Adapter, float], ...]
    terms: Mapping[str, tuple[Term, ...]]
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]
    pairs_fused: tuple[int, ...]

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Everything that is read: the base, then the adapters in fusion order."""
        return (self.base, *(adapter.checkpoint for adapter, _ in self.adapters))

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of the whole plan."""
        return sum(term.delta.macs for terms in self.terms.values() for term in terms)

    @cached_property
    def bytes_read(self) -> int:
        """Tensor bytes of the whole base, and of what adds to it, each once."""
        return self.bytes_written + sum(term.delta.nbytes for terms in self.terms.values() for term in terms)

    @cached_property
    def bytes_written(self) -> int:
        """Tensor bytes of the whole base: a fused checkpoint has its layout."""
        return sum(tensor.nbytes for tensor in self.base.tensors.values())


def plan_fuse(
    checkpoint: Checkpoint, state: Sequence[tuple[Adapter, float]], *, unmatched: OnUnmatched = "error"
) -> Plan:
    """Plan the fusion of ``state`` into ``checkpoint``. Reads nothing, writes nothing.

    Args:
        checkpoint: the base.
        state: adapters with their strengths, in fusion order. An adapter of strength 0 beside others takes part.
        unmatched: what to do about a pair whose module the base does not have: ``"error"`` refuses, ``"warn"`` goes
            on without it and lists it in the plan. An adapter of which no pair matches is refused either way.

    Raises:
        RefusedError: whatever stands against the fuse, naming files, keys and both values.
    """
    check_on_unmatched(unmatched)
    state = tuple((adapter, check_strength(strength, adapter.path)) for adapter, strength in state)
    adapters = [adapter for adapter, _ in state]
    check_base(checkpoint)
    check_distinct(adapters)
    check_reference_scales(adapters)
    matches = [match_pairs(checkpoint, adapter, unmatched) for adapter in adapters]
    terms = _terms(checkpoint, matches, [strength for _, strength in state])
    notes = [
        *checkpoint.notes,
        *(note for adapter in adapters for note in adapter.notes),
        *version_notes(checkpoint, adapters),
        *rounding_notes(checkpoint, list(terms)),
    ]
    return Plan(
        base=checkpoint,
        adapters=state,
        terms=MappingProxyType(terms),
        unmatched=tuple(pair for match in matches for pair in match.unmatched),
        notes=tuple(notes),
        pairs_fused=tuple(len(match.homes) if terms else 0 for match in matches),
    )


def _terms(base: Checkpoint, matches: Sequence[Matches], strengths: Sequence[float]) -> dict[str, tuple[Term, ...]]:
    """Weight key -> terms, in the base's order; empty when every strength is zero as a float32."""
    if all(np.float32(strength) == 0 for strength in strengths):
        return {}
    terms: dict[str, list[Term]] = {}
    for match, strength in zip(matches, strengths, strict=True):
        for key, delta in match.homes.items():
            terms.setdefault(key, []).append(Term(delta, _finite_strength(delta, strength)))
    return {key: tuple(terms[key]) for key in base.tensors if key in terms}


def _finite_strength(delta: Delta, strength: float) -> float:
    effective = delta.effective_strength(strength)
    if not math.isfinite(effective):
        raise RefusedError(
            f"{printable(delta.adapter)}: {delta.strength_reason(strength)} of module {printable(delta.module)} is "
            "beyond float32",
            code="bad-strength",
        )
    return effective
