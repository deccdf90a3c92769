"""``ltx2c inspect``: what a file is, and whether it fits a base."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ltx2c.adapters import Adapter, keys
from ltx2c.cli import options
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, first, size
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.plan import plan_fuse
from ltx2c.plan.match import homeless_keys
from ltx2c.plan.nearest import nearest_name

# For how many keys the nearest name is sought, which takes a while: an adapter for another model has thousands.
_NEAREST_SOUGHT = 12

EXAMPLE = """
    ltx2c inspect style.safetensors --against ltx-2.5.safetensors
    ltx2c inspect ltx-2.5.safetensors --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the base that an adapter is held against."""
    parser.add_argument("file", metavar="FILE", type=options.path, help="a checkpoint or an adapter")
    parser.add_argument(
        "--against", metavar="BASE", type=options.path, help="say which of FILE's pairs have a weight in BASE"
    )


def run(args: argparse.Namespace) -> Result:
    """Read the headers and say what is there."""
    with Checkpoint.open(args.file) as checkpoint:
        facts = _checkpoint_facts(checkpoint)
        has_factors = any(parsed.role != "alpha" for parsed in map(keys.parse, checkpoint.tensors) if parsed)
    if args.against is not None:
        with Adapter.open(args.file) as adapter, Checkpoint.open(args.against) as base:
            facts |= _adapter_facts(adapter) | {"against": _match_facts(adapter, base)}
    elif has_factors:
        facts |= _adapter_facts_or_refusal(args.file, facts["notes"])
    return Result(facts, _text(facts))


def _checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    tensors = checkpoint.tensors.values()
    return {
        "path": str(checkpoint.path),
        "kind": "checkpoint",
        "files": [
            {"path": str(file.path), "bytes": file.size, "header_sha256": file.header_sha256}
            for file in checkpoint.files
        ],
        "tensors": len(tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "dtypes": _histogram(tensor.dtype for tensor in tensors),
        "keys": [
            {"pattern": pattern, "dtype": dtype, "shape": shape, "count": number}
            for (pattern, dtype, shape), number in Counter(
                (_pattern(tensor.key), tensor.dtype, tensor.shape) for tensor in tensors
            ).items()
        ],
        "metadata": dict(checkpoint.metadata),
        "notes": list(checkpoint.notes),
    }


def _adapter_facts_or_refusal(path: Path, notes: list[str]) -> dict[str, Any]:
    """A file of factors that cannot be used is still described, with the reason."""
    try:
        with Adapter.open(path) as adapter:
            return _adapter_facts(adapter)
    except RefusedError as error:
        return {"notes": [*notes, f"cannot be used as an adapter: {error}"]}


def _adapter_facts(adapter: Adapter) -> dict[str, Any]:
    return {
        "kind": "adapter",
        "pairs": len(adapter.deltas),
        "ranks": _histogram(pair.rank for pair in adapter.deltas),
        "alphas": _histogram("none" if pair.alpha is None else pair.alpha for pair in adapter.deltas),
        "reference_downscale_factor": adapter.reference_downscale_factor,
        "reference_temporal_scale_factor": adapter.reference_temporal_scale_factor,
        "notes": list(adapter.notes),
    }


def _match_facts(adapter: Adapter, base: Checkpoint) -> dict[str, Any]:
    homeless = homeless_keys(base, adapter)
    return {
        "base": str(base.path),
        "matched": len(adapter.deltas) + len(adapter.unread) - len(homeless),
        "unmatched": [
            {"key": key, "nearest": nearest_name(name, base.tensors) if index < _NEAREST_SOUGHT else None}
            for index, (key, name) in enumerate(homeless.items())
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


def _histogram(values: Iterable[object]) -> dict[str, int]:
    return {str(value): number for value, number in Counter(values).most_common()}


def _pattern(key: str) -> str:
    """``key`` with the block numbers starred out, so that all blocks fall together."""
    return re.sub(r"(?<=blocks\.)\d+(?=\.)", "*", key)


def _text(facts: dict[str, Any]) -> str:
    lines = [f"{printable(facts['path'])}: {_headline(facts)}", f"  dtypes    {_shares(facts['dtypes'])}"]
    if facts["kind"] == "adapter":
        lines += [f"  ranks     {_shares(facts['ranks'])}", f"  alpha     {_shares(facts['alphas'])}"]
        space, time = facts["reference_downscale_factor"], facts["reference_temporal_scale_factor"]
        lines.append(f"  reference downscale {space}, temporal {time}")
    lines += _shown("metadata", [f"{key}: {value}" for key, value in facts["metadata"].items()])
    lines += _shown("keys", list(map(_key_line, facts["keys"])))
    lines += [f"  note      {note}" for note in facts["notes"]]
    if "against" in facts:
        lines += _match_text(facts["pairs"], facts["against"])
    return "\n".join(lines)


def _headline(facts: dict[str, Any]) -> str:
    what = f"an adapter of {count(facts['pairs'], 'pair')}" if facts["kind"] == "adapter" else "a checkpoint"
    files = "" if len(facts["files"]) == 1 else f" in {count(len(facts['files']), 'shard')}"
    tensors = count(facts["tensors"], "tensor")
    return f"{what}, {tensors}, {facts['parameters']:,} parameters, {size(facts['bytes'])}{files}"


def _match_text(pairs: int, match: dict[str, Any]) -> list[str]:
    lines = [f"  against   {printable(match['base'])}: {match['matched']:,} of {count(pairs, 'pair')} matched"]
    lines += _shown("unmatched", list(map(_unmatched_line, match["unmatched"])))
    return [*lines, f"  fuse      {'would be refused: ' + match['refusal'] if match['refusal'] else 'would take it'}"]


def _unmatched_line(entry: dict[str, Any]) -> str:
    return f"{entry['key']} (nearest is {entry['nearest']})" if entry["nearest"] else str(entry["key"])


def _shares(histogram: dict[str, int]) -> str:
    return ", ".join(f"{value} x {number:,}" for value, number in histogram.items())


def _key_line(entry: dict[str, Any]) -> str:
    times = f"{entry['count']} x " if entry["count"] > 1 else ""
    return f"{times}{entry['pattern']} {entry['dtype']} {list(entry['shape'])}"


def _shown(title: str, items: list[str]) -> list[str]:
    return first([f"  {title if index == 0 else '':<9} {printable(item)}" for index, item in enumerate(items)])
