"""``ltx2c fuse-many``: several results from one reading of a base."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from ltx2c.cli import options, progress
from ltx2c.cli.commands import UsageError
from ltx2c.cli.forecast_text import forecast_lines
from ltx2c.cli.fuse import outline_lines, summary
from ltx2c.cli.result import Result
from ltx2c.cli.text import described
from ltx2c.engines.report import FuseOutline, FuseReport
from ltx2c.errors import RefusedError, printable
from ltx2c.jobsfile import read_jobs
from ltx2c.many import forecast_many, fuse_many, outline_many

EXAMPLE = """
    ltx2c fuse-many ltx-2.5.safetensors jobs.toml
    ltx2c fuse-many ltx-2.5.safetensors jobs.toml --dry-run --workers 100 --network 1.25 --storage 20

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
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and write nothing")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="with --dry-run: predict what N workers like this machine take, each output a job in units; needs "
        "--network and --storage",
    )
    parser.add_argument("--network", type=float, metavar="GB/S", help="of each worker, in each direction")
    parser.add_argument("--storage", type=float, metavar="GB/S", help="of the storage, for all workers together")


def _check_forecast(args: argparse.Namespace) -> None:
    asked = [args.workers, args.network, args.storage]
    if any(one is not None for one in asked) and (None in asked or not args.dry_run):
        raise UsageError("a forecast takes --dry-run, --workers, --network and --storage (see ltx2c fuse-many --help)")


def run(args: argparse.Namespace) -> Result:
    """Fuse all; exit with 2 if any was refused, 3 if any failed. With ``--dry-run`` say what that would do."""
    _check_forecast(args)
    jobs = read_jobs(args.jobs)
    given = {
        **options.planning(args),
        **options.storing(args),
        "threads": args.threads,
        "max_shard_bytes": args.max_shard_size,
    }
    if args.workers is not None:
        rates = {"network": args.network * 1e9, "storage": args.storage * 1e9}
        told = forecast_many(args.base, jobs, workers=args.workers, **rates, **given)
        return Result(told.as_json(), "\n".join(forecast_lines(told, len(jobs))))
    if args.dry_run:
        return _told(outline_many(args.base, jobs, force=args.force, **given))
    with progress.bar("fuse", args) as report:
        done = fuse_many(
            args.base,
            jobs,
            **given,
            force=args.force,
            allow_nonfinite=args.allow_nonfinite,
            progress=report,
        )
    return _told(done)


def _told(done: Mapping[str, FuseOutline | RefusedError | OSError]) -> Result:
    """Of each output; errors on stderr, and in the exit code."""
    lines: list[str] = []
    outputs: dict[str, Any] = {}
    exit_code = 0
    for out, outcome in done.items():
        if isinstance(outcome, FuseOutline):
            lines += summary(outcome) if isinstance(outcome, FuseReport) else outline_lines(outcome)
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
