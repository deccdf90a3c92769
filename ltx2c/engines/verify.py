"""Checking a fused checkpoint against its plan: recompute every weight and compare byte for byte, at streaming speed.

The same pipeline as for writing, with two halves to a buffer: the base's rows, fused where they lie, and the fused
file's rows beside them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ltx2c import kernels
from ltx2c.engines.blocks import Block, BlockFuser, Piece, buffer_bytes, cut, gather, macs, read_block, row_bytes
from ltx2c.engines.compare import Comparison, KeyDifference, compare, likely_cause
from ltx2c.engines.pipeline import BLOCK_BYTES, BUFFERS, Stage, run_pipeline, split_threads
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.buffers import new_buffer
from ltx2c.fusion import Job
from ltx2c.plan import Plan
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress, Progress
from ltx2c.threads import resolve_threads

# Sampled rows are taken in runs of this many, which kernels and disks like better than single rows.
RUN_ROWS = 64


@dataclass(frozen=True)
class VerifyReport:
    """How a fused checkpoint compares with what its base and adapters give.

    Attributes:
        fused: the checkpoint that was checked.
        equal: whether every byte that was compared agrees, and the keys, dtypes and shapes do.
        sample: the share of every tensor's rows that was compared.
        structure: one line per key that is missing, surplus, or of another dtype or shape.
        differences: tensors of which bytes differ, in the base's order.
        likely: what the differences look like, for a person; empty where there are none.
        unmatched: adapter keys that have no home in the base and were left out.
        notes: one line each, on the base, the adapters and the checkpoint that was checked.
        tensors, bytes_compared: how much was compared.
        macs, seconds, threads, kernel: what it took.
    """

    fused: Path
    equal: bool
    sample: float
    structure: tuple[str, ...]
    differences: tuple[KeyDifference, ...]
    likely: str
    unmatched: tuple[str, ...]
    notes: tuple[str, ...]
    tensors: int
    bytes_compared: int
    macs: int
    seconds: float
    threads: int
    kernel: str

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return {**asdict(self), "fused": str(self.fused)}


def verify_fused(
    opened: OpenedPlan,
    fused: Checkpoint,
    *,
    threads: int | None = None,
    sample: float = 1.0,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare ``fused`` with what ``plan`` gives.

    Args:
        threads: to compute with; None for what this process may use.
        sample: the share of every tensor's rows to compare, above 0 and up to 1. The same rows every time.
        progress: called now and then, in the calling thread.

    Raises:
        OSError: reading failed.
        RefusedError: ``bad-sample``, ``file-changed``, ``threads``.
    """
    if not 0 < sample <= 1:
        raise RefusedError(f"the share of rows to sample must be above 0 and up to 1, not {sample}", code="bad-sample")
    plan, sources = opened
    base = sources.base
    began = time.perf_counter()
    count, kernel = resolve_threads(threads), kernels.selected()
    structure = tuple(_structure(base, fused))
    common = [tensor for key, tensor in base.tensors.items() if _kind(tensor) == _kind(fused.tensors.get(key))]
    tally = _Tally(base, plan)
    _run(opened, fused, common, sample, count, tally, progress)
    for checkpoint in (*sources.checkpoints, fused):
        checkpoint.check_unchanged()
    differences = tuple(tally.differences())
    return VerifyReport(
        fused=fused.path,
        equal=not structure and not differences,
        sample=sample,
        structure=structure,
        differences=differences,
        likely=likely_cause(structure, differences),
        unmatched=tuple(left.key for left in plan.unmatched),
        notes=(*plan.notes, *fused.notes),
        tensors=len(common),
        bytes_compared=tally.bytes,
        macs=tally.macs,
        seconds=time.perf_counter() - began,
        threads=count,
        kernel=kernel,
    )


