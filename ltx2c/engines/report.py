"""What a fuse did, for a program and for a person to read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from ltx2c import kernels
from ltx2c.files.url import AnyPath
from ltx2c.layouts import Loss
from ltx2c.plan import Plan
from ltx2c.threads import resolve_threads


@dataclass(frozen=True)
class AdapterReport:
    """One adapter's part in a fuse: ``pairs`` of its pairs have a home in the base, ``pairs_fused`` took part."""

    path: AnyPath
    strength: float
    pairs: int
    pairs_fused: int


@dataclass(frozen=True)
class FuseOutline:
    """What is known of a fuse before anything is written.

    Attributes:
        out: the file or folder to write.
        tensors, tensors_fused: how many it holds, and how many of them an adapter touches.
        adapters: in fusion order.
        unmatched: keys of pairs that have no target in the base and are left out.
        notes: one line each.
        sha256: path -> digest, as far as digests were asked for.
        bytes_read, bytes_written: tensor bytes.
        macs: multiply-adds.
        threads, kernel: what computes.
        reused: whether the result stands there already, made by the same request, so that nothing is written.
    """

    out: AnyPath
    tensors: int
    tensors_fused: int
    adapters: tuple[AdapterReport, ...]
    unmatched: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: dict[str, str]
    bytes_read: int
    bytes_written: int
    macs: int
    threads: int
    kernel: str
    reused: bool

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


@dataclass(frozen=True)
class FuseReport(FuseOutline):
    """What was written, and what a user should know of it.

    Attributes:
        nonfinite: weight key -> how many results are infinite or NaN where the base was finite.
        seconds: from the first byte read to the result in place, durable.
        loss: what is left of the deltas in weights that are stored in codes; of none where it was not measured.
    """

    nonfinite: dict[str, int]
    seconds: float
    loss: Loss = field(default_factory=Loss)

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return {**super().as_json(), "loss": self.loss.as_json() if self.loss.note else None}


def outline(
    plan: Plan, out: AnyPath, threads: int | None, sha256: Mapping[str, str] = MappingProxyType({})
) -> FuseOutline:
    """What a plan says of the fuse.

    Raises:
        RefusedError: ``threads``, or a forced kernel that does not run here.
    """
    return FuseOutline(
        out=out,
        tensors=plan.tensors,
        tensors_fused=len(plan.fusions),
        adapters=_adapter_reports(plan),
        unmatched=tuple(pair.key for pair in plan.unmatched),
        notes=tuple(plan.notes),
        sha256=dict(sha256),
        bytes_read=plan.bytes_read,
        bytes_written=plan.bytes_written,
        macs=plan.macs,
        threads=resolve_threads(threads),
        kernel=kernels.selected(),
        reused=False,
    )


def _adapter_reports(plan: Plan) -> tuple[AdapterReport, ...]:
    return tuple(
        AdapterReport(adapter.source.path, adapter.strength, adapter.deltas, adapter.deltas_fused)
        for adapter in plan.adapters
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, os.PathLike) else value
