"""Carrying a plan out into a new file: the base's bytes stream through, and fused weights change on the way.

The output's tensor bytes are cut into blocks of about 16 MB. A block is read into a buffer, the rows of fused weights
in it are fused where they lie, and the buffer is written. Several blocks are under way at once (see ``pipeline``).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter

from ltx2c.engines.blocks import BlockFuser, Fused, buffer_bytes, cut_into_blocks
from ltx2c.engines.digests import Digests
from ltx2c.engines.pipeline import BLOCK_BYTES, BUFFERS, Stage, run_pipeline, split_threads
from ltx2c.engines.report import FuseReport, outline
from ltx2c.errors import RefusedError, printable
from ltx2c.files.buffers import new_buffer
from ltx2c.files.destination import Destination
from ltx2c.files.direct import EmptyFile, OutputFile, write_small_file
from ltx2c.files.layout import FileLayout, OutputLayout
from ltx2c.files.staging import publish, stage
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress, Progress


def write_fused(
    opened: OpenedPlan,
    layout: OutputLayout,
    destination: Destination,
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
    with stage(destination) as staged:
        sources.check_unchanged()
        writer = _Writer(opened, known.threads, allow_nonfinite, digests, progress)
        for file in layout.files:
            writer.write(file, staged.file(file.name))
        if layout.is_folder:
            write_small_file(staged.file(layout.index_name), layout.index)
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
        nonfinite=dict(writer.nonfinite),
        seconds=time.perf_counter() - began,
    )


class _Writer:
    """Writes the files of one result, one after the other, over the same buffers.

    Attributes:
        nonfinite: weight key -> results that are infinite or NaN where the base was finite.
    """

    def __init__(
        self,
        opened: OpenedPlan,
        threads: int,
        allow_nonfinite: bool,
        digests: Digests | None,
        progress: OnProgress | None,
    ) -> None:
        self.nonfinite: Counter[str] = Counter()
        self._plan, sources = opened
        self._allow_nonfinite = allow_nonfinite
        self._digests = digests
        self._progress = progress
        shares = split_threads(threads)
        self._workers = len(shares)
        self._fuser = BlockFuser(self._plan.fusions, sources.load, shares, digests.feed if digests else None)
        size = buffer_bytes(sources.base.tensors.values(), self._plan.fusions, BLOCK_BYTES)
        self._buffers = [new_buffer(size) for _ in range(BUFFERS)]
        self._written = self._macs = 0

    def write(self, layout: FileLayout, file: EmptyFile) -> None:
        """Fill one file of the result."""
        digest = hashlib.sha256() if self._digests else None
        blocks = run_pipeline(
            cut_into_blocks(layout.tensors, self._plan.fusions, BLOCK_BYTES),
            Stage(self._fuser.read, self._fuser.fuse),
            buffers=self._buffers,
            workers=self._workers,
        )
        with contextlib.closing(OutputFile(file, layout.size, digest)) as output, contextlib.closing(blocks):
            output.append_copy(layout.header, self._buffers[0])
            for block, buffer, fused in blocks:
                self._count_nonfinite(fused, going_on=block.pieces[-1].tensor.key)
                output.append(buffer, block.nbytes)
                self._report(block.nbytes, fused.macs)
            self._refuse_nonfinite()
            output.finish()
        if self._digests and digest:
            self._digests.by_path[file.path] = digest.hexdigest()

    def _report(self, written: int, macs: int) -> None:
        self._written += written
        self._macs += macs
        if self._progress is not None:
            self._progress(Progress(self._written, self._plan.bytes_written, self._macs, self._plan.macs))

    def _count_nonfinite(self, fused: Fused, going_on: str) -> None:
        self.nonfinite.update(fused.nonfinite)
        self._refuse_nonfinite(going_on)

    def _refuse_nonfinite(self, going_on: str | None = None) -> None:
        """Refuse at the first weight that is complete: of ``going_on`` more may come, and its count is not final."""
        if self._allow_nonfinite:
            return
        for key, count in self.nonfinite.items():
            if key != going_on:
                raise RefusedError(
                    f"{printable(self._plan.base.path)}: fused weight {printable(key)} has {count} infinite or NaN "
                    "values where the base is finite; nothing was written; --allow-nonfinite keeps them",
                    code="nonfinite",
                )
