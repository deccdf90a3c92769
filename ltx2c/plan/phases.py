"""A recipe's phases as plans: what each fuses into the base's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import Arithmetic, arithmetic_named
from ltx2c.layouts import StoredWeight
from ltx2c.plan.block_weights import Factors
from ltx2c.plan.checks import check_reference_scales
from ltx2c.plan.fuse import plan_sources
from ltx2c.plan.match import UnmatchedKey
from ltx2c.plan.opened import BaseArgument, OpenedPlan, Sources, opened
from ltx2c.plan.options import Options
from ltx2c.plan.plan import Fusions
from ltx2c.plan.transition import Owners
from ltx2c.recipes import Recipe


@dataclass(frozen=True)
class PhasePlans:
    """All phases of a recipe against one base.

    Attributes:
        fusions: what is fused in each phase, in the recipe's order.
        weights: how each weight is stored that is fused in any phase.
        arithmetic: what is computed.
        options: those, beside the arithmetic, that change bytes and were given, by name.
        unmatched: keys that no tensor of the base fits, left out; each once.
        notes: what a user should be told, each once.
    """

    fusions: tuple[Fusions, ...]
    weights: Mapping[str, StoredWeight]
    arithmetic: Arithmetic
    options: Mapping[str, Any]
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]

    @property
    def owners(self) -> Owners:
        """Companion key -> the weight it belongs to."""
        return {spec.key: key for key, stored in self.weights.items() for spec in stored.companions.values()}


@contextlib.contextmanager
def opened_recipe(
    base: BaseArgument, recipe: Recipe, *, alpha: AlphaMode = "stated", variant: str | None = None
) -> Iterator[Sources]:
    """A base and all adapters of a recipe, open for the length of the block. Raises as ``opened`` does."""
    with opened(base, [(path, 1.0) for path in recipe.paths], alpha=alpha, variant=variant) as (sources, _):
        yield sources


def plans_by_phase(sources: Sources, recipe: Recipe, options: Options) -> list[OpenedPlan]:
    """A plan for each phase of ``recipe``, from what ``opened_recipe`` gave. Raises as ``plan_phases`` does."""
    adapters = dict(zip(recipe.paths, sources.adapters, strict=True))
    check_reference_scales(sources.adapters)
    factors = Factors(options.block_weights)
    plans = []
    for phase in recipe.phases:
        own = Sources(sources.base, [adapters[path] for path, _ in phase.state])
        strengths = [strength for _, strength in phase.state]
        plans.append(OpenedPlan(plan_sources(own, strengths, options, factors), own))
    factors.check_used(sources.base)
    return plans


def plan_phases(sources: Sources, recipe: Recipe, options: Options) -> PhasePlans:
    """Plan every phase of ``recipe``, from what ``opened_recipe`` gave.

    Raises:
        RefusedError: as ``plan_fuse`` for any phase; reference scales may not conflict between phases either; a block
            weight must fit a module of one phase.
    """
    plans = [one.plan for one in plans_by_phase(sources, recipe, options)]
    return PhasePlans(
        fusions=tuple(plan.fusions for plan in plans),
        weights={key: stored for plan in plans for key, stored in plan.weights.items()},
        arithmetic=arithmetic_named(options.arithmetic),
        options=options.given(),
        unmatched=tuple(dict.fromkeys(key for plan in plans for key in plan.unmatched)),
        notes=(*dict.fromkeys(note for plan in plans for note in plan.notes), *recipe.notes),
    )
