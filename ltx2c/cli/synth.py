"""``ltx2c synth``: files of LTX-2.5's shape to try things out on."""

from __future__ import annotations

import argparse
import time

from ltx2c import inventory, synth
from ltx2c.cli import options, progress
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, size
from ltx2c.errors import printable

EXAMPLE = """
    ltx2c synth made --blocks 2
    ltx2c fuse made/base.safetensors --lora made/distilled-lora.safetensors 0.8 -o made/fused.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, how large, and from which seed."""
    parser.add_argument(
        "folder", metavar="DIR", type=options.path, help="folder for the two files; made if it is missing"
    )
    add_model_arguments(parser, blocks=2)
    parser.add_argument(
        "--kind",
        choices=tuple(inventory.KIND_TENSORS),
        default="lora",
        help="of the adapter's deltas (default: lora, as the real one's)",
    )
    parser.add_argument(
        "--layout",
        choices=tuple(synth.BASE_LAYOUTS),
        default="bf16",
        help="how the base stores its linear layers' weights (default: bf16, as the real one)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace files that stand there already")


def add_model_arguments(parser: argparse.ArgumentParser, *, blocks: int) -> None:
    """``--blocks`` and ``--rank``, which ``demo`` takes too."""
    parser.add_argument(
        "--blocks",
        type=int,
        default=blocks,
        metavar="N",
        help=f"transformer blocks, 1 to {inventory.BLOCKS} (default: {blocks}; the real model's {inventory.BLOCKS} "
        "take 42 GB, and 9 GB for the adapter)",
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=inventory.RANK,
        metavar="R",
        help=f"the adapter's rank (default: {inventory.RANK}, the real one's)",
    )


def run(args: argparse.Namespace) -> Result:
    """Write both files."""
    started = time.perf_counter()
    with progress.bar("synth", args) as report:
        made = synth.synth(
            args.folder,
            blocks=args.blocks,
            rank=args.rank,
            kind=args.kind,
            layout=args.layout,
            seed=args.seed,
            force=args.force,
            progress=report,
        )
    seconds = time.perf_counter() - started
    facts = {
        "base": str(made.base),
        "adapter": str(made.adapter),
        "base_tensors": made.base_tensors,
        "adapter_tensors": made.adapter_tensors,
        "pairs": made.adapter_tensors // 2 if args.kind == "lora" else 0,
        "bytes_written": made.bytes_written,
        "seconds": seconds,
    }
    held = count(made.adapter_tensors // 2, "pair") if args.kind == "lora" else count(made.adapter_tensors, "tensor")
    text = (
        f"{printable(made.base)}: {count(made.base_tensors, 'tensor')}\n"
        f"{printable(made.adapter)}: {held}\n"
        f"wrote {size(made.bytes_written)} in {seconds:.1f} s, {size(made.bytes_written / seconds)}/s"
    )
    return Result(facts, text)
