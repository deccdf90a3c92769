"""A recipe's phases as plans: one state of the base's weights per phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ltx2c.adapters import Adapter
from ltx2c.files import Checkpoint
from ltx2c.plan.checks import check_reference_scales
from ltx2c.plan.fuse import Plan, plan_fuse
from ltx2c.plan.match import OnUnmatched
from ltx2c.recipes import Recipe


def plan_phases(
    base: Checkpoint, recipe: Recipe, adapters: Mapping[Path, Adapter], *, unmatched: OnUnmatched = "error"
) -> tuple[Plan, ...]:
    """Plan every phase of ``recipe``, with its adapters by the paths that the recipe names.

    Raises:
        RefusedError: as ``plan_fuse`` for any phase; reference scales may not conflict between phases either.
    """
    check_reference_scales(list(adapters.values()))
    return tuple(
        plan_fuse(base, [(adapters[path], strength) for path, strength in phase.state], unmatched=unmatched)
        for phase in recipe.phases
    )