def _run(
    opened: OpenedPlan,
    fused: Checkpoint,
    tensors: list[StoredTensor],
    sample: float,
    threads: int,
    tally: _Tally,
    progress: OnProgress | None,
) -> None:
    plan, sources = opened
    half = buffer_bytes(tensors, plan.fusions, BLOCK_BYTES)
    pieces = [
        piece for tensor in tensors for run in _sampled(tensor, sample) for piece in cut(run, plan.fusions, BLOCK_BYTES)
    ]
    bytes_total = sum(piece.nbytes for piece in pieces)
    macs_total = sum(macs(piece, plan.fusions) for piece in pieces)
    shares = split_threads(threads)
    comparer = _Comparer(BlockFuser(plan.fusions, sources.load, shares), fused, half)
    blocks = run_pipeline(
        gather(((piece, piece.tensor.begin + piece.start) for piece in pieces), plan.fusions, BLOCK_BYTES),
        Stage(comparer.read, comparer.compare),
        buffers=[new_buffer(2 * half) for _ in range(BUFFERS)],
        workers=len(shares),
    )
    with contextlib.closing(blocks):
        for block, _, result in blocks:
            tally.add(block, result)
            if progress is not None:
                progress(Progress(tally.bytes, bytes_total, tally.macs, macs_total))


class _Tally:
    """What was compared so far."""

    def __init__(self, base: Checkpoint, plan: Plan) -> None:
        self.bytes = self.macs = 0
        self._base = base
        self._plan = plan
        self._by_key: dict[str, Comparison] = {}

    def add(self, block: Block, compared: Compared) -> None:
        self.bytes += block.nbytes
        self.macs += compared.macs
        for piece, new in zip(block.pieces, compared.comparisons, strict=True):
            old = self._by_key.get(piece.tensor.key, Comparison(0, 0, 0))
            self._by_key[piece.tensor.key] = Comparison(*(a + b for a, b in zip(old, new, strict=True)))

    def differences(self) -> Iterator[KeyDifference]:
        for key in self._base.tensors:
            compared = self._by_key.get(key)
            if compared is not None and compared.differing:
                yield KeyDifference(key, key in self._plan.fusions, *compared)


class Compared(NamedTuple):
    """One block's result, a comparison per piece."""

    comparisons: list[Comparison]
    macs: int


class _Comparer:
    """The two steps of the pipeline: read a block of the base and of the fused file, and compare after fusing."""

    def __init__(self, fuser: BlockFuser, fused: Checkpoint, half: int) -> None:
        self._fuser = fuser
        self._fused = fused
        self._half = half

    def read(self, block: Block, buffer: memoryview) -> list[Job]:
        theirs = [Piece(self._fused.tensors[tensor.key], start, nbytes) for tensor, start, nbytes in block.pieces]
        read_block(Block(block.begin, block.nbytes, theirs), buffer[self._half :])
        return self._fuser.read(block, buffer[: self._half])

    def compare(self, block: Block, buffer: memoryview, jobs: list[Job]) -> Compared:
        fused = self._fuser.fuse(block, buffer[: self._half], jobs)
        comparisons = []
        at = block.lead
        for tensor, _, nbytes in block.pieces:
            ours, theirs = (buffer[start + at : start + at + nbytes] for start in (0, self._half))
            comparisons.append(compare(ours, theirs, tensor.dtype))
            at += nbytes
        return Compared(comparisons, fused.macs)


def _structure(base: Checkpoint, fused: Checkpoint) -> Iterator[str]:
    for key, tensor in base.tensors.items():
        other = fused.tensors.get(key)
        if other is None:
            yield f"{printable(key)} is missing"
        elif _kind(tensor) != _kind(other):
            was = f"{tensor.dtype} {list(tensor.shape)}"
            yield f"{printable(key)} is {other.dtype} {list(other.shape)}, in the base {was}"
    yield from (f"{printable(key)} is not in the base" for key in fused.tensors if key not in base.tensors)


def _kind(tensor: StoredTensor | None) -> tuple[object, ...]:
    return () if tensor is None else (tensor.dtype, tensor.shape)


def _sampled(tensor: StoredTensor, share: float) -> Iterator[Piece]:
    """Runs of rows, evenly spread, that make up a share of a tensor; at least one run."""
    if not tensor.nbytes:
        return
    row = row_bytes(tensor)
    rows = tensor.nbytes // row
    if share == 1:
        yield Piece(tensor, 0, tensor.nbytes)
        return
    length = min(rows, RUN_ROWS)
    runs = max(1, min(rows // length, round(rows * share / length)))
    for run in range(runs):
        first = (rows - length) * run // max(1, runs - 1)
        yield Piece(tensor, first * row, length * row)
