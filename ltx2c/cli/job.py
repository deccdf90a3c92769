"""``ltx2c job``: a fuse in units, for many machines."""

from __future__ import annotations

import argparse
from typing import Any

from ltx2c.cli import options, progress
from ltx2c.cli.fuse import summary
from ltx2c.cli.result import Result
from ltx2c.cli.text import count
from ltx2c.errors import printable
from ltx2c.files.object_staging import abandon_uploads
from ltx2c.files.url import is_url
from ltx2c.jobs.job import Job, JobStatus
from ltx2c.plan import plan_fuse

EXAMPLE = """
    ltx2c job create JOB ltx-2.5.safetensors --lora style.safetensors 0.8 -o fused.safetensors --units 64
    ltx2c job unit JOB 5        # each of 0 to 63, on any machine that sees the same paths, again after a kill
    ltx2c job finish JOB        # checks all of them, and puts the result in place

    ltx2c job run JOB           # or all that is missing here, and finish
"""

_ACTIONS = {
    "create": "make the folder JOB, with room for the result; on the file system of OUT",
    "unit": "do one unit, whether it is done or not",
    "run": "do all units that are missing, and finish",
    "status": "say which units are missing",
    "finish": "check all units and put the result in place",
    "abandon": "remove the job, or abort all unfinished uploads to the URL JOB; OUT is left as it is",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action each with its own arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = {name: actions.add_parser(name, help=told, description=told) for name, told in _ACTIONS.items()}
    for name, own in made.items():
        own.add_argument("job", metavar="JOB", type=options.given_path, help="the job's folder")
        own.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
        own.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="print nothing but errors")
        if name in ("unit", "run"):
            options.add_threads(own)
    made["unit"].add_argument("number", metavar="I", type=int, help="the unit's number, from 0")
    _add_create(made["create"])


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", type=options.given_path, help="what to fuse into")
    options.add_loras(parser, required=True)
    parser.add_argument("-o", "--output", metavar="OUT", type=options.given_path, required=True, help="what to write")
    parser.add_argument("--units", type=int, metavar="N", help="about how many (default: one for 512 MB)")
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_out_dtype(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    options.add_unmatched(parser)
    options.add_strength_options(parser)
    options.add_output_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Do what was asked."""
    if args.action == "create":
        return _told(_created(args).status())
    if args.action == "abandon" and is_url(args.job):
        gone = abandon_uploads(args.job)
        return Result(
            {"abandoned": args.job, "uploads": gone}, f"{printable(args.job)}: {count(gone, 'upload')} aborted"
        )
    job = Job.open(args.job)
    if args.action == "status":
        return _told(job.status())
    if args.action == "unit":
        mark = job.unit(args.number, threads=args.threads)
        nbytes = sum(end - begin for _, begin, end in mark.ranges)
        told: dict[str, Any] = {"unit": mark.unit, "bytes": nbytes, "xxh3": mark.xxh3}
        return Result(told, f"{printable(args.job)}: unit {mark.unit} is done: {nbytes:,} bytes")
    if args.action == "abandon":
        job.abandon()
        return Result({"abandoned": str(args.job)}, f"{printable(args.job)}: removed")
    if args.action == "finish":
        report = job.finish()
    else:
        with progress.bar("fuse", args) as shown:
            report = job.run(threads=args.threads, progress=shown)
    return Result(report.as_json(), "\n".join(summary(report)))


def _created(args: argparse.Namespace) -> Job:
    plan = plan_fuse(
        args.base,
        args.lora,
        **options.planning(args),
        **options.storing(args),
    )
    return Job.create(
        args.job,
        plan,
        args.output,
        units=args.units,
        force=args.force,
        allow_nonfinite=args.allow_nonfinite,
        max_shard_bytes=args.max_shard_size,
    )


def _told(status: JobStatus) -> Result:
    missing = ", ".join(map(str, status.missing[:12])) + (" ..." if len(status.missing) > 12 else "")
    lines = [
        f"{printable(status.job)}: {count(status.units, 'unit')}, {len(status.missing):,} of them to do",
        *([f"  missing: {missing}"] if missing else []),
        f"  {printable(status.out)} is {'in place' if status.published else 'to be made'}",
    ]
    return Result(status.as_json(), "\n".join(lines))
