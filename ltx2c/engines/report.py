"""What a fuse did, for a program and for a person to read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltx2c.plan import Plan


@dataclass(frozen=True)
class AdapterReport:
    """One adapter's part in a fuse: ``pairs`` of its pairs have a home in the base, ``pairs_fused`` took part."""

    path: Path
    strength: float
    pairs: int
    pairs_fused: int


@dataclass(frozen=True)
class FuseReport:
    """What was written, and what a user should know of it.

    Attributes:
        out: the file or folder written.
        tensors, tensors_fused: how many it holds, and how many of them an adapter touched.
        adapters: in fusion order.
        unmatched: keys of pairs that have no home in the base and were left out.
        notes: one line each.
        nonfinite: weight key -> how many results are infinite or NaN where the base was finite.
        sha256: path -> digest of inputs and outputs; empty where none were asked for.
        bytes_read, bytes_written: tensor bytes.
        macs: multiply-adds.
        seconds: from the first byte read to the result in place, durable.
        threads, kernel: what computed.
    """

    out: Path
    tensors: int
    tensors_fused: int
    adapters: tuple[AdapterReport, ...]
    unmatched: tuple[str, ...]
    notes: tuple[str, ...]
    nonfinite: dict[str, int]
    sha256: dict[str, str]
    bytes_read: int
    bytes_written: int
    macs: int
    seconds: float
    threads: int
    kernel: str

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def adapter_reports(plan: Plan) -> tuple[AdapterReport, ...]:
    """What a plan says of each adapter."""
    return tuple(
        AdapterReport(adapter.path, strength, len(adapter.pairs), fused)
        for (adapter, strength), fused in zip(plan.adapters, plan.pairs_fused, strict=True)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
