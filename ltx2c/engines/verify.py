"""Checking a fused checkpoint against its plan: recompute every weight and compare byte for byte, at streaming speed.

The same pipeline as for writing, with two halves to a buffer: the base's rows, fused where they lie, and the fused
file's rows beside them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ltx2c import kernels
from ltx2c.engines.compare import KeyDifference, likely_cause
from ltx2c.engines.comparison import Comparison
from ltx2c.engines.outputs import outputs
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.layout import OutputTensor
from ltx2c.files.url import AnyPath
from ltx2c.plan.opened import OpenedPlan
from ltx2c.progress import OnProgress
from ltx2c.threads import resolve_threads


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
        unmatched: adapter keys that have no target in the base and were left out.
        notes: one line each, on the base, the adapters and the checkpoint that was checked.
        tensors, bytes_compared: how much was compared.
        macs, seconds, threads, kernel: what it took.
    """

    fused: AnyPath
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
    began = time.perf_counter()
    count, kernel = resolve_threads(threads), kernels.selected()
    expected = {tensor.key: tensor for tensor in outputs(opened)}
    structure = tuple(_structure(expected, fused))
    common = [key for key, tensor in expected.items() if _kind(tensor) == _kind(fused.tensors.get(key))]
    comparison = Comparison(opened, fused, sample, count)
    comparison.run(common, progress)
    for checkpoint in (*sources.checkpoints, fused):
        checkpoint.check_unchanged()
    differences = tuple(comparison.tally.differences(expected))
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
        bytes_compared=comparison.tally.bytes,
        macs=comparison.tally.macs,
        seconds=time.perf_counter() - began,
        threads=count,
        kernel=kernel,
    )


def _structure(expected: Mapping[str, OutputTensor], fused: Checkpoint) -> Iterator[str]:
    for key, tensor in expected.items():
        other = fused.tensors.get(key)
        if other is None:
            yield f"{printable(key)} is missing"
        elif _kind(tensor) != _kind(other):
            was = f"{tensor.dtype} {list(tensor.shape)}"
            yield f"{printable(key)} is {other.dtype} {list(other.shape)}, in the base {was}"
    yield from (f"{printable(key)} is not in the base" for key in fused.tensors if key not in expected)


def _kind(tensor: StoredTensor | OutputTensor | None) -> tuple[object, ...]:
    return () if tensor is None else (tensor.dtype, tensor.shape)
