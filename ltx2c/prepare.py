"""What is settled before a fuse: its plan, the files open; its output, with all that comes along; where that goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ltx2c.engines.outputs import lay_out
from ltx2c.files import Checkpoint
from ltx2c.files.destination import Destination
from ltx2c.files.layout import OutputLayout
from ltx2c.files.paths import as_path
from ltx2c.files.siblings import find_siblings
from ltx2c.plan.fuse import plan_sources
from ltx2c.plan.opened import AdapterArgument, BaseArgument, OpenedPlan, opened
from ltx2c.plan.options import Options
from ltx2c.plan.written import written_components

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def opened_plan(base: BaseArgument, adapters: Sequence[AdapterArgument], options: Options) -> Iterator[OpenedPlan]:
    """Open the files and plan the fuse; the files are closed at the end of the block. Raises as ``plan_fuse`` does."""
    with opened(base, adapters, alpha=options.alpha, variant=options.variant) as (sources, strengths):
        yield OpenedPlan(plan_sources(sources, strengths, options), sources)


class LaidOut(NamedTuple):
    """A plan's output, and what a person should know of what comes along."""

    layout: OutputLayout
    notes: tuple[str, ...]


def lay_out_whole(opened: OpenedPlan, out: StrPath, max_shard_bytes: int | None) -> LaidOut:
    """The output of a plan with all that comes along. Raises as ``lay_out`` and ``find_siblings`` do."""
    layout = lay_out(opened, max_shard_bytes=max_shard_bytes)
    base = opened.sources.base
    if base.folder is None:
        return LaidOut(layout, ())
    siblings, notes = find_siblings(base.folder, written_components(base, opened.plan.weights), as_path(out))
    return LaidOut(replace(layout, siblings=siblings), notes)


def check_destination(
    opened: OpenedPlan,
    out: StrPath,
    layout: OutputLayout,
    *,
    force: bool,
    inputs: Iterable[Path] = (),
    more_bytes: int = 0,
) -> Destination:
    """Make sure, without writing, that an output can be put at ``out``. Raises as ``Destination.check`` does.

    Args:
        inputs: what is read beside the plan's own files, by fuses of the same run.
        more_bytes: what those need on the same file system.
    """
    read = [path for checkpoint in opened.sources.checkpoints for path in paths_read(checkpoint)]
    read += [sibling.path for sibling in layout.siblings]
    return Destination.check(
        out,
        inputs=[*inputs, *read],
        needed_bytes=more_bytes + layout.size,
        force=force,
        folder=layout.is_folder,
        names=layout.names if layout.is_folder else (),
    )


def paths_read(checkpoint: Checkpoint) -> Iterator[Path]:
    """Every file and folder that a checkpoint was read from."""
    yield checkpoint.path
    yield from (file.path for file in checkpoint.files)
    folder = checkpoint.folder or checkpoint.path.parent
    for component in checkpoint.components:
        if component.index_name:
            yield folder / component.name / component.index_name
