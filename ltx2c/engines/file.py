"""Carrying a plan out into a new file: the base's bytes stream through, and fused weights change on the way.

The output's tensor bytes are cut into blocks of about 16 MB. A block is read into a buffer, the rows of fused weights
in it are fused where they lie, and the buffer is written. Several blocks are under way at once (see ``pipeline``).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from ltx2c.engines.blocks import Block, cut_into_blocks
from ltx2c.engines.digests import Digests
from ltx2c.engines.fuser import Fused
from ltx2c.engines.late import Late
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.pipeline import BLOCK_BYTES
from ltx2c.engines.report import FuseReport, outline
from ltx2c.engines.stream import Stream
from ltx2c.engines.weights import work_of
from ltx2c.files.destination import Destination
from ltx2c.files.direct import EmptyFile, OutputFile, write_small_file
from ltx2c.files.layout import FileLayout, OutputLayout
from ltx2c.files.siblings import copy_sibling
from ltx2c.files.staging import publish, stage
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress, Progress

if TYPE_CHECKING:
    from hashlib import _Hash


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
    nonfinite = Nonfinite(plan.base.path, allowed=allow_nonfinite)
    with stage(destination) as staged:
        sources.check_unchanged()
        with _Writer(opened, layout, known.threads, nonfinite, digests, progress) as writer:
            for file in layout.files:
                writer.write(file, staged.file(file.name))
                for name in writer.take_finished():
                    staged.complete(name)
        for name, content in layout.texts.items():
            write_small_file(staged.file(name), content)
        for sibling in layout.siblings:
            copy_sibling(sibling, staged.file(sibling.name))
            staged.complete(sibling.name)
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
    )


class _Writer:
    """Writes the files of one result, one after the other, over the same buffers. A context manager: it closes them.

    Attributes:
        nonfinite: what the weights came to.
    """

    def __init__(
        self,
        opened: OpenedPlan,
        layout: OutputLayout,
        threads: int,
        nonfinite: Nonfinite,
        digests: Digests | None,
        progress: OnProgress | None,
    ) -> None:
        self.nonfinite = nonfinite
        self._plan = opened.plan
        self._digests = digests
        self._progress = progress
        self._work = work_of(opened)
        watch = digests.feed if digests is not None else None
        self._stream = Stream(self._work, threads, block_bytes=BLOCK_BYTES, watch=watch)
        self._late = Late(layout, self._work.weights.values(), self._patch)
        self._open: dict[str, _Output] = {}
        self._finished: list[str] = []
        self._written = self._macs = 0

    def write(self, layout: FileLayout, file: EmptyFile) -> None:
        """Fill one file of the result."""
        digest = hashlib.sha256() if self._digests else None
        output = OutputFile(file, layout.size, digest)
        self._open[layout.name] = _Output(layout, output, file.path, digest)
        output.append_copy(layout.header, self._stream.buffers[0])
        blocks = self._stream.run(cut_into_blocks(layout.tensors, self._work, BLOCK_BYTES))
        with contextlib.closing(blocks):
            for block, buffer, fused in blocks:
                self._settle(block, fused)
                self._late.fill(layout, block.begin, buffer[block.lead : block.lead + block.nbytes])
                output.append(buffer, block.nbytes)
                self._report(block)
        self.nonfinite.refuse()
        self._finish_settled()

    def take_finished(self) -> list[str]:
        """The names of the files that have been finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._open.values():
            one.output.close()

    def _settle(self, block: Block, fused: Fused) -> None:
        self.nonfinite.add(fused)
        self.nonfinite.refuse(going_on=block.pieces[-1].tensor.key)
        for piece in block.pieces:
            if piece.weight is not None and piece.weight.is_complete_with(piece.nbytes):
                self._late.put(piece.weight)

    def _report(self, block: Block) -> None:
        self._written += block.nbytes
        self._macs += block.macs(self._work)
        if self._progress is not None:
            self._progress(Progress(self._written, self._plan.bytes_written, self._macs, self._plan.macs))

    def _patch(self, name: str, offset: int, data: memoryview) -> None:
        self._open[name].output.patch(offset, data)

    def _finish_settled(self) -> None:
        """Finish the files that nothing is owed to any more."""
        for name, one in list(self._open.items()):
            if self._late.is_settled(one.layout):
                del self._open[name]
                self._finished.append(name)
                again = hashlib.sha256() if one.digest is not None and one.output.patched else None
                one.output.finish(again)
                if self._digests is not None and one.digest is not None:
                    self._digests.by_path[one.path] = (again or one.digest).hexdigest()


class _Output(NamedTuple):
    """A file that is being written; ``path`` is where it will be."""

    layout: FileLayout
    output: OutputFile
    path: Path
    digest: _Hash | None
