"""A file's tensor bytes cut into blocks that fit a buffer, and how a block is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ltx2c.dtypes import DTYPES
from ltx2c.engines.fuser import Part
from ltx2c.engines.weights import WeightInWork, Work
from ltx2c.files.header import PAGE
from ltx2c.files.layout import Placed
from ltx2c.files.tensorfile import StoredTensor, TensorFile

Watch = Callable[[TensorFile, int, memoryview], None]


class Piece(NamedTuple):
    """Part of a tensor within a block: ``nbytes`` from the tensor's byte ``start`` on, whole rows where it is fused."""

    tensor: StoredTensor
    start: int
    nbytes: int
    weight: WeightInWork | None = None


@dataclass
class Block:
    """Consecutive bytes of an output file.

    Attributes:
        begin: offset in the output file.
        nbytes: how many.
        pieces: what they are, in order, without gaps.
    """

    begin: int
    nbytes: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def lead(self) -> int:
        """Where the block's first byte lies in a buffer: buffer and file agree modulo the page size."""
        return self.begin % PAGE

    def add(self, piece: Piece) -> None:
        """Take one more piece, which follows on the last."""
        self.pieces.append(piece)
        self.nbytes += piece.nbytes

    def places(self) -> Iterator[tuple[Piece, int]]:
        """Each piece with where its first byte lies in a buffer."""
        at = self.lead
        for piece in self.pieces:
            yield piece, at
            at += piece.nbytes

    def parts(self, buffer: memoryview) -> list[Part]:
        """What is to be fused, as it lies in ``buffer``."""
        return [
            Part(piece.tensor, piece.start, piece.weight, np.frombuffer(buffer[at : at + piece.nbytes], np.uint8))
            for piece, at in self.places()
            if piece.weight is not None and piece.nbytes
        ]

    def macs(self, work: Work) -> int:
        """Multiply-adds to fuse it."""
        return sum(work.macs(piece.tensor.key, piece.nbytes) for piece in self.pieces if piece.weight is not None)


def cut_into_blocks(tensors: Iterable[Placed], work: Work, block_bytes: int) -> Iterator[Block]:
    """Cut tensors, which lie one behind the other, into blocks of at most ``block_bytes`` (or one unit of a weight)."""
    places = (
        (piece, begin + piece.start)
        for output, begin in tensors
        for piece in cut(
            Piece(output.source, 0, output.nbytes, work.begin(output.key) if output.nbytes else None),
            work,
            block_bytes,
        )
    )
    return gather(places, work, block_bytes)


def cut(piece: Piece, work: Work, block_bytes: int) -> Iterator[Piece]:
    """Cut a piece into parts of about equal size that fit a block: between its units if fused, else its elements."""
    tensor, start, nbytes, weight = piece
    unit = max(1, DTYPES[tensor.dtype].bits // 8) if weight is None else work.unit_bytes(tensor.key)
    units = -(-nbytes // unit)
    parts = max(1, min(units, -(-nbytes // max(1, block_bytes // unit * unit))))
    cuts = [start + min(nbytes, unit * (units * part // parts)) for part in range(parts + 1)]
    for begin, end in itertools.pairwise(cuts):
        yield Piece(tensor, begin, end - begin, weight)


def gather(places: Iterable[tuple[Piece, int]], work: Work, block_bytes: int) -> Iterator[Block]:
    """Put pieces, each with its offset in the output, into blocks; none is cut.

    A block's weights take their deltas along, so those count as well: twice a block's bytes is enough of them.
    """
    block: Block | None = None
    deltas = 0
    for piece, begin in places:
        more = work.delta_bytes(piece.tensor.key)
        if block is not None and (block.nbytes + piece.nbytes > block_bytes or deltas + more > 2 * block_bytes):
            yield block
            block, deltas = None, 0
        block = block or Block(begin)
        block.add(piece)
        deltas += more
    if block is not None:
        yield block


def buffer_bytes(tensors: Iterable[StoredTensor], work: Work, block_bytes: int) -> int:
    """How large a buffer must be for every block: a page before and behind, and room for a weight's largest unit."""
    units = (work.unit_bytes(tensor.key) for tensor in tensors if tensor.key in work.fusions and tensor.nbytes)
    return -(-max([block_bytes, *units]) // PAGE) * PAGE + 2 * PAGE


def read_block(block: Block, buffer: memoryview, watch: Watch | None = None) -> None:
    """Read a block's bytes to where they lie in ``buffer``, in as few calls as their sources allow, and its deltas.

    ``watch`` is shown the bytes as they are read.
    """
    at = block.lead
    for file, offset, nbytes in _runs(block.pieces):
        if at == block.lead:
            file.read_block(buffer, at, nbytes, offset)
        else:  # the page before belongs to what was read last
            file.read_into(buffer[at : at + nbytes], offset)
        if watch is not None:
            watch(file, offset, buffer[at : at + nbytes])
        at += nbytes
    for piece in block.pieces:
        if piece.weight is not None:
            piece.weight.load()


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[TensorFile, int, int]]:
    """Pieces' bytes as (file, offset, length), adjoining ones joined."""
    file, offset, nbytes = pieces[0].tensor.file, 0, 0
    for tensor, start, size, _ in pieces:
        if nbytes and (tensor.file is not file or tensor.begin + start != offset + nbytes):
            yield file, offset, nbytes
            nbytes = 0
        if not nbytes:
            file, offset = tensor.file, tensor.begin + start
        nbytes += size
    yield file, offset, nbytes
