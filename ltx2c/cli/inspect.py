"""``ltx2c inspect``: what a file is, and whether it fits a base."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from ltx2c.cli import options
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, first, size
from ltx2c.errors import RefusedError, printable
from ltx2c.inspection import block_of, family, inspect
from ltx2c.norms import DeltaNorm, together

EXAMPLE = """
    ltx2c inspect style.safetensors --against ltx-2.5.safetensors
    ltx2c inspect style.safetensors --against ltx-2.5.safetensors --norms --plot style.png
    ltx2c inspect ltx-2.5.safetensors --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the base that an adapter is held against."""
    parser.add_argument("file", metavar="FILE", type=options.given_path, help="a checkpoint or an adapter")
    parser.add_argument(
        "--against", metavar="BASE", type=options.given_path, help="say which of FILE's deltas have a target in BASE"
    )
    parser.add_argument(
        "--variant",
        metavar="NAME",
        help="which weights of the folder BASE, or of FILE without --against, where it holds several, such as fp16",
    )
    parser.add_argument(
        "--norms", action="store_true", help="measure every delta beside its weight in BASE, which reads both"
    )
    parser.add_argument(
        "--plot",
        metavar="PNG",
        type=options.path,
        help="draw the norms, blocks by modules (needs ltx2c[plot]); implies --norms",
    )


def run(args: argparse.Namespace) -> Result:
    """Say what is there, from the headers unless norms are asked for."""
    if args.plot is not None:
        from ltx2c.plotting import check_plot, plot_norms

        check_plot(args.plot)
    found = inspect(args.file, args.against, norms=args.norms or args.plot is not None, variant=args.variant)
    lines = _text(found.facts)
    if found.norms:
        lines += _norm_text(found.norms)
    facts = dict(found.facts)
    if args.plot is not None:
        if not found.norms:
            raise RefusedError(
                f"{printable(args.file)}: no delta has a target: nothing to draw", code="nothing-to-plot"
            )
        plot_norms(found.norms, args.plot, adapter=Path(args.file).name, base=Path(args.against).name)
        facts["plot"] = str(args.plot)
        lines.append(f"  drawn     {printable(args.plot)}")
    return Result(facts, "\n".join(lines))


def _text(facts: Any) -> list[str]:
    lines = [f"{printable(facts['path'])}: {_headline(facts)}", f"  dtypes    {_shares(facts['dtypes'])}"]
    if facts["layouts"]:
        lines.append(f"  layouts   {_shares(facts['layouts'])}")
    if facts["model"]:
        lines.append(f"  model     its names are {facts['model']}'s")
    if facts["kind"] == "adapter":
        lines += _adapter_text(facts)
    lines += _shown("metadata", [f"{key}: {value}" for key, value in facts["metadata"].items()])
    if facts["kind"] == "checkpoint":
        lines += _shown("keys", list(map(_key_line, facts["keys"])))
    lines += [f"  note      {note}" for note in facts["notes"]]
    if "against" in facts:
        lines += _match_text(facts["against"])
    return lines


def _headline(facts: Any) -> str:
    deltas = len(facts.get("deltas", ()))
    what = f"an adapter of {count(deltas, 'delta')}" if facts["kind"] == "adapter" else "a checkpoint"
    files = "" if len(facts["files"]) == 1 else f" in {count(len(facts['files']), 'shard')}"
    tensors = count(facts["tensors"], "tensor")
    return f"{what}, {tensors}, {facts['parameters']:,} parameters, {size(facts['bytes'])}{files}"


def _adapter_text(facts: Any) -> list[str]:
    space, time = facts["reference_downscale_factor"], facts["reference_temporal_scale_factor"]
    lines = [
        f"  writer    {printable(facts['writer'])}: {printable(facts['writer_reason'])}",
        f"  kinds     {_shares(facts['kinds'])}",
        f"  ranks     {_shares(facts['ranks'])}",
        f"  alpha     {_shares(facts['alphas'])}",
        f"  effective strength at 1.0: {_shares(facts['effective_strengths'])}",
        f"  reference downscale {space}, temporal {time}",
    ]
    return lines + _shown("deltas", list(map(_family_line, facts["families"])))


def _family_line(entry: Any) -> str:
    times = f"{entry['count']} x " if entry["count"] > 1 else ""
    rank = "" if entry["rank"] is None else f" rank {entry['rank']}"
    target = "" if entry["target"] == "weight" else f" ({entry['target']})"
    strength = f", effective strength {entry['effective_strength']:g}" if entry["effective_strength"] != 1 else ""
    return f"{times}{entry['module']}{target}: {entry['kind']}{rank} {entry['dtype']}{strength}"


def _match_text(match: Any) -> list[str]:
    total = count(match["deltas"], "delta")
    lines = [f"  against   {printable(match['base'])}: {match['matched']:,} of {total} matched"]
    lines += [f"  note      {note}" for note in match["notes"]]
    lines += _shown("unmatched", list(map(_unmatched_line, match["unmatched"])))
    return [*lines, f"  fuse      {'would be refused: ' + match['refusal'] if match['refusal'] else 'would take it'}"]


def _unmatched_line(entry: Any) -> str:
    looks = f", looks like {entry['looks_like']}" if entry["looks_like"] else ""
    return f"{entry['key']}{looks}" + (f" (nearest is {entry['nearest']})" if entry["nearest"] else "")


def _norm_text(norms: tuple[DeltaNorm, ...]) -> list[str]:
    """Two tables: by module family, and by block."""
    families: dict[str, list[DeltaNorm]] = defaultdict(list)
    blocks: dict[int | None, list[DeltaNorm]] = defaultdict(list)
    for norm in norms:
        families[family(norm.key)].append(norm)
        blocks[block_of(norm.key)].append(norm)
    width = max(map(len, families))
    lines = ["", f"  {'norm of the delta over the weight, by module':{width}}     all     min     max"]
    for name, members in families.items():
        relative = [norm.relative or 0.0 for norm in members]
        shares = (together(members).relative or 0.0, min(relative), max(relative))
        lines.append(f"  {printable(name):{width}} {' '.join(f'{100 * share:6.2f}%' for share in shares)}")
    numbered = sorted((number, members) for number, members in blocks.items() if number is not None)
    if numbered:
        lines += ["", "  by block"]
        lines += [f"  {number:5} {100 * (together(members).relative or 0.0):6.2f}%" for number, members in numbered]
    return lines


def _shares(histogram: dict[str, int]) -> str:
    return ", ".join(f"{printable(value)} x {number:,}" for value, number in histogram.items()) or "none"


def _key_line(entry: Any) -> str:
    times = f"{entry['count']} x " if entry["count"] > 1 else ""
    return f"{times}{entry['pattern']} {entry['dtype']} {list(entry['shape'])}"


def _shown(title: str, items: list[str]) -> list[str]:
    return first([f"  {title if index == 0 else '':<9} {printable(item)}" for index, item in enumerate(items)])
