"""The main job as one call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ltx2c.adapters import Adapter
from ltx2c.engines.file import write_fused
from ltx2c.engines.outputs import lay_out
from ltx2c.engines.progress import OnProgress
from ltx2c.engines.report import FuseReport
from ltx2c.files import Checkpoint
from ltx2c.files.destination import Destination
from ltx2c.files.layout import FileLayout
from ltx2c.plan import Plan, plan_fuse
from ltx2c.plan.match import OnUnmatched

StrPath = str | os.PathLike[str]


def fuse_checkpoint(
    base: StrPath,
    adapters: Sequence[tuple[StrPath, float]],
    out: StrPath,
    *,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    force: bool = False,
    allow_nonfinite: bool = False,
    progress: OnProgress | None = None,
) -> FuseReport:
    """Fuse adapters into a checkpoint and write the result, whole or not at all.

    Args:
        base: a ``.safetensors`` file.
        adapters: ``(path, strength)`` in fusion order.
        out: the file to write; its folder must exist.
        threads: to compute with; None for what this process may use.
        unmatched: ``"warn"`` goes on without adapter pairs that have no home in the base, and reports them.
        force: whether to replace ``out`` where it exists.
        allow_nonfinite: whether to keep a result with infinities or NaN where the base was finite.
        progress: called now and then, in the calling thread.

    Raises:
        OSError: as the system raised it.
        RefusedError: whatever stands against the fuse. Almost all of that is found before a weight is read.
    """
    with opened_plan(base, adapters, unmatched=unmatched) as plan:
        output = check_output(plan, out, force=force)
        return write_fused(plan, *output, threads=threads, allow_nonfinite=allow_nonfinite, progress=progress)


@contextlib.contextmanager
def opened_plan(
    base: StrPath, adapters: Sequence[tuple[StrPath, float]], *, unmatched: OnUnmatched = "error"
) -> Iterator[Plan]:
    """Open the files and plan the fuse; the files are closed at the end of the block. Raises as ``plan_fuse`` does."""
    with contextlib.ExitStack() as files:
        checkpoint = files.enter_context(Checkpoint.open(base))
        state = [(files.enter_context(Adapter.open(path)), strength) for path, strength in adapters]
        yield plan_fuse(checkpoint, state, unmatched=unmatched)


class Output(NamedTuple):
    """A plan's output, laid out, and its checked destination."""

    layout: FileLayout
    destination: Destination


def check_output(plan: Plan, out: StrPath, *, force: bool = False) -> Output:
    """Make sure, without writing, that a plan's output can be put at ``out``. Raises as ``Destination.check`` does."""
    layout = lay_out(plan)
    checkpoints = (plan.base, *(adapter.checkpoint for adapter, _ in plan.adapters))
    inputs = [
        path for checkpoint in checkpoints for path in (checkpoint.path, *(file.path for file in checkpoint.files))
    ]
    return Output(layout, Destination.check(out, inputs=inputs, needed_bytes=layout.size, force=force))
