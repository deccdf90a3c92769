"""A recipe's phases as files: one for each distinct state, and a table that says which phase takes which."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.engines.file import fill
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.files.layout import OutputLayout
from ltx2c.files.places import check_place, stage_at, write_small
from ltx2c.files.staging import publish
from ltx2c.files.url import AnyPath
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.match import OnUnmatched, UnmatchedKey
from ltx2c.plan.opened import BaseArgument, OpenedPlan
from ltx2c.plan.options import Options
from ltx2c.plan.phases import opened_recipe, plans_by_phase
from ltx2c.prepare import lay_out_whole, paths_read
from ltx2c.progress import OnProgress, Tracker
from ltx2c.recipes import Recipe
from ltx2c.threads import resolve_threads

PHASES_NAME = "phases.json"


@dataclass(frozen=True)
class PhaseFile:
    """A phase's name, and its file: in the folder, or the base's own absolute path where the phase is the base."""

    name: str
    file: str


@dataclass(frozen=True)
class PhasesReport:
    """What was written.

    Attributes:
        out: the folder.
        recipe: its name.
        phases: in the order of a render.
        unmatched: keys of deltas that have no target in the base and are left out.
        notes: what a person should know, one line each.
        bytes_written: of all files.
        seconds: from the first byte read to the folder in place, durable.
    """

    out: AnyPath
    recipe: str
    phases: tuple[PhaseFile, ...]
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]
    bytes_written: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return {
            **vars(self),
            "out": str(self.out),
            "phases": [vars(phase) for phase in self.phases],
            "unmatched": [one.key for one in self.unmatched],
            "notes": list(self.notes),
        }


class _State(NamedTuple):
    opened: OpenedPlan
    layout: OutputLayout


def write_phases(
    base: BaseArgument,
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    arithmetic: str = LTX.name,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    allow_nonfinite: bool = False,
    progress: OnProgress | None = None,
) -> PhasesReport:
    """Write the phases of a recipe, fused, into a new folder, all of them at once or none.

    Phases of one state share a file. ``phases.json`` in it is ``{"recipe": name, "phases": [{"name", "file"}, ...]}``,
    a file's path relative to the folder; a phase that fuses nothing has the base's own, absolute path.

    Args:
        base, arithmetic, threads, unmatched, nvfp4_scales, alpha, block_weights, variant, allow_nonfinite, progress: as
            for ``fuse_checkpoint``.
        recipe: from ``Recipe.named``.
        out: the folder to make, which must not exist.

    Raises:
        OSError: as the system raised it.
        RefusedError: as ``fuse_checkpoint`` for any phase; ``output-exists``.
    """
    began = time.perf_counter()
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant)
    with opened_recipe(base, recipe, alpha=alpha, variant=variant) as sources:
        plans = plans_by_phase(sources, recipe, options)
        states, files = _states(plans, recipe, out)
        told = {"recipe": recipe.name, "phases": [vars(file) for file in files]}
        table = json.dumps(told, indent=2).encode() + b"\n"
        size = len(table) + sum(state.layout.size for state in states)
        names = [PHASES_NAME, *(name for state in states for name in state.layout.names)]
        inputs: list[AnyPath] = [path for checkpoint in sources.checkpoints for path in paths_read(checkpoint)]
        inputs += [sibling.path for state in states for sibling in state.layout.siblings]
        destination = check_place(out, inputs=inputs, needed_bytes=size, folder=True, names=names)
        count = resolve_threads(threads)
        plans_written = [state.opened.plan for state in states]
        tracker = Tracker(
            sum(plan.bytes_written for plan in plans_written), sum(plan.macs for plan in plans_written), progress
        )
        with stage_at(destination) as staged:
            sources.check_unchanged()
            for state in states:
                nonfinite = Nonfinite(sources.base.path, allowed=allow_nonfinite)
                fill(staged, state.opened, state.layout, count, nonfinite, tracker)
            write_small(staged.file(PHASES_NAME), table)
            sources.check_unchanged()
            publish(staged)
        notes = (note for plan in plans for note in plan.plan.notes)
        return PhasesReport(
            destination.path,
            recipe.name,
            files,
            tuple(dict.fromkeys(key for plan in plans for key in plan.plan.unmatched)),
            (*dict.fromkeys(notes), *recipe.notes, *staged.notes),
            size,
            time.perf_counter() - began,
        )


def _states(
    plans: Sequence[OpenedPlan], recipe: Recipe, out: str | os.PathLike[str]
) -> tuple[list[_State], tuple[PhaseFile, ...]]:
    """The distinct states that are not the base's, and each phase's file."""
    states: list[_State] = []
    made: list[str] = []
    files: list[PhaseFile] = []
    for phase, plan in zip(recipe.phases, plans, strict=True):
        if not plan.plan.fusions:
            files.append(PhaseFile(phase.name, str(plan.sources.base.path.absolute())))
            continue
        earlier = [at for at, state in enumerate(states) if state.opened.plan.fusions == plan.plan.fusions]
        if not earlier:
            layout = lay_out_whole(plan, out).layout
            made.append(phase.name if layout.is_folder else f"{phase.name}.safetensors")
            states.append(_State(plan, _within(layout, made[-1])))
        files.append(PhaseFile(phase.name, made[earlier[0] if earlier else -1]))
    return states, tuple(files)


def _within(layout: OutputLayout, name: str) -> OutputLayout:
    """A layout's files under ``name``: of a folder in it, of a file by it."""
    if not layout.is_folder:
        return dataclasses.replace(layout, files=(dataclasses.replace(layout.files[0], name=name),))
    return OutputLayout(
        tuple(dataclasses.replace(file, name=f"{name}/{file.name}") for file in layout.files),
        True,
        {f"{name}/{text}": content for text, content in layout.texts.items()},
        tuple(sibling._replace(name=f"{name}/{sibling.name}") for sibling in layout.siblings),
    )
