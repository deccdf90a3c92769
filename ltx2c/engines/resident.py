"""Weights resident in memory, bound from one phase's state to the next by exactly what differs."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.engines.memory import ResidentMemory
from ltx2c.engines.residency import Residency
from ltx2c.engines.slot import slot_bytes
from ltx2c.engines.torch_views import torch_view
from ltx2c.engines.turns import Turns
from ltx2c.errors import RefusedError, printable
from ltx2c.files.url import AnyPath
from ltx2c.plan.bind import Bind, choose_double_buffered
from ltx2c.plan.block_weights import BlockWeights
from ltx2c.plan.match import OnUnmatched
from ltx2c.plan.opened import BaseArgument
from ltx2c.plan.options import Options
from ltx2c.plan.phases import PhasePlans, opened_recipe, plan_phases
from ltx2c.plan.plan import Fusions
from ltx2c.recipes import Recipe
from ltx2c.threads import resolve_threads

Array = npt.NDArray[Any]

BASE = "base"


@dataclass(frozen=True)
class BoundState:
    """What resident weights hold.

    Attributes:
        name: a phase's name, ``"base"``, or ``"unfinished <name>"`` while a bind runs and after one that failed or
            was interrupted with some tensors changed.
        adapters: the state: adapters with their strengths, in fusion order; empty for the base, and where unfinished.
        torn: tensors whose bytes are of no state; the next bind repairs them.
    """

    name: str
    adapters: tuple[tuple[AnyPath, float], ...] = ()
    torn: tuple[str, ...] = ()


@dataclass(frozen=True)
class BindReport:
    """What one bind did: tensors by what was done to them, multiply-adds, bytes, and the seconds it took."""

    state: str
    kept: int
    restored: int
    fused: int
    switched: int
    macs: int
    bytes_read: int
    bytes_written: int
    seconds: float


class _Target(NamedTuple):
    name: str
    adapters: tuple[tuple[AnyPath, float], ...]
    fusions: Fusions


class ResidentCheckpoint:
    """A base in memory, in the state of one of a recipe's phases. Also a context manager.

    The arrays' addresses never change, and their bytes change only while a bind runs. A bind always starts from the
    base file's bytes, never from fused ones, so that every state is exact after any sequence of binds. Binds that
    would overlap run one after the other. Get one from ``open``.

    Attributes:
        recipe: as given.
        options: what, beside the arithmetic, changes bytes and was given: ``alpha``, ``block_weights``, ...
        notes: what a user should be told.
        unmatched: adapter keys that no tensor of the base fits, left out.
        double_buffered: keys that are held twice.
        loaded: what the load did.
    """

    loaded: BindReport

    def __init__(
        self,
        recipe: Recipe,
        planned: PhasePlans,
        residency: Residency,
        *,
        double_buffered: tuple[str, ...] = (),
        allow_nonfinite: bool = False,
    ) -> None:
        """Put together what ``open`` has opened; nothing is read."""
        self.recipe = recipe
        self.options = planned.options
        self.notes, self.unmatched = planned.notes, planned.unmatched
        self.double_buffered = double_buffered
        self._allow_nonfinite = allow_nonfinite
        self._residency = residency
        self._targets = {
            phase.name: _Target(phase.name, phase.state, fusions)
            for phase, fusions in zip(recipe.phases, planned.fusions, strict=True)
        }
        self._files = ExitStack()
        self._turns: Turns[BindReport] = Turns("resident checkpoint")
        self._state = BoundState("nothing")

    @classmethod
    def open(
        cls,
        base: BaseArgument,
        recipe: Recipe,
        *,
        arithmetic: str = LTX.name,
        threads: int | None = None,
        unmatched: OnUnmatched = "error",
        nvfp4_scales: str | None = None,
        alpha: AlphaMode = "stated",
        block_weights: BlockWeights = (),
        variant: str | None = None,
        keep_adapters: bool = False,
        widen: Literal["float32"] | None = None,
        memory_budget: int = 0,
        allow_nonfinite: bool = False,
    ) -> ResidentCheckpoint:
        """Read a base into memory, in the state of a recipe's first phase.

        Args:
            base: a checkpoint, or a path to one. A checkpoint that is passed in stays the caller's to close.
            recipe: which adapters run in which phase.
            arithmetic: as for ``plan_fuse``.
            threads: how many to use; by default what the machine allows this process.
            unmatched, nvfp4_scales, alpha, block_weights: as for ``plan_fuse``; a phase's strengths stand and are
                multiplied by the block weights' factors, of which each must fit a module of some phase.
            variant: as for ``plan_fuse``: which weights of a folder that holds several.
            keep_adapters: keep factors in memory once they were read, instead of reading them at each bind.
            widen: ``"float32"`` holds bfloat16 and float16 tensors as float32: the fused value, widened exactly.
            memory_budget: bytes for a second copy of tensors that differ between phases, so that a bind switches them
                instead of computing. As many as fit are held twice, those with most arithmetic per byte first.
            allow_nonfinite: accept inf and NaN in a fused weight where the base was finite.

        Raises:
            RefusedError: as ``plan_fuse`` for any phase and ``bad-widen``, ``bad-budget``, ``threads`` before a weight
                is read; ``file-changed``; ``nonfinite``.
            OSError: as the system raised it.
        """
        if widen not in (None, "float32"):
            raise RefusedError(f"widen is {printable(widen)}; it can be 'float32'", code="bad-widen")
        threads = resolve_threads(threads)
        with ExitStack() as files:
            sources = files.enter_context(opened_recipe(base, recipe, alpha=alpha, variant=variant))
            options = Options(arithmetic, unmatched, nvfp4_scales, alpha, block_weights, variant)
            planned = plan_phases(sources, recipe, options)
            tensors, widened = sources.base.tensors, widen is not None
            double_buffered = choose_double_buffered(
                sources.base,
                planned.fusions,
                planned.owners,
                memory_budget,
                lambda key: slot_bytes(tensors[key], widened),
            )
            memory = ResidentMemory(sources.base, double_buffered, widened)
            load = functools.cache(sources.load) if keep_adapters else sources.load
            residency = Residency(sources, planned, memory, load, threads)
            resident = cls(recipe, planned, residency, double_buffered=double_buffered, allow_nonfinite=allow_nonfinite)
            resident.loaded = resident._bind(resident._target(0))
            resident._files = files.pop_all()
        return resident

    @property
    def state(self) -> BoundState:
        """What the weights hold now."""
        return self._state

    @cached_property
    def tensors(self) -> Mapping[str, Array]:
        """Read-only arrays by the base's keys, over the resident memory, which lives as long as any of them."""
        self._turns.check_open()
        return MappingProxyType({key: _read_only(slot.values) for key, slot in self._residency.slots.items()})

    @cached_property
    def torch_tensors(self) -> Mapping[str, Any]:
        """The same memory as CPU torch tensors. Needs torch, which has no read-only tensors: do not write to them."""
        self._turns.check_open()
        return MappingProxyType({key: torch_view(slot.values) for key, slot in self._residency.slots.items()})

    def bind(self, phase: int | str) -> BindReport:
        """Bring the weights to a phase's state, given by index or name; ``"base"`` restores the base.

        A bind that fails or is interrupted leaves a state that ``state`` names, and the next one repairs it.

        Raises:
            RefusedError: ``unknown-phase``; ``closed``; ``file-changed``: a file is not what was opened,
                or did not stay so during the bind; ``nonfinite``.
            OSError: a file could not be read.
        """
        return self._turns.run(functools.partial(self._bind, self._target(phase)))

    def bind_async(self, phase: int | str) -> Future[BindReport]:
        """``bind`` in the background, after those that were asked for before. Its errors come out of the future."""
        return self._turns.submit(functools.partial(self._bind, self._target(phase)))

    def close(self) -> None:
        """Close the files and let go of the memory, after a bind that is running; those that wait are refused.

        Twice is harmless.
        """
        self._turns.close(self._release)

    def __enter__(self) -> ResidentCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _target(self, phase: int | str) -> _Target:
        self._turns.check_open()
        if phase == BASE:
            return _Target(BASE, (), {})
        return self._targets[self.recipe.phases[self.recipe.index(phase)].name]

    def _release(self) -> None:
        self._files.close()
        for held in ("_residency", "tensors", "torch_tensors"):
            self.__dict__.pop(held, None)

    def _bind(self, target: _Target) -> BindReport:
        began = time.perf_counter()
        bind = self._carry_out(target)
        seconds = time.perf_counter() - began
        return BindReport(
            state=target.name,
            kept=len(self._residency.live) - bind.restored - bind.fused - bind.switched,
            restored=bind.restored,
            fused=bind.fused,
            switched=bind.switched,
            macs=bind.cost.macs,
            bytes_read=bind.cost.bytes_read,
            bytes_written=bind.cost.bytes_written,
            seconds=seconds,
        )

    def _carry_out(self, target: _Target) -> Bind:
        before, held = self._state, dict(self._residency.live)
        self._state = BoundState(f"unfinished {target.name}")
        try:
            bind = self._residency.bind(target.fusions, allow_nonfinite=self._allow_nonfinite)
        except BaseException:
            unchanged = self._residency.live == held
            self._state = before if unchanged else replace(self._state, torn=self._residency.torn)
            raise
        self._state = BoundState(target.name, target.adapters)
        return bind


def _read_only(values: Array) -> Array:
    """A view that nobody can make writable again, as can be done with one that is an array's own."""
    data = values.reshape(-1).view(np.uint8).data.toreadonly()
    return np.asarray(data).view(values.dtype).reshape(values.shape)
