"""Fusing and verifying checkpoints, each as one call."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.engines.card import CARD_NAME, model_card
from ltx2c.engines.digests import Digests
from ltx2c.engines.file import write_fused
from ltx2c.engines.outputs import lay_out
from ltx2c.engines.report import FuseOutline, FuseReport, outline
from ltx2c.engines.request import Request
from ltx2c.engines.verify import VerifyReport, verify_fused
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.files.destination import Destination, cannot_write
from ltx2c.files.direct import write_small_file
from ltx2c.files.layout import OutputLayout
from ltx2c.files.paths import as_path, place
from ltx2c.files.remembered import remembered_sha256
from ltx2c.files.staging import publish, rehearse, stage
from ltx2c.plan import Plan
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.match import OnUnmatched
from ltx2c.plan.opened import AdapterArgument, BaseArgument, OpenedPlan, reopened
from ltx2c.plan.options import Options
from ltx2c.prepare import StrPath, check_destination, lay_out_whole, opened_plan
from ltx2c.progress import OnProgress, Tracker


def fuse_checkpoint(
    base: BaseArgument,
    adapters: Sequence[AdapterArgument],
    out: StrPath,
    *,
    arithmetic: str = LTX.name,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    out_dtype: str | None = None,
    keep: Sequence[str] = (),
    force: bool = False,
    reuse: bool = False,
    card: bool = False,
    allow_nonfinite: bool = False,
    max_shard_bytes: int | None = None,
    sha256: bool = False,
    expect_sha256: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> FuseReport:
    """Fuse adapters into a checkpoint and write the result, whole or not at all.

    Args:
        base: a ``.safetensors`` file, a model's or a pipeline's folder, an index, a hub name, or an open checkpoint.
        adapters: ``(path or open adapter, strength)`` in fusion order; files or sharded folders alike.
        out: the file to write, or the folder where the base is one or is sharded, with all that stands beside the
            weights; it is to be created in a folder that exists.
        arithmetic, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep: as for ``plan_fuse``.
        threads: to compute with; None for what this process may use.
        unmatched: ``"warn"`` goes on without adapter pairs that have no target in the base, and reports them.
        force: whether to replace ``out`` where it exists.
        reuse: whether to leave ``out`` as it is where the same request has made it: of the same base and adapters by
            content, strengths, order, arithmetic, layout and files beside. Their sha256 are remembered in the user's
            cache. An ``out`` of another request, or one that is not whole, is refused without ``force``.
        card: whether to write a model card, README.md, into the folder ``out`` or beside the file; never over one.
        allow_nonfinite: whether to keep a result with infinities or NaN where the base was finite.
        max_shard_bytes: write a folder of shards of at most so many tensor bytes each, however the base is sharded.
        sha256: whether to report full digests of base, adapters and output; the adapters' enter the metadata too.
        expect_sha256: digests that the base and then each adapter must have, as far as given. Implies ``sha256``.
        progress: called now and then, in the calling thread; with ``reuse`` also while inputs are read for their
            digests, when nothing of the output is done yet. What it raises ends the fuse and leaves nothing.

    Raises:
        OSError: as the system raised it.
        RefusedError: whatever stands against the fuse. All but ``nonfinite``, ``file-changed``, ``wrong-sha256`` (of
            the base) and an output that appears meanwhile is found before a weight is read.
    """
    with opened_plan(
        base, adapters, Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    ) as plan:
        return _write(
            plan,
            out,
            threads=threads,
            force=force,
            reuse=reuse,
            card=card,
            allow_nonfinite=allow_nonfinite,
            max_shard_bytes=max_shard_bytes,
            sha256=sha256,
            expect_sha256=expect_sha256,
            progress=progress,
        )


def execute(
    plan: Plan,
    out: StrPath,
    *,
    threads: int | None = None,
    force: bool = False,
    reuse: bool = False,
    card: bool = False,
    allow_nonfinite: bool = False,
    max_shard_bytes: int | None = None,
    sha256: bool = False,
    expect_sha256: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> FuseReport:
    """Write what a plan says, whole or not at all: the bytes that ``fuse_checkpoint`` writes, in whatever process.

    Args:
        plan: from ``plan_fuse``, or from ``Plan.from_json`` in another process. The files that it was made from are
            opened again where they were.
        out, threads, force, reuse, card, allow_nonfinite, max_shard_bytes, sha256, expect_sha256, progress: as for
            ``fuse_checkpoint``.

    Raises:
        OSError: as the system raised it.
        RefusedError: ``file-changed`` before anything is written, where a file is not the one that the plan was made
            from; ``bad-plan``; as ``fuse_checkpoint``.
    """
    with reopened(plan) as opened:
        return _write(
            opened,
            out,
            threads=threads,
            force=force,
            reuse=reuse,
            card=card,
            allow_nonfinite=allow_nonfinite,
            max_shard_bytes=max_shard_bytes,
            sha256=sha256,
            expect_sha256=expect_sha256,
            progress=progress,
        )


def _write(
    plan: OpenedPlan,
    out: StrPath,
    *,
    force: bool,
    reuse: bool,
    card: bool,
    max_shard_bytes: int | None,
    sha256: bool,
    expect_sha256: Sequence[str],
    **how: Any,
) -> FuseReport:
    began = time.perf_counter()
    laid_out = lay_out_whole(plan, out, max_shard_bytes)
    digests = Digests(plan.sources, expect_sha256) if sha256 or expect_sha256 else None
    layout, request = laid_out.layout, None
    if reuse:
        tracker = Tracker(plan.plan.bytes_written, plan.plan.macs, how["progress"])
        request = Request(plan, layout, max_shard_bytes, lambda: tracker.advance(0, 0))
        if digests is not None:
            digests.take(request.inputs)
        if _stands(out, request, layout, force=force):
            tracker.advance(plan.plan.bytes_written, plan.plan.macs)
            return _reused(plan, out, request, layout, began, digests=digests, threads=how["threads"])
    text = model_card(plan) if card else None
    layout, notes = _with_card(layout, text)
    destination = check_destination(plan, out, layout, force=force)
    adapters = request.of_adapters(plan) if request else digests.of_adapters() if digests else None
    if adapters is not None:
        asked = request.sha256 if request else None
        named = lay_out(plan, max_shard_bytes=max_shard_bytes, adapter_sha256=adapters, request=asked)
        layout, _ = _with_card(replace(named, siblings=layout.siblings), text)
    report = write_fused(plan, layout, destination, digests=digests, **how)
    if text is not None and not layout.is_folder:
        notes = _write_beside(destination.path.with_name(CARD_NAME), text)
    return replace(report, notes=(*report.notes, *laid_out.notes, *notes))


def _with_card(layout: OutputLayout, text: bytes | None) -> tuple[OutputLayout, tuple[str, ...]]:
    """A folder's layout with a card in it, unless one comes along with the base."""
    if text is None or not layout.is_folder:
        return layout, ()
    if CARD_NAME in layout.names:
        return layout, (f"no card is written: the base's own {CARD_NAME} comes along",)
    return replace(layout, texts={**layout.texts, CARD_NAME: text}), ()


