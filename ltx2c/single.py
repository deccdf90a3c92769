"""One result of a plan: found to stand already, streamed into its file, or made in units."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from ltx2c.engines.card import CARD_NAME
from ltx2c.engines.digests import Digests
from ltx2c.engines.file import write_fused
from ltx2c.engines.report import FuseReport, outline
from ltx2c.engines.request import Request
from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination, cannot_write
from ltx2c.files.direct import write_small_file
from ltx2c.files.layout import OutputLayout
from ltx2c.files.paths import as_path, place
from ltx2c.files.places import AnyDestination, on_disk
from ltx2c.files.remembered import remembered_sha256
from ltx2c.files.staging import publish, stage
from ltx2c.files.url import is_url
from ltx2c.jobs.hidden import HiddenJobs
from ltx2c.plan.opened import OpenedPlan
from ltx2c.prepare import LaidOut, OutputForm, StrPath, check_destination, lay_out_whole
from ltx2c.progress import OnProgress, Tracker

_CARD = "a card beside a file"
_IN_UNITS = "a result that is made in units"


@dataclass(frozen=True)
class WriteOptions:
    """How to write a result, beside what its plan says: as ``fuse_checkpoint`` takes them."""

    threads: int | None
    force: bool
    reuse: bool
    card: bool
    allow_nonfinite: bool
    max_shard_bytes: int | None
    sha256: bool
    expect_sha256: Sequence[str]
    executor: Executor | None
    resume: bool
    progress: OnProgress | None


def write_single(plan: OpenedPlan, out: StrPath, options: WriteOptions) -> FuseReport:
    """Write what a plan says. Raises as ``fuse_checkpoint`` does."""
    began = time.perf_counter()
    form = OutputForm(options.max_shard_bytes)
    laid_out = lay_out_whole(plan, out, form)
    if is_url(out):
        check_url(
            plan,
            out,
            laid_out.layout,
            reuse=options.reuse,
            in_units=options.resume or options.executor is not None,
            card=options.card,
            digest=options.sha256 or bool(options.expect_sha256),
        )
    digests = Digests(plan.sources, options.expect_sha256) if options.sha256 or options.expect_sha256 else None
    request = None
    if options.reuse:
        tracker = Tracker(plan.plan.bytes_written, plan.plan.macs, options.progress)
        request = Request(plan, laid_out.layout, options.max_shard_bytes, lambda: tracker.advance(0, 0))
        if digests is not None:
            digests.take(request.inputs)
        if stands(out, request, laid_out.layout, force=options.force):
            tracker.advance(plan.plan.bytes_written, plan.plan.macs)
            return _reused(plan, out, laid_out.layout, began, digests=digests, options=options)
    form = replace(form, card=options.card)
    laid_out = laid_out.again(plan, form)
    left = HiddenJobs(out)
    in_place = options.resume and left.in_place
    destination = check_destination(
        plan, out, laid_out.layout, force=options.force or in_place, more_bytes=-left.disk_bytes
    )
    adapters = request.of_adapters(plan) if request else digests.of_adapters() if digests else None
    if adapters is not None:
        form = replace(form, adapter_sha256=tuple(adapters), request=request.sha256 if request else None)
        laid_out = laid_out.again(plan, form)
    report = _make(plan, laid_out, destination, form, options, left, digests)
    beside = on_disk(destination, _CARD).path.with_name(CARD_NAME) if laid_out.card else None
    notes = _write_beside(beside, laid_out.card) if beside is not None and laid_out.card is not None else ()
    return replace(report, notes=(*report.notes, *laid_out.notes, *notes))


def _make(
    plan: OpenedPlan,
    laid_out: LaidOut,
    destination: AnyDestination,
    form: OutputForm,
    options: WriteOptions,
    left: HiddenJobs,
    digests: Digests | None,
) -> FuseReport:
    if options.executor is None and not options.resume:
        cleared = left.clear()
        report = write_fused(
            plan,
            laid_out.layout,
            destination,
            threads=options.threads,
            allow_nonfinite=options.allow_nonfinite,
            digests=digests,
            progress=options.progress,
        )
        return replace(report, notes=(*cleared, *report.notes))
    if digests is not None:
        digests.finish_base()
    on_this_disk = on_disk(destination, _IN_UNITS)
    report = left.make(
        plan,
        laid_out.layout,
        on_this_disk,
        form,
        resume=options.resume,
        executor=options.executor,
        threads=options.threads,
        force=options.force,
        allow_nonfinite=options.allow_nonfinite,
        progress=options.progress,
    )
    return report if digests is None else replace(report, sha256=_digests(digests, on_this_disk.path, laid_out.layout))


def check_url(
    plan: OpenedPlan,
    out: StrPath,
    layout: OutputLayout,
    *,
    reuse: bool,
    in_units: bool = False,
    card: bool = False,
    digest: bool = False,
) -> None:
    """Make sure that nothing is asked of a result at a URL that is only done on this disk.

    Raises:
        RefusedError: ``not-by-url``.
    """
    scaled = any(written.companions for written in plan.plan.written.values())
    asked = {
        "a result that is reused": reuse,
        _IN_UNITS: in_units,
        _CARD: card and not layout.is_folder,
        "a result with scales whose sha256 is asked for": digest and scaled,
    }
    for what, wanted in asked.items():
        if wanted:
            raise RefusedError(f"{printable(out)}: {what} goes to this disk, to no URL", code="not-by-url")


def _digests(digests: Digests, out: Path, layout: OutputLayout) -> dict[str, str]:
    """Of the inputs as far as they are known, and of a result that is in place."""
    written = [out / file.name for file in layout.files] if layout.is_folder else [out]
    return digests.report() | {str(one): remembered_sha256(one) for one in written}


def _write_beside(path: Path, text: bytes) -> tuple[str, ...]:
    """Write a card beside a result that is in place, which stands whatever becomes of this."""
    try:
        destination = Destination.check(path, inputs=(), needed_bytes=len(text))
        with stage(destination) as staged:
            write_small_file(staged.file(path.name), text)
            publish(staged)
    except (OSError, RefusedError) as error:
        stands = isinstance(error, RefusedError) and error.code == "output-exists"  # and --force would not replace it
        return (f"no card is written: {f'{printable(path)} stands there' if stands else printable(error)}",)
    return ()


def stands(out: StrPath, request: Request, layout: OutputLayout, *, force: bool) -> bool:
    """Whether ``out`` is there, whole and made by the same request.

    Raises:
        OSError: as the system says.
        RefusedError: ``output-other-request``, where it is another and stays.
    """
    path = as_path(out)
    if not os.path.lexists(path):
        return False
    problem = request.differs(path, layout)
    if problem and not force:
        raise cannot_write(
            path, f"it stands there, and {printable(problem)}; --force replaces it", "output-other-request"
        )
    return problem is None


def _reused(
    plan: OpenedPlan,
    out: StrPath,
    layout: OutputLayout,
    began: float,
    *,
    digests: Digests | None,
    options: WriteOptions,
) -> FuseReport:
    path = place(out)
    card = (path if layout.is_folder else path.parent) / CARD_NAME
    notes = ("no card is written: the result is reused as it is",) if options.card and not card.exists() else ()
    known = _digests(digests, path, layout) if digests else {}
    told = vars(outline(plan.plan, path, options.threads, known)) | {"reused": True}
    report = FuseReport(**told, nonfinite={}, seconds=time.perf_counter() - began)
    return replace(report, notes=(*report.notes, *notes))
