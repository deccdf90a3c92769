"""Comparing a fused checkpoint with what its plan gives, block by block.

The same pipeline as for writing, with two halves to a buffer: the base's rows, fused where they lie, and the fused
file's rows beside them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import EllipsisType

import numpy as np

from ltx2c.engines.blocks import Block, Piece, buffer_bytes, cut, gather, read_block
from ltx2c.engines.compare import Compared, KeyDifference, compare
from ltx2c.engines.fuser import Fuser
from ltx2c.engines.pipeline import BLOCK_BYTES, BUFFERS, Steps, run_pipeline, split_threads
from ltx2c.engines.weights import Array, WeightInWork, row_bytes, work_of
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.buffers import new_buffer
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress, Progress

# Sampled rows are taken in runs of this many, which kernels and disks like better than single rows.
RUN_ROWS = 64


class Comparison:
    """The pipeline's steps: read a block of the base and of the fused file, fuse, and compare.

    Attributes:
        tally: what was compared so far.
    """

    def __init__(self, opened: OpenedPlan, fused: Checkpoint, sample: float, threads: int) -> None:
        self._work = work_of(opened)
        self._companions = self._work.companions
        self.tally = Tally({*self._companions, *self._work.weights})
        self._fused = fused
        self._sample = sample
        self._shares = split_threads(threads, together=self._work.goes_twice)
        self._fuser = Fuser(self._work.arithmetic, self._shares)
        self._block_bytes = self._work.block_bytes(BLOCK_BYTES)
        self._half = 0
        self._theirs: tuple[WeightInWork | None, dict[str, Array]] = (None, {})

    def run(self, keys: Sequence[str], progress: OnProgress | None) -> None:
        """Compare the tensors of these names. A companion is compared with the weight that it belongs to."""
        tensors = [self._work.tensors[key] for key in keys if key not in self._companions]
        runs = [(tensor, list(self._sampled(tensor))) for tensor in tensors]
        bytes_total = sum(run.size for _, pieces in runs for run in pieces)
        macs_total = sum(self._work.macs(tensor.key, run.nbytes) for tensor, pieces in runs for run in pieces)
        self._half = buffer_bytes(tensors, self._work, self._block_bytes)
        blocks = run_pipeline(
            gather(self._places(runs), self._work, self._block_bytes),
            Steps(self._read, self._compare),
            buffers=[new_buffer(2 * self._half) for _ in range(BUFFERS)],
            workers=len(self._shares),
        )
        streamed = 0
        with contextlib.closing(blocks):
            for block, _, found in blocks:
                streamed += block.nbytes
                self.tally.macs += block.macs(self._work)
                for piece, compared in zip(block.pieces, found, strict=True):
                    self.tally.add(piece.tensor.key, compared, piece.size)
                    if piece.weight is not None and not piece.first_pass:
                        self._compare_companions(piece, piece.weight)
                if progress is not None:
                    progress(Progress(streamed, bytes_total, self.tally.macs, macs_total))

    def _sampled(self, tensor: StoredTensor) -> Iterator[Piece]:
        if tensor.key not in self._work.fusions or not tensor.nbytes:
            return sampled(tensor, self._sample, 1)
        unit = self._work.unit_bytes(tensor.key)
        if unit == tensor.nbytes:  # no row of it can be told without all
            return sampled(tensor, 1, 1)
        return sampled(tensor, self._sample, unit // row_bytes(tensor))

    def _places(self, runs: Iterable[tuple[StoredTensor, list[Piece]]]) -> Iterator[tuple[Piece, int]]:
        for tensor, pieces in runs:
            weight = self._work.begin(tensor.key, sum(piece.nbytes for piece in pieces)) if pieces else None
            for run in pieces:
                for piece in cut(run._replace(weight=weight), self._work, self._block_bytes):
                    yield piece, tensor.begin + piece.begin

    def _read(self, block: Block, buffer: memoryview) -> None:
        theirs = [Piece(self._fused.tensors[piece.tensor.key], piece.begin, piece.size) for piece in block.pieces]
        read_block(Block(block.begin, block.nbytes, theirs), buffer[self._half :])
        read_block(block, buffer[: self._half])

    def _compare(self, block: Block, buffer: memoryview, _: None) -> list[Compared]:
        self._fuser.fuse(block.parts(buffer[: self._half]))
        found = []
        for piece, at in block.places():
            ours, theirs = (buffer[start + at : start + at + piece.size] for start in (0, self._half))
            found.append(
                compare(ours, theirs, piece.weight.written.codes.dtype if piece.weight else piece.tensor.dtype)
            )
        return found

    def _compare_companions(self, piece: Piece, weight: WeightInWork) -> None:
        """Of the rows that were compared; in whole, and after the last of them, where one companion is for all."""
        written = weight.written
        if not weight.is_complete_with(piece.nbytes) and written.layout.whole:
            return
        part: slice | EllipsisType = ...
        if not written.layout.whole:
            granule = row_bytes(piece.tensor) * written.layout.granule_rows
            part = slice(piece.start // granule, -(-(piece.start + piece.nbytes) // granule))
        theirs = self._companions_of(weight)
        for role, spec in written.companions.items():
            if role in theirs:
                both = (np.ascontiguousarray(array[part]) for array in (weight.results[role], theirs[role]))
                ours, other = (array.reshape(-1).view(np.uint8).data for array in both)
                self.tally.add(spec.key, compare(ours, other, spec.dtype), len(ours))

    def _companions_of(self, weight: WeightInWork) -> dict[str, Array]:
        """The fused file's companions of the weight that is being compared, by role: read once for all its parts."""
        if self._theirs[0] is not weight:
            found = {role: self._fused.tensors.get(spec.key) for role, spec in weight.written.companions.items()}
            self._theirs = (
                weight,
                {
                    role: tensor.read()
                    for role, tensor in found.items()
                    if tensor is not None and (tensor.dtype, tensor.shape) == weight.written.companions[role][1:]
                },
            )
        return self._theirs[1]


class Tally:
    """What was compared so far.

    Attributes:
        bytes: how many.
        macs: multiply-adds.
    """

    def __init__(self, fused: set[str]) -> None:
        """``fused``: the tensors that fusing writes."""
        self.bytes = self.macs = 0
        self._written = fused
        self._by_key: dict[str, Compared] = {}

    def add(self, key: str, new: Compared, nbytes: int) -> None:
        """Take what some bytes of a tensor came to."""
        self.bytes += nbytes
        old = self._by_key.get(key, Compared(0, 0, 0))
        self._by_key[key] = Compared(*(a + b for a, b in zip(old, new, strict=True)))

    def differences(self, keys: Iterable[str]) -> Iterator[KeyDifference]:
        """Of the tensors that differ, in the order of ``keys``."""
        for key in keys:
            compared = self._by_key.get(key)
            if compared is not None and compared.differing:
                yield KeyDifference(key, key in self._written, *compared)


def sampled(tensor: StoredTensor, share: float, granule: int) -> Iterator[Piece]:
    """Runs of rows, evenly spread, that make up a share of a tensor; at least one run. Each begins at a granule."""
    if not tensor.nbytes:
        return
    row = row_bytes(tensor)
    rows = tensor.nbytes // row
    if share == 1:
        yield Piece(tensor, 0, tensor.nbytes)
        return
    length = min(rows, -(-RUN_ROWS // granule) * granule)
    runs = max(1, min(rows // length, round(rows * share / length)))
    for run in range(runs):
        first = (rows - length) * run // max(1, runs - 1) // granule * granule
        yield Piece(tensor, first * row, min(length, rows - first) * row)
