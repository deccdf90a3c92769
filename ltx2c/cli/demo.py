"""``ltx2c demo``: the main job in one go, for a newcomer."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

from ltx2c import demo
from ltx2c.cli import options, progress
from ltx2c.cli.fuse import summary
from ltx2c.cli.result import Result
from ltx2c.cli.synth import add_model_arguments
from ltx2c.cli.text import count, size
from ltx2c.errors import printable

EXAMPLE = """
    ltx2c demo
    ltx2c demo kept --blocks 6
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, and how large."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=options.path,
        nargs="?",
        help="keep the files here (default: a temporary folder, removed)",
    )
    add_model_arguments(parser, blocks=1)
    options.add_threads(parser)


def run(args: argparse.Namespace) -> Result:
    """Synthesise, fuse, check."""
    with contextlib.ExitStack() as cleanup:
        folder = args.folder or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ltx2c-demo-")))
        report = demo.demo(
            folder,
            blocks=args.blocks,
            rank=args.rank,
            threads=args.threads,
            watch=lambda step: progress.bar(step, args),
        )
    facts = {
        "folder": str(folder),
        "kept": args.folder is not None,
        "bytes_synthesised": report.synthesised.bytes_written,
        "fuse": report.fused.as_json(),
        "rows_checked": report.rows_checked,
        "weights_checked": report.weights_checked,
        "untouched_checked": report.untouched_checked,
    }
    return Result(facts, "\n".join(_lines(report, kept=args.folder is not None)))


def _lines(report: demo.DemoReport, *, kept: bool) -> list[str]:
    made = report.synthesised
    return [
        f"made {size(made.bytes_written)} of LTX-2.5's shape: {count(made.base_tensors, 'tensor')}, "
        f"{count(made.adapter_tensors // 2, 'adapter pair')}",
        *summary(report.fused),
        f"checked {count(report.rows_checked, 'row')} of {count(report.weights_checked, 'kind')} of weight against the "
        "reference,",
        f"and {count(report.untouched_checked, 'untouched tensor')} against the base: equal byte for byte",
        f"kept in {printable(report.fused.out.parent)}" if kept else "removed again (give a DIR to keep the files)",
    ]
