"""Fusing several results from one base, as one call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ltx2c.adapters import Adapter
from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX, arithmetic_named
from ltx2c.engines.many import Outcome, Target, write_many
from ltx2c.engines.report import FuseOutline, outline
from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint
from ltx2c.files.destination import cannot_write
from ltx2c.files.paths import input_path, place
from ltx2c.files.places import rehearse_at
from ltx2c.files.url import AnyPath
from ltx2c.forecasting import Forecast, Result, forecast
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.fuse import plan_sources
from ltx2c.plan.match import OnUnmatched, check_on_unmatched
from ltx2c.plan.opened import AdapterArgument, BaseArgument, OpenedPlan, Sources, adapter_and_strength
from ltx2c.plan.options import Options
from ltx2c.prepare import OutputForm, check_destination, lay_out_whole, paths_read
from ltx2c.progress import OnProgress

OutT = TypeVar("OutT", bound="str | os.PathLike[str]")


def fuse_many(
    base: BaseArgument,
    outputs: Mapping[OutT, Sequence[AdapterArgument]],
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
    allow_nonfinite: bool = False,
    max_shard_bytes: int | None = None,
    progress: OnProgress | None = None,
) -> dict[OutT, Outcome]:
    """Fuse several results from one base, whose bytes are read once for all of them.

    Each is what ``fuse_checkpoint`` makes, to the byte. Factors that go into several are read once, and under ``f32``
    multiplied once. Each is published when it is done; one that is refused or fails leaves nothing, and stops no other.
    Buffers take 320 MB or less, unless blocks of 1 MB for each result or single rows of a weight need more.

    Args:
        base: as for ``fuse_checkpoint``.
        outputs: where each result goes -> its adapters with their strengths, as for ``fuse_checkpoint``.
        progress: called now and then, with the bytes of all results.
        arithmetic, threads, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep, force,
            allow_nonfinite, max_shard_bytes: as for ``fuse_checkpoint``; of all results.

    Returns:
        For each result its report, or the ``RefusedError`` or ``OSError`` that ``fuse_checkpoint`` would have raised;
        beside those ``same-output-twice``.

    Raises:
        OSError, RefusedError: the base cannot be read or is refused, or an option makes no sense.
    """
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    found: dict[OutT, Outcome] = {}
    with _plans(base, outputs, options) as planned:
        found.update(planned.problems)
        checked = _Outputs(planned.sources, force, max_shard_bytes)
        targets: dict[OutT, Target] = {}
        for out, plan in planned.plans.items():
            with _kept(found, out):
                targets[out] = checked.target(plan, out)
        for alike in _alike(targets):
            made = write_many(
                list(alike.values()),
                planned.sources,
                threads=threads,
                allow_nonfinite=allow_nonfinite,
                progress=progress,
            )
            found.update(zip(alike, made, strict=True))
    return {out: found[out] for out in outputs}


def outline_many(
    base: BaseArgument,
    outputs: Mapping[OutT, Sequence[AdapterArgument]],
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
    max_shard_bytes: int | None = None,
) -> dict[OutT, FuseOutline | RefusedError | OSError]:
    """Say what ``fuse_many`` would do for each result, and leave nothing. Takes, returns and raises what that does.

    Whether a result can be put in place is tried, as by ``fuse --dry-run``.
    """
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    found: dict[OutT, FuseOutline | RefusedError | OSError] = {}
    with _plans(base, outputs, options) as planned:
        found.update(planned.problems)
        checked = _Outputs(planned.sources, force, max_shard_bytes)
        for out, plan in planned.plans.items():
            with _kept(found, out):
                target = checked.target(plan, out)
                notes = (*target.notes, *rehearse_at(target.destination))
                known = outline(plan.plan, target.destination.path, threads)
                found[out] = replace(known, notes=(*known.notes, *notes))
    return {out: found[out] for out in outputs}


def forecast_many(
    base: BaseArgument,
    outputs: Mapping[OutT, Sequence[AdapterArgument]],
    *,
    workers: int,
    network: float,
    storage: float,
    arithmetic: str = LTX.name,
    threads: int | None = None,
    unmatched: OnUnmatched = "error",
    nvfp4_scales: str | None = None,
    alpha: AlphaMode = "stated",
    block_weights: BlockWeights = (),
    variant: str | None = None,
    out_dtype: str | None = None,
    keep: Sequence[str] = (),
    max_shard_bytes: int | None = None,
) -> Forecast:
    """Say how long a cluster of workers like this machine would take for several results, each a job in units.

    Where they go is not looked at: that may be a place that only the cluster sees.

    Args:
        workers, network, storage: as for ``ltx2c.forecasting.forecast``; bytes per second.
        base, outputs, arithmetic, threads, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep,
            max_shard_bytes: as for ``fuse_many``; threads of each worker.

    Raises:
        OSError, RefusedError: of the base, of any result, or of a number that is not positive.
    """
    options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant, out_dtype, keep)
    form = OutputForm(max_shard_bytes)
    with _plans(base, outputs, options) as planned:
        for problem in planned.problems.values():
            raise problem
        results = [Result(plan, form.lay_out(plan)) for plan in planned.plans.values()]
        return forecast(results, workers=workers, network=network, storage=storage, threads=threads)


@dataclass
class _Planned(Generic[OutT]):
    """What several results are made from, open, and their plans; what went wrong with others."""

    sources: Sources
    plans: dict[OutT, OpenedPlan]
    problems: dict[OutT, RefusedError | OSError]


@contextlib.contextmanager
def _plans(
    base: BaseArgument, outputs: Mapping[OutT, Sequence[AdapterArgument]], options: Options
) -> Iterator[_Planned[OutT]]:
    arithmetic_named(options.arithmetic)
    check_on_unmatched(options.unmatched)
    with contextlib.ExitStack() as files:
        checkpoint = (
            base
            if isinstance(base, Checkpoint)
            else files.enter_context(Checkpoint.open(base, variant=options.variant))
        )
        adapters = _Adapters(files, options.alpha)
        plans: dict[OutT, OpenedPlan] = {}
        problems: dict[OutT, RefusedError | OSError] = {}
        for out, given in outputs.items():
            with _kept(problems, out):
                plans[out] = _planned(checkpoint, given, adapters, options)
        yield _Planned(Sources(checkpoint, adapters.opened), plans, problems)


@contextlib.contextmanager
def _kept(found: MutableMapping[OutT, Any], out: OutT) -> Iterator[None]:
    """Keep what goes wrong in the block as what became of a result."""
    try:
        yield
    except (RefusedError, OSError) as error:
        found[out] = error


def _planned(base: Checkpoint, given: Sequence[AdapterArgument], adapters: _Adapters, options: Options) -> OpenedPlan:
    pairs = [adapter_and_strength(one) for one in given]
    sources = Sources(base, [adapters.open(adapter) for adapter, _ in pairs])
    return OpenedPlan(plan_sources(sources, [strength for _, strength in pairs], options), sources)


class _Adapters:
    """Adapters that are opened once each."""

    def __init__(self, files: contextlib.ExitStack, alpha: AlphaMode) -> None:
        self._files = files
        self._alpha = alpha
        self._by_path: dict[AnyPath, Adapter] = {}

    def open(self, given: str | os.PathLike[str] | Adapter) -> Adapter:
        """As given, or opened unless it is."""
        if isinstance(given, Adapter):
            return self._by_path.setdefault(given.path.absolute(), given)
        path = input_path(given).absolute()
        if path not in self._by_path:
            self._by_path[path] = self._files.enter_context(Adapter.open(given, alpha=self._alpha))
        return self._by_path[path]

    @property
    def opened(self) -> list[Adapter]:
        """All of them."""
        return list(self._by_path.values())


class _Outputs:
    """Destinations that are checked together: none is another's, or anybody's input, and there is room for all."""

    def __init__(self, sources: Sources, force: bool, max_shard_bytes: int | None) -> None:
        self._inputs = [path for checkpoint in sources.checkpoints for path in paths_read(checkpoint)]
        self._force = force
        self._max_shard_bytes = max_shard_bytes
        self._needed: dict[int, int] = {}  # bytes by device
        self._taken: set[AnyPath] = set()

    def target(self, opened: OpenedPlan, out: str | os.PathLike[str]) -> Target:
        """A result with its checked destination. Raises as those two do."""
        device = _device(out)
        layout, notes, *_ = lay_out_whole(opened, out, OutputForm(self._max_shard_bytes))
        more = self._needed.get(device, 0)
        destination = check_destination(opened, out, layout, force=self._force, inputs=self._inputs, more_bytes=more)
        if destination.path in self._taken:
            raise cannot_write(destination.path, "it is given twice", "same-output-twice")
        self._taken.add(destination.path)
        self._needed[device] = self._needed.get(device, 0) + layout.size
        return Target(opened, layout, destination, notes)


def _device(out: str | os.PathLike[str]) -> int:
    """Of the folder of a result; -1 of one that is missing, which its check will tell."""
    try:
        return place(out).parent.stat().st_dev
    except OSError:
        return -1


def _alike(targets: Mapping[OutT, Target]) -> list[dict[OutT, Target]]:
    """Results that consist of the same files. Of a pipeline's components some results may leave one as it is."""
    groups: dict[tuple[str, ...], dict[OutT, Target]] = {}
    for out, target in targets.items():
        groups.setdefault(tuple(file.name for file in target.layout.files), {})[out] = target
    return list(groups.values())
