"""``ltx2c fuse``: adapters into a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from ltx2c import api, kernels
from ltx2c.cli import options, progress
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, first, operations, size
from ltx2c.engines.report import AdapterReport, FuseReport, adapter_reports
from ltx2c.errors import printable
from ltx2c.plan import Plan
from ltx2c.threads import resolve_threads

EXAMPLE = """
    ltx2c fuse ltx-2.5.safetensors --lora distilled.safetensors 0.8 --lora style.safetensors -o fused.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to fuse into what, and what to let pass."""
    parser.add_argument("base", metavar="BASE", type=Path, help="a .safetensors file, a folder of shards or its index")
    options.add_loras(parser, required=True)
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="the file or folder to write")
    options.add_threads(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and write nothing")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    options.add_unmatched(parser)
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="keep a result that holds inf or NaN where the base was finite (otherwise it is refused)",
    )
    parser.add_argument(
        "--max-shard-size",
        type=options.byte_size,
        metavar="SIZE",
        help="write a folder of shards of at most this size, such as 5GB (default: sharded as the base is)",
    )
    parser.add_argument("--sha256", action="store_true", help="report full digests of base, adapters and output")
    parser.add_argument(
        "--expect-sha256",
        action="append",
        default=[],
        metavar="DIGEST",
        help="refuse an input with another digest; repeatable: the base's first, then each adapter's in order",
    )


def run(args: argparse.Namespace) -> Result:
    """Fuse, or with ``--dry-run`` say what that would do."""
    if args.dry_run:
        return _dry_run(args)
    with progress.bar("fuse", args) as report:
        done = api.fuse_checkpoint(
            args.base,
            args.lora,
            args.output,
            threads=args.threads,
            unmatched=args.unmatched,
            force=args.force,
            allow_nonfinite=args.allow_nonfinite,
            max_shard_bytes=args.max_shard_size,
            sha256=args.sha256,
            expect_sha256=args.expect_sha256,
            progress=report,
        )
    return Result(done.as_json(), "\n".join(summary(done)))


def summary(report: FuseReport) -> list[str]:
    """What was written, from what, and how fast."""
    return [
        f"{printable(report.out)}: {count(report.tensors, 'tensor')}, {report.tensors_fused:,} of them fused",
        *_adapter_lines(report.adapters),
        *_unmatched_lines(report.unmatched),
        *(f"  inf or NaN: {count(number, 'value')} in {printable(key)}" for key, number in report.nonfinite.items()),
        *(f"  note: {note}" for note in report.notes),
        *(f"  sha256 {digest}  {printable(path)}" for path, digest in report.sha256.items()),
        f"  {size(report.bytes_written)} in {report.seconds:.2f} s: {size(report.bytes_written / report.seconds)}/s, "
        f"{operations(2 * report.macs / report.seconds)}/s (kernel {report.kernel}, {count(report.threads, 'thread')})",
    ]


def _dry_run(args: argparse.Namespace) -> Result:
    with api.opened_plan(args.base, args.lora, unmatched=args.unmatched) as plan:
        out = api.check_output(
            plan, args.output, force=args.force, max_shard_bytes=args.max_shard_size
        ).destination.path
        facts = {
            "out": str(out),
            "tensors": len(plan.base.tensors),
            "tensors_fused": len(plan.terms),
            "adapters": [{**asdict(adapter), "path": str(adapter.path)} for adapter in adapter_reports(plan)],
            "unmatched": [pair.key for pair in plan.unmatched],
            "notes": list(plan.notes),
            "bytes_read": plan.bytes_read,
            "bytes_written": plan.bytes_written,
            "macs": plan.macs,
            "threads": resolve_threads(args.threads),
            "kernel": kernels.selected(),
        }
        return Result(facts, "\n".join(_plan_lines(out, plan)))


def _plan_lines(out: Path, plan: Plan) -> list[str]:
    tensors, fused = len(plan.base.tensors), len(plan.terms)
    return [
        f"{printable(out)}: {count(tensors, 'tensor')}, {fused:,} would be fused and {tensors - fused:,} kept",
        *_adapter_lines(adapter_reports(plan)),
        *_unmatched_lines([pair.key for pair in plan.unmatched]),
        *(f"  note: {note}" for note in plan.notes),
        f"  {size(plan.bytes_read)} to read, {size(plan.bytes_written)} to write, {operations(2 * plan.macs)}",
        "nothing was written (--dry-run)",
    ]


def _adapter_lines(adapters: Iterable[AdapterReport]) -> list[str]:
    return [
        f"  {printable(one.path)} at {one.strength:g}: {one.pairs_fused:,} of {count(one.pairs, 'pair')} fused"
        for one in adapters
    ]


def _unmatched_lines(keys: Sequence[str]) -> list[str]:
    return first([f"  left out, no home in the base: {printable(key)}" for key in keys])
