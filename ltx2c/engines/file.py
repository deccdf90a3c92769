"""Carrying a plan out into a new file: the base's bytes stream through, and fused weights change on the way.

The output's tensor bytes are cut into blocks of about 16 MB. A block is read into a buffer, the rows of fused weights
in it are fused where they lie, and the buffer is written. Several blocks are under way at once (see ``pipeline``).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ltx2c import kernels
from ltx2c.engines.blocks import BlockFuser, buffer_bytes, cut_into_blocks
from ltx2c.engines.pipeline import Stage, new_buffer, run_pipeline
from ltx2c.engines.progress import OnProgress, Progress
from ltx2c.engines.report import FuseReport, adapter_reports
from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination, Staged
from ltx2c.files.direct import OutputFile
from ltx2c.files.layout import PAGE, FileLayout
from ltx2c.plan import Plan
from ltx2c.threads import resolve_threads

BUFFERS = 4
WORKERS = 2  # one computes while another's block is read or written; more would take more buffers


def write_fused(
    plan: Plan,
    layout: FileLayout,
    destination: Destination,
    *,
    threads: int | None = None,
    allow_nonfinite: bool = False,
    progress: OnProgress | None = None,
) -> FuseReport:
    """Write the fused checkpoint, whole or not at all.

    Args:
        layout: of the output, from ``lay_out(plan)``.
        threads: to compute with; None for what this process may use.
        allow_nonfinite: whether to keep a result with infinities or NaN where the base was finite.
        progress: called after each block, in the calling thread.

    Raises:
        OSError: reading or writing failed; nothing is left at the destination.
        RefusedError: ``nonfinite``, ``file-changed``, ``output-busy``, ``output-exists``, ``threads``.
    """
    began = time.perf_counter()
    count = resolve_threads(threads)
    with destination.stage() as staged:
        _check_inputs_unchanged(plan)
        nonfinite = _write_file(plan, layout, staged.file(layout.name), count, allow_nonfinite, progress)
        _check_inputs_unchanged(plan)
        staged.publish()
    return FuseReport(
        out=destination.path,
        tensors=len(layout.tensors),
        tensors_fused=len(plan.terms),
        adapters=adapter_reports(plan),
        unmatched=tuple(pair.key for pair in plan.unmatched),
        notes=(*plan.notes, *_stale_notes(staged)),
        nonfinite=nonfinite,
        bytes_read=plan.bytes_read,
        bytes_written=plan.bytes_written,
        macs=plan.macs,
        seconds=time.perf_counter() - began,
        threads=count,
        kernel=kernels.selected(),
    )


def _write_file(
    plan: Plan, layout: FileLayout, path: Path, threads: int, allow_nonfinite: bool, progress: OnProgress | None
) -> dict[str, int]:
    workers = min(WORKERS, threads)
    fuser = BlockFuser(plan.terms, threads // workers)
    nonfinite: Counter[str] = Counter()
    macs = written = 0
    blocks = run_pipeline(
        cut_into_blocks(layout.tensors, plan.terms),
        Stage(fuser.read, fuser.fuse),
        buffers=BUFFERS,
        buffer_bytes=buffer_bytes((tensor for tensor, _ in layout.tensors), plan.terms),
        workers=workers,
    )
    with contextlib.closing(OutputFile(path, layout.size)) as output, contextlib.closing(blocks):
        _append_header(output, layout.header)
        for block, buffer, fused in blocks:
            nonfinite.update(fused.nonfinite)
            if not allow_nonfinite:
                _refuse_nonfinite(plan, nonfinite, going_on=block.pieces[-1].tensor.key)
            output.append(buffer, block.nbytes)
            macs += fused.macs
            written += block.nbytes
            if progress is not None:
                progress(Progress(written, plan.bytes_written, macs, plan.macs))
        if not allow_nonfinite:
            _refuse_nonfinite(plan, nonfinite)
        output.finish()
    return dict(nonfinite)


def _append_header(output: OutputFile, header: bytes) -> None:
    for chunk in _chunks(memoryview(header), 1 << 20):
        lead = output.position % PAGE
        buffer = new_buffer(2 * PAGE + (1 << 20))
        buffer[lead : lead + len(chunk)] = chunk
        output.append(buffer, len(chunk))


def _chunks(data: memoryview, size: int) -> Iterator[memoryview]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _refuse_nonfinite(plan: Plan, counts: Counter[str], going_on: str | None = None) -> None:
    """Refuse at the first weight that is complete: of ``going_on`` more blocks may come, and its count is not final."""
    for key, count in counts.items():
        if key != going_on:
            raise RefusedError(
                f"{printable(plan.base.path)}: fused weight {printable(key)} has {count} infinite or NaN values where "
                "the base is finite; nothing was written; --allow-nonfinite keeps them",
                code="nonfinite",
            )


def _check_inputs_unchanged(plan: Plan) -> None:
    for checkpoint in (plan.base, *(adapter.checkpoint for adapter, _ in plan.adapters)):
        for file in checkpoint.files:
            file.check_unchanged()


def _stale_notes(staged: Staged) -> tuple[str, ...]:
    if not staged.stale_bytes:
        return ()
    return (f"removed {staged.stale_bytes} bytes that an earlier run, killed before it was done, had left",)
