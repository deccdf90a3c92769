"""Fusing and verifying checkpoints, each as one call."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.engines.digests import Digests
from ltx2c.engines.report import FuseOutline, FuseReport, outline
from ltx2c.engines.request import Request
from ltx2c.engines.verify import VerifyReport, verify_fused
from ltx2c.files import Checkpoint
from ltx2c.files.paths import place
from ltx2c.files.places import rehearse_at
from ltx2c.files.url import is_url
from ltx2c.jobs.hidden import HiddenJobs
from ltx2c.plan import Plan
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.match import OnUnmatched
from ltx2c.plan.opened import AdapterArgument, BaseArgument, reopened
from ltx2c.plan.options import Options
from ltx2c.prepare import OutputForm, StrPath, check_destination, lay_out_whole, opened_plan
from ltx2c.progress import OnProgress
from ltx2c.single import WriteOptions, check_url, stands, write_single


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
    executor: Executor | None = None,
    resume: bool = False,
    progress: OnProgress | None = None,
) -> FuseReport:
    """Fuse adapters into a checkpoint and write the result, whole or not at all.

    Args:
        base: a ``.safetensors`` file, a model's or a pipeline's folder, an index, a hub name, or an open checkpoint.
        adapters: ``(path or open adapter, strength)`` in fusion order; files or sharded folders alike.
        out: the file to write, or the folder where the base is one or is sharded, with all that stands beside the
            weights; it is to be created in a folder that exists.
        arithmetic, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep: as for ``plan_fuse``.
        threads: to compute with; None for what this process may use. With an ``executor``, for each unit that a worker
            does, None for one: whoever starts workers gives a machine as many as it has cores.
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
        executor: any of ``concurrent.futures``' kind, whose workers see the inputs and the folder of ``out`` under the
            same paths: processes of this machine or of others, whatever their CPUs. They do the result's units, in a
            hidden folder beside ``out``; the caller puts the result in place when all are done and clean.
        resume: whether to do the result in units that stay, in a hidden folder beside ``out``, where this run is killed
            or the system fails it; and to take over what such a run has left of the same request. A refusal leaves
            nothing.
        progress: called now and then, in the calling thread; with ``reuse`` also while inputs are read for their
            digests, when nothing of the output is done yet. What it raises ends the fuse and leaves nothing.

    Raises:
        OSError: as the system raised it. Where a worker died or failed, the message names its unit.
        RefusedError: whatever stands against the fuse. All but ``nonfinite``, ``file-changed``, ``wrong-sha256`` (of
            the base) and an output that appears meanwhile is found before a weight is read. ``resume-other-request``:
            what a killed run left is of other inputs or options, which the message names.
    """
    with opened_plan(
        base, adapters, Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    ) as plan:
        return write_single(
            plan,
            out,
            WriteOptions(
                threads=threads,
                force=force,
                reuse=reuse,
                card=card,
                allow_nonfinite=allow_nonfinite,
                max_shard_bytes=max_shard_bytes,
                sha256=sha256,
                expect_sha256=expect_sha256,
                executor=executor,
                resume=resume,
                progress=progress,
            ),
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
    executor: Executor | None = None,
    resume: bool = False,
    progress: OnProgress | None = None,
) -> FuseReport:
    """Write what a plan says, whole or not at all: the bytes that ``fuse_checkpoint`` writes, in whatever process.

    Args:
        plan: from ``plan_fuse``, or from ``Plan.from_json`` in another process. The files that it was made from are
            opened again where they were.
        out, threads, force, reuse, card, allow_nonfinite, max_shard_bytes, sha256, expect_sha256, executor,
            resume, progress: as for ``fuse_checkpoint``.

    Raises:
        OSError: as the system raised it.
        RefusedError: ``file-changed`` before anything is written, where a file is not the one that the plan was made
            from; ``bad-plan``; as ``fuse_checkpoint``.
    """
    with reopened(plan) as opened:
        return write_single(
            opened,
            out,
            WriteOptions(
                threads=threads,
                force=force,
                reuse=reuse,
                card=card,
                allow_nonfinite=allow_nonfinite,
                max_shard_bytes=max_shard_bytes,
                sha256=sha256,
                expect_sha256=expect_sha256,
                executor=executor,
                resume=resume,
                progress=progress,
            ),
        )


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
        layout, notes, *_ = lay_out_whole(plan, out, OutputForm(max_shard_bytes))
        if is_url(out):
            check_url(plan, out, layout, reuse=reuse, digest=sha256 or bool(expect_sha256))
        if reuse:
            request = Request(plan, layout, max_shard_bytes)
            if stands(out, request, layout, force=force):
                digests = Digests(plan.sources, expect_sha256) if sha256 or expect_sha256 else None
                if digests is not None:
                    digests.take(request.inputs)
                known = outline(plan.plan, place(out), threads, digests.report() if digests else {})
                return replace(known, reused=True)
        left = HiddenJobs(out)
        destination = check_destination(plan, out, layout, force=force, more_bytes=-left.disk_bytes)
        notes += rehearse_at(destination)
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
