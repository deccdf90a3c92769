"""A weight that is being fused, and which weights of a base are."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.arithmetic import Arithmetic
from ltx2c.engines.rows import Loaded
from ltx2c.files import StoredTensor
from ltx2c.layouts import StoredWeight
from ltx2c.plan import Deltas, Fusions
from ltx2c.plan.opened import OpenedPlan
from ltx2c.plan.sources import DeltaRef

Array = npt.NDArray[Any]
Load = Callable[[DeltaRef], LoadedDelta]
Place = tuple[Path, str]
"""Of a delta: its adapter's place, and its key there."""


class WeightInWork:
    """What the parts of one weight share: read when the first of them is, and let go with the last.

    Attributes:
        stored: how it is stored.
        companions: once loaded, role -> the base's companion; then what encoding made of it.
    """

    def __init__(
        self, stored: StoredWeight, deltas: Deltas, load: Load, beside: Mapping[str, StoredTensor], nbytes: int
    ) -> None:
        """``beside``: the companions' tensors by role. ``nbytes``: of the parts that will be fused."""
        self.stored = stored
        self.companions: dict[str, Array] = {}
        self._deltas = deltas
        self._load = load
        self._beside = beside
        self._left = nbytes
        self._loading = threading.Lock()
        self._loaded: list[Loaded] | None = None

    def load(self) -> None:
        """Read companions and deltas, unless that was done. Raises as ``StoredTensor.read`` does."""
        with self._loading:
            if self._loaded is None:
                self.companions = {role: tensor.read() for role, tensor in self._beside.items()}
                self._loaded = [Loaded(self._load(one.delta), one) for one in self._deltas]

    def take(self, known: Mapping[Place, LoadedDelta], companions: Mapping[str, Array]) -> None:
        """Be loaded with what another has read; companions are copied."""
        self.companions = {role: array.copy() for role, array in companions.items()}
        self._loaded = [Loaded(known[place], one) for place, one in zip(self.places, self._deltas, strict=True)]

    @property
    def places(self) -> list[Place]:
        """Of its deltas, in fusion order."""
        return [(one.delta.adapter.place, one.delta.key) for one in self._deltas]

    def with_loaded(self, loaded: list[Loaded]) -> WeightInWork:
        """The same weight and companions, with other things in the place of what was loaded."""
        other = copy.copy(self)
        other._loaded = loaded
        return other

    @property
    def loaded(self) -> list[Loaded]:
        """What is fused into it; ``load`` comes first."""
        assert self._loaded is not None
        return self._loaded

    @property
    def whole(self) -> bool:
        """Whether all rows must be fused at once, because of what is fused into them."""
        return any(one.whole for one in self._deltas)

    def is_complete_with(self, nbytes: int) -> bool:
        """Note that so many more bytes have been fused; whether those were the last."""
        self._left -= nbytes
        return not self._left


@dataclass(frozen=True)
class Work:
    """Which weights of a base are fused, with what, and how.

    Attributes:
        tensors: the base's.
        fusions: what is fused into each weight.
        weights: how each of these is stored.
        arithmetic: what is computed.
        load: reads a delta.
    """

    tensors: Mapping[str, StoredTensor] = field(repr=False)
    fusions: Fusions = field(repr=False)
    weights: Mapping[str, StoredWeight] = field(repr=False)
    arithmetic: Arithmetic
    load: Load = field(repr=False)

    def begin(self, key: str, nbytes: int | None = None) -> WeightInWork | None:
        """A weight of which ``nbytes`` (all, when None) are going to be fused; None where nothing is fused into it."""
        return WeightInWork(*self.shared(key, nbytes)) if key in self.fusions else None

    def shared(
        self, key: str, nbytes: int | None
    ) -> tuple[StoredWeight, Deltas, Load, Mapping[str, StoredTensor], int]:
        """What the parts of a fused weight share, as ``WeightInWork`` takes it."""
        stored = self.weights[key]
        beside = {role: self.tensors[spec.key] for role, spec in stored.companions.items()}
        whole = self.tensors[key].nbytes
        return stored, self.fusions[key], self.load, beside, whole if nbytes is None else nbytes

    def unit_bytes(self, key: str) -> int:
        """Bytes of what must stay together of a weight that is fused: its rows, a granule's rows, or all of it."""
        tensor, layout = self.tensors[key], self.weights[key].layout
        whole = layout.whole or any(one.whole for one in self.fusions[key])
        return tensor.nbytes if whole else row_bytes(tensor) * layout.granule_rows

    def delta_bytes(self, key: str) -> int:
        """Bytes that are read to fuse a weight, beside its own."""
        return sum(one.delta.nbytes for one in self.fusions.get(key, ()))

    def macs(self, key: str, nbytes: int) -> int:
        """Multiply-adds to fuse so many bytes of a tensor."""
        whole = sum(one.delta.macs for one in self.fusions.get(key, ()))
        return whole and whole * nbytes // self.tensors[key].nbytes


def work_of(opened: OpenedPlan) -> Work:
    """A whole plan's."""
    plan, sources = opened
    return Work(sources.base.tensors, plan.fusions, plan.weights, plan.arithmetic, sources.load)


def row_bytes(tensor: StoredTensor) -> int:
    """Bytes of one row of a tensor that holds any; all of them where rows are not whole bytes or there are none."""
    rows = tensor.shape[0] if tensor.shape else 1
    return tensor.nbytes // rows if tensor.nbytes % rows == 0 else tensor.nbytes
