"""The files of a plan, open: beside the plan, which is a value and holds none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ltx2c.adapters import Adapter, Delta
from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.adapters.scaling import AlphaMode
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files.url import AnyPath
from ltx2c.plan.plan import Plan
from ltx2c.plan.sources import DeltaRef

BaseArgument = str | os.PathLike[str] | Checkpoint
"""A base as a caller gives it: a path, or a checkpoint that is open and stays the caller's to close."""

AdapterArgument = tuple[str | os.PathLike[str] | Adapter, float]
"""An adapter as a caller gives it, likewise, with its strength."""


class Sources:
    """The base and the adapters of one plan or several, open for reading."""

    def __init__(self, base: Checkpoint, adapters: Iterable[Adapter]) -> None:
        self.base = base
        self.adapters = tuple(adapters)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Everything that is read: the base, then the adapters."""
        return (self.base, *(adapter.checkpoint for adapter in self.adapters))

    @property
    def files(self) -> tuple[TensorFile, ...]:
        """The files of all of them."""
        return tuple(file for checkpoint in self.checkpoints for file in checkpoint.files)

    def delta(self, ref: DeltaRef) -> Delta:
        """What ``ref`` refers to."""
        return self._deltas[ref.adapter.place, ref.key]

    def load(self, ref: DeltaRef) -> LoadedDelta:
        """Read what ``ref`` refers to. Raises as ``Delta.load`` does."""
        return self.delta(ref).load()

    def check_holds(self, plan: Plan) -> None:
        """Make sure that every weight and delta of a plan is there: a plan that was edited by hand may name any.

        Raises:
            RefusedError: ``bad-plan``.
        """
        for key, stored in plan.weights.items():
            for spec in stored.outputs:
                found = self.base.tensors.get(spec.key)
                changed = key in plan.fusions or plan.written[key] != stored
                if found is None or (found.dtype, found.shape) != spec[1:] or not changed:
                    raise RefusedError(
                        f"a damaged plan: {printable(self.base.path)} does not hold {printable(spec.key)} as it says",
                        code="bad-plan",
                    )
        for key, deltas in plan.fusions.items():
            refs = [one.delta for one in deltas]
            missing = [ref.key for ref in refs if (ref.adapter.place, ref.key) not in self._deltas]
            if key not in plan.weights or missing:
                raise RefusedError(
                    f"a damaged plan: {printable(self.base.path)} and the adapters do not hold {printable(key)} and "
                    f"{', '.join(printable(ref.key) for ref in refs)}",
                    code="bad-plan",
                )

    @cached_property
    def _deltas(self) -> dict[tuple[AnyPath, str], Delta]:
        return {
            (adapter.path.absolute(), delta.tensors[0].key): delta
            for adapter in self.adapters
            for delta in adapter.deltas
        }

    def check_unchanged(self) -> None:
        """Make sure that every file is as it was when it was opened. Raises as ``TensorFile.check_unchanged``."""
        for file in self.files:
            file.check_unchanged()


@contextlib.contextmanager
def opened(
    base: BaseArgument, adapters: Sequence[AdapterArgument], *, alpha: AlphaMode = "stated", variant: str | None = None
) -> Iterator[tuple[Sources, list[float]]]:
    """Open what was given as a path, and close it at the end of the block; the adapters' strengths beside it.

    ``alpha`` is of adapters that are opened here, as for ``Adapter.open``; ``variant`` of the base, likewise.

    Raises:
        OSError: as the system raised it.
        RefusedError: ``bad-adapter-argument``; as ``Checkpoint.open`` and ``Adapter.open`` say.
    """
    with contextlib.ExitStack() as files:
        checkpoint = (
            base if isinstance(base, Checkpoint) else files.enter_context(Checkpoint.open(base, variant=variant))
        )
        given = [adapter_and_strength(one) for one in adapters]
        yield (
            Sources(
                checkpoint,
                [
                    one if isinstance(one, Adapter) else files.enter_context(Adapter.open(one, alpha=alpha))
                    for one, _ in given
                ],
            ),
            [strength for _, strength in given],
        )


def adapter_and_strength(given: object) -> AdapterArgument:
    """What a caller gave, checked. Raises RefusedError (``bad-adapter-argument``)."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], (str, os.PathLike, Adapter)):
        return given[0], given[1]
    raise RefusedError(f"an adapter is (path, strength), not {printable(repr(given))}", code="bad-adapter-argument")


class OpenedPlan(NamedTuple):
    """A plan, and what it was made from, open."""

    plan: Plan
    sources: Sources


@contextlib.contextmanager
def reopened(plan: Plan) -> Iterator[OpenedPlan]:
    """Open what a plan was made from; the files are closed at the end of the block.

    Raises:
        OSError: as the system raised it.
        RefusedError: ``file-changed``, where a file is not the one that the plan was made from; as ``Checkpoint.open``
            and ``Adapter.open`` say, where it is of another kind now.
    """
    with contextlib.ExitStack() as files:
        base = files.enter_context(Checkpoint.open(plan.base.place, variant=plan.base.variant))
        plan.base.check(base)
        adapters = []
        for planned in plan.adapters:
            adapters.append(files.enter_context(Adapter.open(planned.source.place)))
            planned.source.check(adapters[-1].checkpoint)
        sources = Sources(base, adapters)
        sources.check_holds(plan)
        yield OpenedPlan(plan, sources)
