"""What whole renders will cost on this machine, beside the naive order: ``plan_render``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.plan.bind import choose_double_buffered
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.cost import Cost, Rates
from ltx2c.plan.match import OnUnmatched, UnmatchedKey
from ltx2c.plan.opened import BaseArgument
from ltx2c.plan.options import Options
from ltx2c.plan.phases import opened_recipe, plan_phases
from ltx2c.plan.render import Step, Terminal, check_schedule, naive_steps, render_steps
from ltx2c.rates import measure_rates
from ltx2c.recipes import Recipe


@dataclass(frozen=True)
class SecondCopy:
    """Tensors held twice within a memory budget, and the seconds that saves over all renders."""

    tensors: int
    bytes: int
    seconds_saved: float


@dataclass(frozen=True)
class RenderPlan:
    """A schedule with its cost, and the naive order's.

    Attributes:
        steps: load, then per render each phase's bind and the terminal step.
        naive: load with everything fused, then per render each phase's rebind.
        rates: what the seconds are predicted from.
        options: what, beside the arithmetic, changes bytes and was given: ``alpha``, ``block_weights``, ...
        second_copy: None where no budget was given, or no tensor that differs between phases fits it.
    """

    recipe: str
    renders: int
    terminal: Terminal
    steps: tuple[Step, ...]
    naive: tuple[Step, ...]
    rates: Rates
    options: Mapping[str, Any]
    second_copy: SecondCopy | None
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Predicted for all steps."""
        return _seconds(self.steps, self.rates)

    @property
    def naive_seconds(self) -> float:
        """Predicted for the naive order."""
        return _seconds(self.naive, self.rates)

    def as_json(self) -> dict[str, Any]:
        """The whole plan as plain data."""
        return {
            "recipe": self.recipe,
            "renders": self.renders,
            "terminal": self.terminal,
            "options": dict(self.options),
            "rates": {"flops_per_second": self.rates.flops, "bytes_per_second": self.rates.bytes},
            "steps": [self._step(step) for step in self.steps],
            "total": self._total(self.steps),
            "naive": {"steps": [self._step(step) for step in self.naive], "total": self._total(self.naive)},
            "second_copy": None if self.second_copy is None else asdict(self.second_copy),
            "unmatched": [{"adapter": str(pair.adapter), "key": pair.key} for pair in self.unmatched],
            "notes": list(self.notes),
        }

    def _step(self, step: Step) -> dict[str, Any]:
        return {**asdict(step), "seconds": self.rates.seconds(step.cost)}

    def _total(self, steps: Sequence[Step]) -> dict[str, Any]:
        return {**asdict(Cost.total(step.cost for step in steps)), "seconds": _seconds(steps, self.rates)}


def plan_render(
    base: BaseArgument,
    recipe: Recipe,
    renders: int = 1,
    terminal: Terminal = "last",
    *,
    arithmetic: str = LTX.name,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    memory_budget: int = 0,
    rates: Rates | None = None,
) -> RenderPlan:
    """Plan ``renders`` renders of ``recipe`` from headers alone.

    Args:
        base: a checkpoint, or a path to one.
        recipe: which adapters run in which phase.
        renders: how many, at least 1.
        terminal: the state each render leaves: ``"last"`` leaves its last phase's, ``"first"`` prepares the next
            render's first phase, ``"base"`` restores the base.
        arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant: as for ``ResidentCheckpoint.open``.
        memory_budget: bytes for a second copy, as for ``ResidentCheckpoint.open``.
        rates: what to predict seconds from; this machine's, measured once per process, when None.

    Raises:
        RefusedError: as ``plan_fuse`` for any phase; ``bad-renders``, ``bad-terminal``, ``bad-budget``.
        OSError: as the system raised it.
    """
    check_schedule(renders, terminal)
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant)
    with opened_recipe(base, recipe, alpha=alpha, variant=variant) as sources:
        checkpoint = sources.base
        planned = plan_phases(sources, recipe, options)
    phases = [(phase.name, fusions) for phase, fusions in zip(recipe.phases, planned.fusions, strict=True)]
    double_buffered = choose_double_buffered(
        checkpoint, planned.fusions, planned.owners, memory_budget, lambda key: checkpoint.tensors[key].nbytes
    )
    rates = rates or measure_rates()
    steps = tuple(render_steps(checkpoint, phases, renders, terminal, planned.owners, double_buffered))
    second_copy = None
    if double_buffered:
        without = _seconds(list(render_steps(checkpoint, phases, renders, terminal, planned.owners)), rates)
        size = sum(checkpoint.tensors[key].nbytes for key in double_buffered)
        second_copy = SecondCopy(len(double_buffered), size, without - _seconds(steps, rates))
    return RenderPlan(
        recipe=recipe.name,
        renders=renders,
        terminal=terminal,
        steps=steps,
        naive=tuple(naive_steps(checkpoint, phases, renders)),
        rates=rates,
        options=planned.options,
        second_copy=second_copy,
        unmatched=planned.unmatched,
        notes=planned.notes,
    )


def _seconds(steps: Sequence[Step], rates: Rates) -> float:
    return sum(rates.seconds(step.cost) for step in steps)
