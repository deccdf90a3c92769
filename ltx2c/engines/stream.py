"""The bytes of a result, block by block: read from the base, and fused where they lie.

Whatever makes bytes of a result goes through here: a file that is written front to back, and a range of it made alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from ltx2c.engines.blocks import Block, Watch, buffer_bytes, read_block
from ltx2c.engines.fuser import Fused, Fuser
from ltx2c.engines.pipeline import BUFFERS, Steps, run_pipeline, split_threads
from ltx2c.engines.weights import Work
from ltx2c.files.buffers import new_buffer


class Stream:
    """Reads and fuses blocks, several at once, over the same buffers.

    Attributes:
        work: which weights are fused, with what.
        block_bytes: how large a block is at most, but for a weight that cannot be cut so small.
        buffers: page-aligned; free to use while no blocks are under way.
    """

    def __init__(
        self, work: Work, threads: int, *, block_bytes: int, watch: Watch | None = None, measure: bool = False
    ) -> None:
        """``watch`` is shown the base's bytes as they are read. ``measure``: as for ``Fuser``."""
        self.work = work
        self.block_bytes = block_bytes
        shares = split_threads(threads, together=work.goes_twice)
        self._workers = len(shares)
        self._fuser = Fuser(work.arithmetic, shares, measure=measure)
        self._watch = watch
        size = buffer_bytes(work.tensors.values(), work, block_bytes)
        self.buffers = [new_buffer(size) for _ in range(BUFFERS)]

    def run(self, blocks: Iterable[Block]) -> Generator[tuple[Block, memoryview, Fused], None, None]:
        """Yield every block with the buffer that holds its bytes, from ``block.lead`` on, and what fusing came to.

        The next block takes the buffer away. Close the iterator, also where it is left early.
        """
        return run_pipeline(blocks, Steps(self._read, self._fuse), buffers=self.buffers, workers=self._workers)

    def _read(self, block: Block, buffer: memoryview) -> None:
        read_block(block, buffer, self._watch)

    def _fuse(self, block: Block, buffer: memoryview, _: None) -> Fused:
        return self._fuser.fuse(block.parts(buffer))
