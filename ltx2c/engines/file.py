"""Executing a plan into a new file: the base's bytes stream through, and fused weights change on the way.

The output's tensor bytes are cut into blocks of about 16 MB. A block is read into a buffer, the rows of fused weights
in it are fused where they lie, and the buffer is written. Several blocks are under way at once (see ``pipeline``).
"""

from __future__ import annotations

import contextlib
import time

from ltx2c.engines.blocks import cut_into_blocks
from ltx2c.engines.digests import Digests
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.pipeline import BLOCK_BYTES
from ltx2c.engines.report import FuseReport, outline
from ltx2c.engines.stream import Stream
from ltx2c.engines.weights import work_of
from ltx2c.engines.writing import ResultWriter, write_beside
from ltx2c.files.layout import OutputLayout
from ltx2c.files.places import AnyDestination, AnyStaged, stage_at
from ltx2c.files.staging import publish
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress, Tracker


def write_fused(
    opened: OpenedPlan,
    layout: OutputLayout,
    destination: AnyDestination,
    *,
    threads: int | None = None,
    allow_nonfinite: bool = False,
    digests: Digests | None = None,
    progress: OnProgress | None = None,
) -> FuseReport:
    """Write the fused checkpoint, whole or not at all.

    Args:
        layout: of the output, from ``lay_out``.
        threads: to compute with; None for what this process may use.
        allow_nonfinite: whether to keep a result with infinities or NaN where the base was finite.
        digests: take full digests of the base and of the output into this.
        progress: called after each block, in the calling thread.

    Raises:
        OSError: reading or writing failed; nothing is left at the destination.
        RefusedError: ``nonfinite``, ``file-changed``, ``wrong-sha256``, ``threads``, or as ``stage`` and ``publish``.
    """
    plan, sources = opened
    began = time.perf_counter()
    known = outline(plan, destination.path, threads)
    nonfinite = Nonfinite(plan.base.path, allowed=allow_nonfinite)
    with stage_at(destination) as staged:
        sources.check_unchanged()
        tracker = Tracker(plan.bytes_written, plan.macs, progress)
        fill(staged, opened, layout, known.threads, nonfinite, tracker, digests)
        if digests is not None:
            digests.finish_base()
        sources.check_unchanged()
        publish(staged)
    found = {
        "notes": (*known.notes, *staged.notes),
        "sha256": digests.report() if digests else {},
    }
    return FuseReport(
        **vars(known) | found,
        nonfinite=dict(nonfinite.counts),
        seconds=time.perf_counter() - began,
        loss=nonfinite.loss,
    )


def fill(
    staged: AnyStaged,
    opened: OpenedPlan,
    layout: OutputLayout,
    threads: int,
    nonfinite: Nonfinite,
    tracker: Tracker,
    digests: Digests | None = None,
) -> None:
    """Write all files of a layout into a result in the making. Raises as ``write_fused`` does."""
    work = work_of(opened)
    watch = digests.feed if digests is not None else None
    block_bytes = work.block_bytes(BLOCK_BYTES)
    stream = Stream(work, threads, block_bytes=block_bytes, watch=watch, measure=True)
    with ResultWriter(layout, work.written.values(), nonfinite, digests) as writer:
        for file in layout.files:
            writer.begin(file, staged.file(file.name), stream.buffers[0])
            blocks = stream.run(cut_into_blocks(file.tensors, work, block_bytes))
            with contextlib.closing(blocks):
                for block, buffer, fused in blocks:
                    writer.append(file, block, buffer, fused)
                    tracker.advance(block.nbytes, block.macs(work))
            for name in writer.end():
                staged.complete(name)
    write_beside(layout, staged)
