"""What is settled before a fuse: its plan, the files open; its output, with all that comes along; where that goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ltx2c.engines.card import CARD_NAME, model_card
from ltx2c.engines.configs import without_quantisation
from ltx2c.engines.outputs import lay_out
from ltx2c.files import Checkpoint
from ltx2c.files.layout import OutputLayout
from ltx2c.files.paths import out_path
from ltx2c.files.places import AnyDestination, check_place
from ltx2c.files.siblings import find_siblings
from ltx2c.files.url import AnyPath
from ltx2c.plan.fuse import plan_sources
from ltx2c.plan.opened import AdapterArgument, BaseArgument, OpenedPlan, opened
from ltx2c.plan.options import Options
from ltx2c.plan.written import written_components

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def opened_plan(base: BaseArgument, adapters: Sequence[AdapterArgument], options: Options) -> Iterator[OpenedPlan]:
    """Open the files and plan the fuse; the files are closed at the end of the block. Raises as ``plan_fuse`` does."""
    with opened(base, adapters, alpha=options.alpha, variant=options.variant) as (sources, strengths):
        yield OpenedPlan(plan_sources(sources, strengths, options), sources)


@dataclass(frozen=True)
class OutputForm:
    """What of an output its plan leaves open.

    Attributes:
        max_shard_bytes, card: as for ``fuse_checkpoint``.
        adapter_sha256, request: for the metadata: digests of the adapters' whole content, and of what was asked for.
    """

    max_shard_bytes: int | None = None
    card: bool = False
    adapter_sha256: tuple[str, ...] | None = None
    request: str | None = None

    def lay_out(self, opened: OpenedPlan) -> OutputLayout:
        """The files of the output. Raises as ``lay_out`` does."""
        return lay_out(
            opened,
            max_shard_bytes=self.max_shard_bytes,
            adapter_sha256=self.adapter_sha256,
            request=self.request,
        )


class LaidOut(NamedTuple):
    """A plan's output, and what a person should know of what comes along.

    Attributes:
        configs: files of the base's folder that are written otherwise than they are there.
        card: goes beside an output's file.
    """

    layout: OutputLayout
    notes: tuple[str, ...]
    configs: Mapping[str, bytes] = MappingProxyType({})
    card: bytes | None = None

    def again(self, opened: OpenedPlan, form: OutputForm) -> LaidOut:
        """The same in another form; what comes along is not looked for again."""
        layout = form.lay_out(opened)
        layout = replace(layout, siblings=self.layout.siblings, texts={**layout.texts, **self.configs})
        laid_out = self._replace(layout=layout)
        if not form.card:
            return laid_out
        text = model_card(opened)
        if not layout.is_folder:
            return laid_out._replace(card=text)
        if CARD_NAME in layout.names:
            note = f"no card is written: the base's own {CARD_NAME} comes along"
            return laid_out._replace(notes=(*self.notes, note))
        return laid_out._replace(layout=replace(layout, texts={**layout.texts, CARD_NAME: text}))


_PLAIN = OutputForm()


def lay_out_whole(opened: OpenedPlan, out: StrPath, form: OutputForm = _PLAIN) -> LaidOut:
    """The output of a plan with all that comes along. Raises as ``lay_out`` and ``find_siblings`` do."""
    base = opened.sources.base
    if base.folder is None:
        return LaidOut(OutputLayout((), False, {}), ()).again(opened, form)
    found = find_siblings(base.folder, written_components(base, opened.plan.weights), out_path(out))
    beside = without_quantisation(opened, found.files)
    layout = OutputLayout((), False, {}, beside.files)
    return LaidOut(layout, (*found.notes, *beside.notes), beside.texts).again(opened, form)


def check_destination(
    opened: OpenedPlan,
    out: StrPath,
    layout: OutputLayout,
    *,
    force: bool,
    inputs: Iterable[AnyPath] = (),
    more_bytes: int = 0,
) -> AnyDestination:
    """Make sure, without writing, that an output can be put at ``out``. Raises as ``check_place`` does.

    Args:
        inputs: what is read beside the plan's own files, by fuses of the same run.
        more_bytes: what those need on the same file system.
    """
    read: list[AnyPath] = [path for checkpoint in opened.sources.checkpoints for path in paths_read(checkpoint)]
    read += [sibling.path for sibling in layout.siblings]
    return check_place(
        out,
        inputs=[*inputs, *read],
        needed_bytes=more_bytes + layout.size,
        force=force,
        folder=layout.is_folder,
        names=layout.names if layout.is_folder else (),
    )


def paths_read(checkpoint: Checkpoint) -> Iterator[AnyPath]:
    """Every file and folder that a checkpoint was read from."""
    yield checkpoint.path
    yield from (file.path for file in checkpoint.files)
    folder = checkpoint.folder or checkpoint.path.parent
    for component in checkpoint.components:
        if component.index_name:
            yield folder / component.name / component.index_name
