"""What a file is, what it would do, and whether it fits a base: ``inspect``."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ltx2c import layouts
from ltx2c.adapters import Adapter, Delta, keys
from ltx2c.adapters.deltas import LowRank
from ltx2c.adapters.formats import WRITERS
from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint
from ltx2c.files.packed import parse_packed
from ltx2c.norms import DeltaNorm, delta_norms
from ltx2c.plan import plan_fuse
from ltx2c.plan.match import Matches, find_targets
from ltx2c.plan.models import model_of
from ltx2c.plan.nearest import nearest_name

# For how many keys the nearest name is sought, which takes a while: an adapter for another model has thousands.
_NEAREST_SOUGHT = 12

_BLOCK = re.compile(r"(?<=blocks[._])\d+(?=[._])")


@dataclass(frozen=True)
class Inspection:
    """What ``inspect`` found.

    Attributes:
        facts: everything, in JSON's own types: what ``ltx2c inspect --json`` prints.
        norms: one per delta with a target, where they were asked for.
    """

    facts: Mapping[str, Any]
    norms: tuple[DeltaNorm, ...] = ()


def inspect(
    path: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    *,
    norms: bool = False,
    variant: str | None = None,
) -> Inspection:
    """Say what a checkpoint or an adapter holds, and with a base whether and where it fits. Writes nothing.

    Args:
        path: a ``.safetensors`` file, a folder of shards, its index, or an adapter's folder as PEFT saves it.
        against: the base that an adapter is held against.
        norms: measure every delta beside its weight: reads the adapter, and of the base what it touches.
        variant: which weights of a folder that holds several: of ``against``; without one, of ``path``.

    Raises:
        OSError: as the system raised it.
        RefusedError: the file is no safetensors file; it is no adapter and ``against`` is given; ``no-base``: norms
            need one.
    """
    if norms and against is None:
        raise RefusedError("norms are relative to the weights' of a base: give one to be held against", code="no-base")
    with Checkpoint.open(path, variant=variant if against is None else None) as checkpoint:
        facts = _checkpoint_facts(checkpoint)
        has_factors = any(parsed.role != "alpha" for parsed in map(keys.parse, checkpoint.tensors) if parsed)
        has_factors = has_factors or any(map(keys.not_fused, checkpoint.tensors))
    measured: tuple[DeltaNorm, ...] = ()
    if against is not None:
        with Adapter.open(path) as adapter, Checkpoint.open(against, variant=variant) as base:
            matches = find_targets(base, adapter)
            facts |= _adapter_facts(adapter) | {"against": _match_facts(adapter, base, matches)}
            if norms:
                measured = tuple(delta_norms(base, matches))
                facts["norms"] = [_norm_facts(norm) for norm in measured]
    elif has_factors:
        facts |= _adapter_facts_or_refusal(path, facts["notes"])
    return Inspection(facts, measured)


def family(key: str) -> str:
    """``key`` with its block's number starred out, so that all blocks fall together."""
    return _BLOCK.sub("*", key)


def block_of(key: str) -> int | None:
    """The number of the block that a key belongs to; None outside the blocks."""
    found = _BLOCK.search(key)
    return int(found.group()) if found else None


def writer_of(names: Iterable[str], metadata: Mapping[str, str]) -> tuple[str, str]:
    """Who wrote an adapter, and why one may think so; ``("unknown", reason)`` where nothing tells."""
    if "lycoris" in metadata.get("ss_network_module", "").lower():
        return "LyCORIS", f"metadata ss_network_module is {metadata['ss_network_module']}"
    try:
        software = parse_packed(metadata.get("software", "null"))
    except ValueError:
        software = None
    if isinstance(software, dict) and isinstance(software.get("name"), str):
        return software["name"], "metadata software names it"
    held = list(names)
    for pattern, writer, reason in WRITERS:
        search = re.compile(pattern).search
        if any(map(search, held)):
            return writer, reason
    return "unknown", "its keys bear nobody's mark"


