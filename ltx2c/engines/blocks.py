"""A file's tensor bytes cut into blocks that fit a buffer, and how a block is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator
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
    """Part of a tensor within a block: ``nbytes`` from the tensor's byte ``start`` on, whole rows where it is fused.

    Attributes:
        tensor: of the base.
        weight: where it is fused or converted.
        made: bytes of a tensor of the result that is made of none of the base: a new companion, which is known late.
        first_pass: whether it is only looked at, for the scale of all its weight, and comes again.
    """

    tensor: StoredTensor
    start: int
    nbytes: int
    weight: WeightInWork | None = None
    made: int = 0
    first_pass: bool = False

    @property
    def converted(self) -> bool:
        """Whether its bytes in the result are others than the base's in place: those are read aside."""
        return self.weight is not None and self.weight.converted

    @property
    def aside(self) -> bool:
        """Whether it is read to a place behind the block's bytes of the result."""
        return self.first_pass or self.converted

    @property
    def size(self) -> int:
        """What it takes in the result."""
        assert self.weight is None or not self.made
        if self.first_pass:
            return 0
        return self.made or (self.weight.written_bytes(self.nbytes) if self.weight else self.nbytes)

    @property
    def begin(self) -> int:
        """Where in the result's tensor it begins; all of a first pass comes before that."""
        if self.first_pass:
            return 0
        return self.weight.written_bytes(self.start) if self.weight else self.start

    @property
    def room(self) -> int:
        """What it may take in a buffer."""
        return _room(self.size, self.nbytes) if self.aside else self.size

    @property
    def fused_bytes(self) -> int:
        """Stored bytes that are fused for good."""
        return 0 if self.first_pass else self.nbytes


@dataclass
class Block:
    """Consecutive bytes of an output file.

    Attributes:
        begin: offset in the output file.
        nbytes: how many.
        pieces: what they are, in order, without gaps.
        room: what it may take in a buffer: behind the output's bytes lie the base's of what is converted.
    """

    begin: int
    nbytes: int = 0
    pieces: list[Piece] = field(default_factory=list)
    room: int = 0

    @property
    def lead(self) -> int:
        """Where the block's first byte lies in a buffer: buffer and file agree modulo the page size."""
        return self.begin % PAGE

    def add(self, piece: Piece) -> None:
        """Take one more piece, which follows on the last."""
        self.pieces.append(piece)
        self.nbytes += piece.size
        self.room += piece.room

    def places(self) -> Iterator[tuple[Piece, int]]:
        """Each piece with where its first byte lies in a buffer."""
        at = self.lead
        for piece in self.pieces:
            yield piece, at
            at += piece.size

    def asides(self) -> Iterator[tuple[Piece, int]]:
        """Each piece that is read aside, with where: as its bytes lie in the base's file, modulo the page size."""
        at = _aligned(self.lead + self.nbytes)
        for piece in self.pieces:
            if piece.aside:
                at += (piece.tensor.begin + piece.start) % PAGE
                yield piece, at
                at = _aligned(at + piece.nbytes)

    def parts(self, buffer: memoryview, asides: memoryview | None = None, like: Block | None = None) -> list[Part]:
        """What is to be fused, as it lies in ``buffer``.

        Args:
            asides: another buffer, in which what is read aside lies as it does for the block
                ``like``: the same pieces, perhaps at another place of their output.
        """
        given = buffer if asides is None else asides
        read_aside = iter((like or self).asides())
        parts = []
        for piece, at in self.places():
            memory, out = np.frombuffer(buffer[at : at + piece.size], np.uint8), None
            if piece.aside:
                _, begin = next(read_aside)
                memory, out = np.frombuffer(given[begin : begin + piece.nbytes], np.uint8), memory
            if piece.weight is not None and piece.nbytes:
                where = out if piece.converted else None
                parts.append(Part(piece.tensor, piece.start, piece.weight, memory, where, piece.first_pass))
        return parts

    def macs(self, work: Work) -> int:
        """Multiply-adds to fuse it."""
        return sum(work.macs(piece.tensor.key, piece.fused_bytes) for piece in self.pieces if piece.weight is not None)


def cut_into_blocks(tensors: Iterable[Placed], work: Work, block_bytes: int) -> Iterator[Block]:
    """Cut tensors, which lie one behind the other, into blocks of at most ``block_bytes`` (or one unit of a weight)."""
    new = work.companions.keys() - work.tensors.keys()
    return gather(_places(tensors, work, block_bytes, new), work, block_bytes)


