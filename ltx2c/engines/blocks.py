"""A file's tensor bytes cut into blocks that fit a buffer, and what is done to each block."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.dtypes import DTYPES
from ltx2c.files.header import PAGE
from ltx2c.files.layout import Placed
from ltx2c.files.tensorfile import StoredTensor, TensorFile
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.plan import Fusions
from ltx2c.plan.sources import DeltaRef

Load = Callable[[DeltaRef], LoadedDelta]
Watch = Callable[[TensorFile, int, memoryview], None]


class Piece(NamedTuple):
    """Part of a tensor within a block: ``nbytes`` from the tensor's byte ``start`` on, whole rows where it is fused."""

    tensor: StoredTensor
    start: int
    nbytes: int


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


def cut_into_blocks(tensors: Iterable[Placed], fusions: Fusions, block_bytes: int) -> Iterator[Block]:
    """Cut tensors, which lie one behind the other, into blocks of at most ``block_bytes`` (or one fused row)."""
    places = (
        (piece, begin + piece.start)
        for tensor, begin in tensors
        for piece in cut(Piece(tensor, 0, tensor.nbytes), fusions, block_bytes)
    )
    return gather(places, fusions, block_bytes)


def cut(piece: Piece, fusions: Fusions, block_bytes: int) -> Iterator[Piece]:
    """Cut a piece into parts of about equal size that fit a block: between its rows if fused, else its elements."""
    tensor, start, nbytes = piece
    unit = row_bytes(tensor) if tensor.key in fusions and nbytes else max(1, DTYPES[tensor.dtype].bits // 8)
    units = nbytes // unit
    parts = max(1, min(units, -(-nbytes // max(1, block_bytes // unit * unit))))
    cuts = [start + unit * (units * part // parts) for part in range(parts + 1)]
    for begin, end in itertools.pairwise(cuts):
        yield Piece(tensor, begin, end - begin)


def gather(places: Iterable[tuple[Piece, int]], fusions: Fusions, block_bytes: int) -> Iterator[Block]:
    """Put pieces, each with its offset in the output, into blocks; none is cut.

    A block's weights take their factors along, so those count as well: twice a block's bytes is enough of them.
    """
    block: Block | None = None
    factors = 0
    for piece, begin in places:
        more = _factor_bytes(piece, fusions)
        if block is not None and (block.nbytes + piece.nbytes > block_bytes or factors + more > 2 * block_bytes):
            yield block
            block, factors = None, 0
        block = block or Block(begin)
        block.add(piece)
        factors += more
    if block is not None:
        yield block


def _factor_bytes(piece: Piece, fusions: Fusions) -> int:
    return sum(one.delta.nbytes for one in fusions.get(piece.tensor.key, ()))


def row_bytes(tensor: StoredTensor) -> int:
    """Bytes of one row of a tensor that holds any; all of them where rows are not whole bytes or there are none."""
    rows = tensor.shape[0] if tensor.shape else 1
    return tensor.nbytes // rows if tensor.nbytes % rows == 0 else tensor.nbytes


def macs(piece: Piece, fusions: Fusions) -> int:
    """Multiply-adds to fuse a piece."""
    whole = sum(one.delta.macs for one in fusions.get(piece.tensor.key, ()))
    return whole and whole * piece.nbytes // piece.tensor.nbytes


def buffer_bytes(tensors: Iterable[StoredTensor], fusions: Fusions, block_bytes: int) -> int:
    """How large a buffer must be for every block: room for a page before and behind, and for the longest fused row."""
    rows = (row_bytes(tensor) for tensor in tensors if tensor.key in fusions and tensor.nbytes)
    return -(-max([block_bytes, *rows]) // PAGE) * PAGE + 2 * PAGE


class LoadedDeltas:
    """What is added to the weight that is being read, shared by its blocks and let go with the last of them."""

    def __init__(self, fusions: Fusions, load: Load) -> None:
        self._fusions = fusions
        self._load = load
        self._key: str | None = None
        self._read: list[tuple[LoadedDelta, float]] = []

    def of(self, key: str) -> list[tuple[LoadedDelta, float]]:
        """Every delta of a weight, read, with its effective strength."""
        if key != self._key:
            self._read = []  # let go of the last before reading the next
            self._read = [(self._load(one.delta), one.effective_strength) for one in self._fusions[key]]
            self._key = key
        return self._read


class BlockFuser:
    """The two steps of the pipeline: read a block with the deltas that it needs, and fuse it where it lies."""

    def __init__(self, fusions: Fusions, load: Load, threads: Iterable[int], watch: Watch | None = None) -> None:
        """``threads``: of each worker that calls ``fuse``. ``watch``: is shown the base's bytes as they are read."""
        self._fusions = fusions
        self._threads: queue.SimpleQueue[int] = queue.SimpleQueue()
        for share in threads:
            self._threads.put(share)
        self._watch = watch
        self._deltas = LoadedDeltas(fusions, load)

    def read(self, block: Block, buffer: memoryview) -> list[Job]:
        """Fill ``buffer`` from byte ``block.lead`` on; the jobs that fuse it in place. Called in file order."""
        read_block(block, buffer, self._watch)
        jobs = []
        at = block.lead
        for tensor, start, nbytes in block.pieces:
            if tensor.key in self._fusions and nbytes:
                jobs.append(self._job(tensor, start, buffer[at : at + nbytes]))
            at += nbytes
        return jobs

    def _job(self, tensor: StoredTensor, start: int, data: memoryview) -> Job:
        weight = np.frombuffer(data, DTYPES[tensor.dtype].numpy).reshape(-1, tensor.shape[1])
        row = start // row_bytes(tensor)
        rows = slice(row, row + len(weight))
        terms = [term for delta, strength in self._deltas.of(tensor.key) for term in delta.terms(strength, rows)]
        return Job(weight, terms, weight)

    def fuse(self, block: Block, buffer: memoryview, jobs: list[Job]) -> Fused:
        """Run a block's jobs, with the threads of a worker that is not at work."""
        keys = [tensor.key for tensor, _, nbytes in block.pieces if tensor.key in self._fusions and nbytes]
        share = self._threads.get()
        try:
            counts = fuse_jobs(jobs, threads=share)
        finally:
            self._threads.put(share)
        nonfinite = {key: count for key, count in zip(keys, counts, strict=True) if count}
        return Fused(nonfinite, sum(macs(piece, self._fusions) for piece in block.pieces))


class Fused(NamedTuple):
    """What fusing a block came to: per weight, how many results are infinite or NaN where the base was finite."""

    nonfinite: dict[str, int]
    macs: int


def read_block(block: Block, buffer: memoryview, watch: Watch | None = None) -> None:
    """Read a block's bytes to where they lie in ``buffer``, in as few calls as their sources allow."""
    at = block.lead
    for file, offset, nbytes in _runs(block):
        if at == block.lead:
            file.read_block(buffer, at, nbytes, offset)
        else:  # the page before belongs to what was read last
            file.read_into(buffer[at : at + nbytes], offset)
        if watch is not None:
            watch(file, offset, buffer[at : at + nbytes])
        at += nbytes


def _runs(block: Block) -> Iterator[tuple[TensorFile, int, int]]:
    """The block's bytes as (file, offset, length), adjoining pieces joined."""
    file, offset, nbytes = block.pieces[0].tensor.file, 0, 0
    for tensor, start, size in block.pieces:
        if nbytes and (tensor.file is not file or tensor.begin + start != offset + nbytes):
            yield file, offset, nbytes
            nbytes = 0
        if not nbytes:
            file, offset = tensor.file, tensor.begin + start
        nbytes += size
    yield file, offset, nbytes