def _write_beside(path: Path, text: bytes) -> tuple[str, ...]:
    """Write a card beside a result that is in place, which stands whatever becomes of this."""
    try:
        destination = Destination.check(path, inputs=(), needed_bytes=len(text))
        with stage(destination) as staged:
            write_small_file(staged.file(path.name), text)
            publish(staged)
    except (OSError, RefusedError) as error:
        return (f"no card is written: {printable(error)}",)
    return ()


def _stands(out: StrPath, request: Request, layout: OutputLayout, *, force: bool) -> bool:
    """Whether ``out`` is there, whole and made by the same request; refused where it is another and stays."""
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
    request: Request,
    layout: OutputLayout,
    began: float,
    *,
    digests: Digests | None,
    threads: int | None,
) -> FuseReport:
    path = place(out)
    known = digests.report() if digests else {}
    if digests is not None:
        written = [path / file.name for file in layout.files] if layout.is_folder else [path]
        known |= {str(one): remembered_sha256(one) for one in written}
    told = vars(outline(plan.plan, path, threads, known)) | {"reused": True}
    return FuseReport(**told, nonfinite={}, seconds=time.perf_counter() - began)


def outline_fuse(
    base: BaseArgument,
    adapters: Sequence[AdapterArgument],
    out: StrPath,
    *,
    arithmetic: str = LTX.name,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    out_dtype: str | None = None,
    keep: Sequence[str] = (),
    force: bool = False,
    reuse: bool = False,
    max_shard_bytes: int | None = None,
    sha256: bool = False,
    expect_sha256: Sequence[str] = (),
) -> FuseOutline:
    """Say what ``fuse_checkpoint`` would do, and leave nothing. Weights are read only where digests are asked for.

    Whether the output can be put in place is tried with an empty temporary beside it, which is removed again.

    Args:
        base, adapters, out, arithmetic, threads, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype,
            keep, force, reuse, max_shard_bytes, sha256, expect_sha256: as for ``fuse_checkpoint``.

    Raises:
        OSError: as the system raised it.
        RefusedError: as ``fuse_checkpoint``, but for what only fusing shows.
    """
    with opened_plan(
        base, adapters, Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    ) as plan:
        layout, notes = lay_out_whole(plan, out, max_shard_bytes)
        if reuse:
            request = Request(plan, layout, max_shard_bytes)
            if _stands(out, request, layout, force=force):
                digests = Digests(plan.sources, expect_sha256) if sha256 or expect_sha256 else None
                if digests is not None:
                    digests.take(request.inputs)
                known = outline(plan.plan, place(out), threads, digests.report() if digests else {})
                return replace(known, reused=True)
        destination = check_destination(plan, out, layout, force=force)
        notes += rehearse(destination)
        digests = Digests(plan.sources, expect_sha256) if sha256 or expect_sha256 else None
        if digests is not None:
            digests.of_adapters()
            digests.finish_base()
        known = outline(plan.plan, destination.path, threads, digests.report() if digests else {})
        return replace(known, notes=(*known.notes, *notes))


def verify_checkpoint(
    fused: StrPath,
    base: BaseArgument,
    adapters: Sequence[AdapterArgument],
    *,
    arithmetic: str = LTX.name,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    out_dtype: str | None = None,
    keep: Sequence[str] = (),
    sample: float = 1.0,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Recompute a fuse and compare a fused checkpoint with it, byte for byte.

    Args:
        fused: what to check, whatever made it: a file, a folder of shards, or its index.
        base, adapters, arithmetic, threads, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype,
            keep, progress: as for ``fuse_checkpoint``.
        sample: the share of every tensor's rows to compare, above 0 and up to 1.

    Raises:
        OSError: as the system raised it.
        RefusedError: as ``fuse_checkpoint`` and ``verify_fused`` do. That bytes differ is no error: the report says so.
    """
    with (
        opened_plan(
            base, adapters, Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
        ) as plan,
        Checkpoint.open(fused) as checked,
    ):
        return verify_fused(plan, checked, threads=threads, sample=sample, progress=progress)
