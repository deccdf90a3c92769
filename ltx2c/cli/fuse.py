"""``ltx2c fuse``: adapters into a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ltx2c import api
from ltx2c.cli import options, progress
from ltx2c.cli.result import Result
from ltx2c.cli.text import count, operations, size, unmatched
from ltx2c.engines.report import AdapterReport, FuseOutline, FuseReport
from ltx2c.errors import printable

EXAMPLE = """
    ltx2c fuse ltx-2.5.safetensors --lora distilled.safetensors 0.8 --lora style.safetensors -o fused.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to fuse into what, and what to let pass."""
    options.add_base(parser)
    options.add_loras(parser, required=True)
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=options.given_path, required=True, help="the file or folder to write"
    )
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_out_dtype(parser)
    options.add_threads(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and write nothing")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--reuse", action="store_true", help="leave OUT as it is where the same request, by content, has made it"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what is done where this run is killed or the system fails it, hidden beside OUT, and take over what "
        "such a run has left: give it to both",
    )
    parser.add_argument(
        "--card", action="store_true", help="write a model card, README.md, into the folder OUT or beside the file"
    )
    options.add_unmatched(parser)
    options.add_strength_options(parser)
    options.add_output_options(parser)
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
    inputs = (args.base, args.lora, args.output)
    given = {
        **options.planning(args),
        **options.storing(args),
        "threads": args.threads,
        "force": args.force,
        "reuse": args.reuse,
        "max_shard_bytes": args.max_shard_size,
        "sha256": args.sha256,
        "expect_sha256": args.expect_sha256,
    }
    if args.dry_run:
        planned = api.outline_fuse(*inputs, **given)
        return Result(planned.as_json(), "\n".join(outline_lines(planned)))
    with progress.bar("fuse", args) as report:
        done = api.fuse_checkpoint(
            *inputs,
            **given,
            resume=args.resume,
            card=args.card,
            allow_nonfinite=args.allow_nonfinite,
            progress=report,
        )
    return Result(done.as_json(), "\n".join(summary(done)))


def summary(report: FuseReport) -> list[str]:
    """What was written, from what, and how fast."""
    if report.reused:
        return [
            f"{printable(report.out)}: reused, nothing was written",
            *_adapter_lines(report.adapters),
            *_note_and_digest_lines(report),
        ]
    return [
        f"{printable(report.out)}: {count(report.tensors, 'tensor')}, {report.tensors_fused:,} of them fused",
        *_adapter_lines(report.adapters),
        *unmatched(report.unmatched),
        *(f"  inf or NaN: {count(number, 'value')} in {printable(key)}" for key, number in report.nonfinite.items()),
        *([f"  {report.loss.note}"] if report.loss.note else []),
        *_note_and_digest_lines(report),
        f"  {size(report.bytes_written)} in {report.seconds:.2f} s: {size(report.bytes_written / report.seconds)}/s, "
        f"{operations(2 * report.macs / report.seconds)}/s (kernel {report.kernel}, {count(report.threads, 'thread')})",
    ]


def outline_lines(plan: FuseOutline) -> list[str]:
    """What would be written, from what."""
    fused, kept = plan.tensors_fused, plan.tensors - plan.tensors_fused
    return [
        f"{printable(plan.out)}: {count(plan.tensors, 'tensor')}, {fused:,} would be fused and {kept:,} kept",
        *_adapter_lines(plan.adapters),
        *unmatched(plan.unmatched),
        *_note_and_digest_lines(plan),
        f"  {size(plan.bytes_read)} to read, {size(plan.bytes_written)} to write, {operations(2 * plan.macs)}",
        "it would be reused: the same request has made it" if plan.reused else "nothing was written (--dry-run)",
    ]


def _note_and_digest_lines(report: FuseOutline) -> list[str]:
    return [
        *(f"  note: {note}" for note in report.notes),
        *(f"  sha256 {digest}  {printable(path)}" for path, digest in report.sha256.items()),
    ]


def _adapter_lines(adapters: Iterable[AdapterReport]) -> list[str]:
    return [
        f"  {printable(one.path)} at {one.strength:g}: {one.pairs_fused:,} of {count(one.pairs, 'pair')} fused"
        for one in adapters
    ]
