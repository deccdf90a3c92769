"""``ltx2c verify``: is a fused checkpoint what its base and adapters give?"""

from __future__ import annotations

import argparse

from ltx2c import api
from ltx2c.cli import options, progress
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, first, operations, size, unmatched
from ltx2c.engines.compare import KeyDifference
from ltx2c.engines.verify import VerifyReport
from ltx2c.errors import printable

EXAMPLE = """
    ltx2c verify fused.safetensors base.safetensors --lora style.safetensors 0.8
    ltx2c verify fused.safetensors base.safetensors --lora style.safetensors 0.8 --sample 0.01
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to check against what, and how much of it."""
    parser.add_argument("fused", metavar="FUSED", type=options.given_path, help="what to check, whatever tool made it")
    options.add_base(parser)
    options.add_loras(parser)
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_out_dtype(parser)
    options.add_threads(parser)
    options.add_unmatched(parser)
    options.add_strength_options(parser)
    parser.add_argument(
        "--sample", type=float, default=1.0, metavar="F", help="compare this share of every tensor's rows (default: 1)"
    )


def run(args: argparse.Namespace) -> Result:
    """Compare; exit code 1 where anything differs."""
    with progress.bar("verify", args) as report:
        found = api.verify_checkpoint(
            args.fused,
            args.base,
            args.lora,
            **options.planning(args),
            **options.storing(args),
            threads=args.threads,
            sample=args.sample,
            progress=report,
        )
    return Result(found.as_json(), "\n".join(_lines(found)), exit_code=0 if found.equal else 1)


def _lines(report: VerifyReport) -> list[str]:
    what = f"{count(report.tensors, 'tensor')}, {size(report.bytes_compared)}"
    sampled = f" ({report.sample:.3g} of every tensor's rows)" if report.sample < 1 else ""
    verdict = _equal(report) if report.equal else f"DIFFERS: {report.likely}"
    return [
        f"{printable(report.fused)}: {verdict}",
        *first([f"  {line}" for line in report.structure]),
        *first([_difference(difference) for difference in report.differences]),
        *unmatched(report.unmatched),
        *(f"  note: {note}" for note in report.notes),
        "  metadata was not compared",
        f"  compared {what}{sampled} in {report.seconds:.2f} s: {size(report.bytes_compared / report.seconds)}/s, "
        f"{operations(2 * report.macs / report.seconds)}/s (kernel {report.kernel}, {count(report.threads, 'thread')})",
    ]


def _equal(report: VerifyReport) -> str:
    """What was found equal, and no more than that."""
    return "tensors equal byte for byte" if report.sample == 1 else "the sampled rows of its tensors are equal"


def _difference(difference: KeyDifference) -> str:
    line = f"  {printable(difference.key)}: {difference.differing:,} of {count(difference.elements, 'element')} differ"
    return (
        f"{line}, {difference.one_step:,} of them by one step" if difference.fused else f"{line}, and nothing is fused"
    )