def _places(
    tensors: Iterable[Placed], work: Work, block_bytes: int, new: Container[str]
) -> Iterator[tuple[Piece, int]]:
    for output, begin in tensors:
        if output.key in new:
            yield Piece(output.source, 0, 0, made=output.nbytes), begin
            continue
        weight = work.begin(output.key) if output.nbytes else None
        for piece in cut(Piece(output.source, 0, output.source.nbytes, weight), work, block_bytes):
            yield piece, begin + piece.begin


def cut(piece: Piece, work: Work, block_bytes: int) -> Iterator[Piece]:
    """Cut a piece into parts of about equal size that fit a block: between rows if fused, else its elements.

    Where one scale is for all of them, and they are several, they come twice.
    """
    tensor, start, nbytes, weight, *_ = piece
    unit = max(1, DTYPES[tensor.dtype].bits // 8) if weight is None else work.piece_bytes(tensor.key)
    room = piece._replace(start=0, nbytes=unit).room
    units = -(-nbytes // unit)
    parts = max(1, min(units, -(-units // max(1, block_bytes // room))))
    cuts = [start + min(nbytes, unit * (units * part // parts)) for part in range(parts + 1)]
    twice = parts > 1 and weight is not None and weight.written.layout.whole
    for first_pass in (True, False) if twice else (False,):
        for begin, end in itertools.pairwise(cuts):
            yield piece._replace(start=begin, nbytes=end - begin, first_pass=first_pass)


def gather(places: Iterable[tuple[Piece, int]], work: Work, block_bytes: int) -> Iterator[Block]:
    """Put pieces, each with its offset in the output, into blocks; none is cut.

    A block's weights take their deltas along, so those count as well: twice a block's bytes is enough of them.
    """
    block: Block | None = None
    deltas = 0
    for piece, begin in places:
        more = 0 if piece.made else work.delta_bytes(piece.tensor.key)
        if block is not None and (block.room + piece.room > block_bytes or deltas + more > 2 * block_bytes):
            yield block
            block, deltas = None, 0
        block = block or Block(begin)
        block.add(piece)
        deltas += more
    if block is not None:
        yield block


def buffer_bytes(tensors: Iterable[StoredTensor], work: Work, block_bytes: int) -> int:
    """How large a buffer must be for every block: a page before and behind, and room for a weight's largest piece."""
    units = (_unit_room(tensor.key, work) for tensor in tensors if tensor.key in work.fusions and tensor.nbytes)
    return -(-max([block_bytes, *units]) // PAGE) * PAGE + 2 * PAGE


def _unit_room(key: str, work: Work) -> int:
    unit = work.piece_bytes(key)
    stored, written = work.way(key)
    return unit if stored.layout == written.layout else _room(work.written_bytes(key, unit), unit)


def _room(size: int, aside: int) -> int:
    """Of a piece that is read aside: its bytes in the result, and the base's in pages of their own."""
    return size + aside + 2 * PAGE


def _aligned(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def read_block(block: Block, buffer: memoryview, watch: Watch | None = None) -> None:
    """Read a block's bytes to where they lie in ``buffer``, in as few calls as their sources allow, and its deltas.

    ``watch`` is shown the bytes as they are read.
    """
    for run in (*_runs(block), *_aside_runs(block)):
        if run.alone:
            run.file.read_block(buffer, run.at, run.nbytes, run.offset)
        else:  # the page before belongs to what was read last
            run.file.read_into(buffer[run.at : run.at + run.nbytes], run.offset)
        if watch is not None and not run.again:
            watch(run.file, run.offset, buffer[run.at : run.at + run.nbytes])
    for piece in block.pieces:
        if piece.weight is not None:
            piece.weight.load()


class _Run(NamedTuple):
    """Bytes of a file that are read in one go, and where they go.

    Attributes:
        alone: whether the pages before hold nothing.
        again: whether they are read once more.
    """

    file: TensorFile
    offset: int
    nbytes: int
    at: int
    alone: bool
    again: bool = False


def _runs(block: Block) -> Iterator[_Run]:
    """What is read to its place in the output, adjoining pieces joined."""
    run: _Run | None = None
    for piece, at in block.places():
        if piece.aside or piece.made:
            continue
        file, offset = piece.tensor.file, piece.tensor.begin + piece.start
        if run is not None and file is run.file and (offset, at) == (run.offset + run.nbytes, run.at + run.nbytes):
            run = run._replace(nbytes=run.nbytes + piece.nbytes)
        else:
            if run is not None and run.nbytes:
                yield run
            run = _Run(file, offset, piece.nbytes, at, at == block.lead)
    if run is not None and run.nbytes:
        yield run


def _aside_runs(block: Block) -> Iterator[_Run]:
    for piece, at in block.asides():
        if piece.nbytes:
            yield _Run(piece.tensor.file, piece.tensor.begin + piece.start, piece.nbytes, at, True, piece.first_pass)
