"""``ltx2c fuse-many``: several results from one reading of a base."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ltx2c.cli import options, progress
from ltx2c.cli.fuse import summary
from ltx2c.cli.result import Result
from ltx2c.cli.text import described
from ltx2c.engines.report import FuseReport
from ltx2c.errors import RefusedError, printable
from ltx2c.jobsfile import read_jobs
from ltx2c.many import fuse_many

EXAMPLE = """
    ltx2c fuse-many ltx-2.5.safetensors jobs.toml

    where jobs.toml holds a table for each output, its paths as seen from the folder that jobs.toml is in:
      ["style.safetensors"]
      loras = [["distilled.safetensors", 0.8], ["style-lora.safetensors", 1.0]]
      ["distilled-only.safetensors"]
      loras = [["distilled.safetensors", 0.8]]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to fuse into what, and what to let pass."""
    parser.add_argument(
        "base", metavar="BASE", type=options.given_path, help="a .safetensors file, a folder of shards or its index"
    )
    parser.add_argument("jobs", metavar="JOBS", type=options.path, help="a TOML file with a table for each output")
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_out_dtype(parser)
    options.add_threads(parser)
    parser.add_argument("--force", action="store_true", help="replace outputs that exist")
    options.add_unmatched(parser)
    options.add_strength_options(parser)
    options.add_output_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Fuse all; exit with 2 if any was refused, 3 if any failed."""
    jobs = read_jobs(args.jobs)
    with progress.bar("fuse", args) as report:
        done = fuse_many(
            args.base,
            jobs,
            **options.planning(args),
            **options.storing(args),
            threads=args.threads,
            force=args.force,
            allow_nonfinite=args.allow_nonfinite,
            max_shard_bytes=args.max_shard_size,
            progress=report,
        )
    lines: list[str] = []
    outputs: dict[str, Any] = {}
    exit_code = 0
    for out, outcome in done.items():
        if isinstance(outcome, FuseReport):
            lines += summary(outcome)
            outputs[out] = outcome.as_json()
            continue
        if isinstance(outcome, RefusedError):
            ended, code, message = 2, outcome.code, str(outcome)
        else:
            ended, code, message = 3, "io-failed", described(outcome)
        exit_code = max(exit_code, ended)
        outputs[out] = {"error": {"code": code, "message": message}}
        print(f"ltx2c: error: {printable(out)}: {message}", file=sys.stderr)
    return Result({"outputs": outputs}, "\n".join(lines), exit_code)
