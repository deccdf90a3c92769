"""``ltx2c bench``: this machine's peaks, and fusion beside them."""

from __future__ import annotations

import argparse

from ltx2c import bench, inventory
from ltx2c.cli import options, progress
from ltx2c.cli.result import Result

EXAMPLE = """
    ltx2c bench
    ltx2c bench --blocks 4 --json
    LTX2C_KERNEL=haswell ltx2c bench --threads 1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much of the model, and how many threads."""
    parser.add_argument(
        "--blocks",
        type=int,
        metavar="N",
        default=inventory.BLOCKS,
        help=f"transformer blocks of the model in the last row, 1 to {inventory.BLOCKS} (default: all)",
    )
    options.add_threads(parser)


def run(args: argparse.Namespace) -> Result:
    """Measure."""
    with progress.bar("measuring", args) as watch:
        report = bench.bench(threads=args.threads, blocks=args.blocks, progress=watch)
    return Result(report.as_json(), _text(report))


def _text(report: bench.BenchReport) -> str:
    beside = f"torch {report.torch}" if report.torch else "no torch"
    width = max(len(row.name) for row in report.rows) + 2
    peaks = ", ".join(f"{name} {rate:.0f}" for name, rate in report.peaks.items())
    return "\n".join(
        [
            f"kernel {report.kernel_why}; {report.threads} threads; {beside}",
            f"peak GFLOP/s: {peaks}; memory in place {report.bandwidth:.1f} GB/s",
            "",
            f"{'out x rank x in':<{width}}{'GFLOP/s':>9}{'of peak':>9}{'GB/s':>7}{'torch':>9}{'ratio':>7}",
            *(_line(row, width) for row in report.rows),
        ]
    )


def _line(row: bench.Row, width: int) -> str:
    line = f"{row.name:<{width}}{row.gflops:>9.1f}{row.peak_share:>8.0%} {row.gbps:>7.1f}"
    return f"{line}{row.torch_gflops:>9.1f}{row.gflops / row.torch_gflops:>7.2f}" if row.torch_gflops else line
