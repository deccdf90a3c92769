"""``ltx2c phases``: a pipeline's phases as files, one for each distinct state."""

from __future__ import annotations

import argparse

from ltx2c.cli import options, progress
from ltx2c.cli.result import Result
from ltx2c.cli.text import size
from ltx2c.errors import printable
from ltx2c.phases import PhasesReport, write_phases

EXAMPLE = """
    ltx2c phases ti2vid_two_stages ltx-2.5.safetensors --distilled-lora distilled-lora.safetensors -o phases
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, the base, adapters by role, and how to fuse."""
    options.add_recipe(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=options.given_path,
        required=True,
        help="the folder to make, which must not exist",
    )
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_threads(parser)
    options.add_unmatched(parser)
    options.add_strength_options(parser)
    options.add_allow_nonfinite(parser)


def run(args: argparse.Namespace) -> Result:
    """Fuse every distinct state of the recipe."""
    recipe = options.recipe(args)
    with progress.bar("phases", args) as report:
        done = write_phases(
            args.base,
            recipe,
            args.output,
            **options.planning(args),
            threads=args.threads,
            allow_nonfinite=args.allow_nonfinite,
            progress=report,
        )
    return Result(done.as_json(), "\n".join(_lines(done)))


def _lines(report: PhasesReport) -> list[str]:
    return [
        f"{printable(report.out)}: {report.recipe}",
        *(f"  {phase.name}: {printable(phase.file)}" for phase in report.phases),
        *(f"  unmatched: {printable(one.adapter)}: {printable(one.key)}" for one in report.unmatched),
        *(f"  note: {note}" for note in report.notes),
        f"  {size(report.bytes_written)} in {report.seconds:.2f} s",
    ]