def _checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    tensors = checkpoint.tensors.values()
    return {
        "path": str(checkpoint.path),
        "kind": "checkpoint",
        "model": model_of(checkpoint.tensors),
        "files": [
            {"path": str(file.path), "bytes": file.size, "header_sha256": file.header_sha256}
            for file in checkpoint.files
        ],
        "tensors": len(tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "dtypes": _histogram(tensor.dtype for tensor in tensors),
        "layouts": _histogram(_layouts(checkpoint)),
        "keys": [
            {"pattern": pattern, "dtype": dtype, "shape": shape, "count": number}
            for (pattern, dtype, shape), number in Counter(
                (family(tensor.key), tensor.dtype, tensor.shape) for tensor in tensors
            ).items()
        ],
        "metadata": dict(checkpoint.metadata),
        "notes": list(checkpoint.notes),
    }


def _layouts(checkpoint: Checkpoint) -> Iterator[str]:
    """How each tensor that is in codes is stored; what kind it is where there is no rule for it."""
    for key in layouts.in_codes(checkpoint.tensors):
        try:
            yield layouts.detect(checkpoint.tensors, key, metadata=checkpoint.metadata).layout.name
        except RefusedError as error:
            yield {"nvfp4-scales": "nvfp4, its scales in an order that it does not say"}.get(error.code, "no rule")
    yield from layouts.foreign_modules(checkpoint.tensors).values()


def _adapter_facts_or_refusal(path: str | os.PathLike[str], notes: list[str]) -> dict[str, Any]:
    """A file of factors that cannot be used is still described, with the reason."""
    try:
        with Adapter.open(path) as adapter:
            return _adapter_facts(adapter)
    except RefusedError as error:
        return {"notes": [*notes, f"cannot be used as an adapter: {error}"]}


def _adapter_facts(adapter: Adapter) -> dict[str, Any]:
    deltas = adapter.deltas
    writer, reason = writer_of(adapter.checkpoint.tensors, adapter.metadata)
    return {
        "kind": "adapter",
        "model": model_of(delta.module for delta in deltas),
        "writer": writer,
        "writer_reason": reason,
        "kinds": _histogram(map(_kind, deltas)),
        "pairs": sum(isinstance(delta, LowRank) for delta in deltas),
        "ranks": _histogram(delta.rank for delta in deltas if isinstance(delta, LowRank)),
        "alphas": _histogram("none" if delta.scaling.alpha is None else delta.scaling.alpha for delta in deltas),
        "effective_strengths": _histogram(delta.effective_strength(1.0) for delta in deltas),
        "families": list(_families(deltas)),
        "deltas": [
            {
                "module": delta.module,
                "target": delta.target,
                "kind": _kind(delta),
                "shape": list(delta.shape),
                "rank": delta.rank if isinstance(delta, LowRank) else None,
                "alpha": delta.scaling.alpha,
                "alpha_source": delta.scaling.source or None,
                "effective_strength": delta.effective_strength(1.0),
            }
            for delta in deltas
        ],
        "reference_downscale_factor": adapter.reference_downscale_factor,
        "reference_temporal_scale_factor": adapter.reference_temporal_scale_factor,
        "notes": list(adapter.notes),
    }


def _families(deltas: Iterable[Delta]) -> Iterator[dict[str, Any]]:
    """Deltas that differ by their block alone, counted."""
    counted = Counter(
        (
            family(delta.module),
            delta.target,
            _kind(delta),
            delta.rank if isinstance(delta, LowRank) else None,
            delta.tensors[0].dtype,
            delta.effective_strength(1.0),
        )
        for delta in deltas
    )
    for (module, target, kind, rank, dtype, strength), number in counted.items():
        yield {
            "module": module,
            "target": target,
            "kind": kind,
            "rank": rank,
            "dtype": dtype,
            "effective_strength": strength,
            "count": number,
        }


def _kind(delta: Delta) -> str:
    return f"{delta.kind}+dora" if delta.magnitude else delta.kind


def _match_facts(adapter: Adapter, base: Checkpoint, matches: Matches) -> dict[str, Any]:
    return {
        "base": str(base.path),
        "model": model_of(base.tensors),
        "deltas": len(adapter.deltas),
        "matched": matches.matched,
        "notes": list(matches.notes),
        "unmatched": [
            {
                "key": key,
                "looks_like": keys.looks_like(key) if key in adapter.unread else None,
                "wanted": name,
                "nearest": nearest_name(name, base.tensors) if index < _NEAREST_SOUGHT else None,
            }
            for index, (key, name) in enumerate(matches.unmatched.items())
        ],
        "refusal": _refusal(adapter, base),
    }


def _refusal(adapter: Adapter, base: Checkpoint) -> str | None:
    """Why ``fuse`` would not take this adapter, or None where it would."""
    try:
        plan_fuse(base, [(adapter, 1.0)])
    except RefusedError as error:
        return str(error)
    return None


def _norm_facts(norm: DeltaNorm) -> dict[str, Any]:
    return {"key": norm.key, "delta": norm.delta, "weight": norm.weight, "relative": norm.relative}


def _histogram(values: Iterable[object]) -> dict[str, int]:
    return {str(value): number for value, number in Counter(values).most_common()}
