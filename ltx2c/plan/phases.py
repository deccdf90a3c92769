"""A recipe's phases as plans: one state of the base's weights per phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ltx2c.adapters import Adapter
from ltx2c.files import Checkpoint
from ltx2c.plan.checks import check_reference_scales
from ltx2c.plan.fuse import plan_fuse
from ltx2c.plan.match import OnUnmatched, UnmatchedKey
from ltx2c.plan.transition import State
from ltx2c.recipes import Recipe


@dataclass(frozen=True)
class PhasePlans:
    """All phases of a recipe against one base.

    Attributes:
        states: one per phase, in the recipe's order.
        unmatched: keys with no home in the base, left out; each once.
        notes: what a user should be told, each once.
    """

    states: tuple[State, ...]
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]


def plan_phases(
    base: Checkpoint, recipe: Recipe, adapters: Mapping[Path, Adapter], *, unmatched: OnUnmatched = "error"
) -> PhasePlans:
    """Plan every phase of ``recipe``, with its adapters by the paths that the recipe names.

    Raises:
        RefusedError: as ``plan_fuse`` for any phase; reference scales may not conflict between phases either.
    """
    check_reference_scales(list(adapters.values()))
    plans = [
        plan_fuse(base, [(adapters[path], strength) for path, strength in phase.state], unmatched=unmatched)
        for phase in recipe.phases
    ]
    return PhasePlans(
        states=tuple(plan.terms for plan in plans),
        unmatched=tuple(dict.fromkeys(key for plan in plans for key in plan.unmatched)),
        notes=(*dict.fromkeys(note for plan in plans for note in plan.notes), *recipe.notes),
    )
