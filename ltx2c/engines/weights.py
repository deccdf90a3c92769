"""A weight that is being fused, and which weights of a base are."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.arithmetic import Arithmetic
from ltx2c.dtypes import DTYPES
from ltx2c.engines.rows import Loaded
from ltx2c.files import StoredTensor
from ltx2c.files.url import AnyPath
from ltx2c.layouts import StoredWeight, TensorSpec, new_companions
from ltx2c.plan import Deltas, Fusions
from ltx2c.plan.opened import OpenedPlan
from ltx2c.plan.sources import DeltaRef

Array = npt.NDArray[Any]
Load = Callable[[DeltaRef], LoadedDelta]
Place = tuple[AnyPath, str]
"""Of a delta: its adapter's place, and its key there."""


class Way(NamedTuple):
    """How the base stores a weight, and how the result does."""

    stored: StoredWeight
    written: StoredWeight


class FusedValues(NamedTuple):
    """Some rows of a weight before they are encoded.

    Attributes:
        array: ``[rows, in]``.
        nonfinite: how many are infinite or NaN where the base's are finite.
        room: the memory that is theirs until it is given back; None where it is a worker's own.
    """

    array: Array
    nonfinite: int
    room: npt.NDArray[np.uint8] | None


class FirstPass:
    """What is found of a weight's fused values before any is encoded, where one scale is for all of them.

    Attributes:
        largest: the ``largest_magnitude`` of those rows that were looked at.
        nbytes: of them, as stored.
        kept: by the first row, some of what was computed.
    """

    def __init__(self) -> None:
        self.largest = 0
        self.nbytes = 0
        self.kept: dict[int, FusedValues] = {}

    def add(self, largest: int, nbytes: int) -> None:
        """Take what some rows came to."""
        self.largest = max(self.largest, largest)
        self.nbytes += nbytes


class WeightInWork:
    """What the parts of one weight share: read when the first of them is, and let go with the last.

    Attributes:
        stored: how the base stores it.
        written: how the result does.
        companions: once loaded, role -> the base's companion.
        results: role -> the result's: what encoding makes of the base's, or of new ones.
        first_pass: what is known of all rows, where one scale is for all.
    """

    def __init__(self, way: Way, deltas: Deltas, load: Load, beside: Mapping[str, StoredTensor], nbytes: int) -> None:
        """``beside``: the companions' tensors by role. ``nbytes``: of the parts that will be fused, as stored."""
        self.stored, self.written = way
        self.companions: dict[str, Array] = {}
        self.results: dict[str, Array] = {}
        self.first_pass = FirstPass()
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
                self._hold({role: tensor.read() for role, tensor in self._beside.items()})
                self._loaded = [Loaded(self._load(one.delta), one) for one in self._deltas]

    def take(self, known: Mapping[Place, LoadedDelta], companions: Mapping[str, Array]) -> None:
        """Be loaded with what another has read."""
        self._hold(dict(companions))
        self._loaded = [Loaded(known[place], one) for place, one in zip(self.places, self._deltas, strict=True)]

    def _hold(self, companions: dict[str, Array]) -> None:
        self.companions = companions
        held = {role: array.copy() for role, array in companions.items()}
        self.results = new_companions(self.written) if self.converted else held

    @property
    def converted(self) -> bool:
        """Whether the result stores it in another layout than the base."""
        return self.written.layout != self.stored.layout

    def written_bytes(self, nbytes: int) -> int:
        """What so many stored bytes, whole rows, take in the result."""
        return written_bytes(Way(self.stored, self.written), nbytes)

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
    """Which weights of a base are fused or converted, with what, and how.

    Attributes:
        tensors: the base's.
        fusions: what is fused into each weight; nothing into one that is converted alone.
        weights: how the base stores each of these.
        written: how the result does.
        arithmetic: what is computed.
        load: reads a delta.
    """

    tensors: Mapping[str, StoredTensor] = field(repr=False)
    fusions: Fusions = field(repr=False)
    weights: Mapping[str, StoredWeight] = field(repr=False)
    written: Mapping[str, StoredWeight] = field(repr=False)
    arithmetic: Arithmetic
    load: Load = field(repr=False)

    def begin(self, key: str, nbytes: int | None = None) -> WeightInWork | None:
        """A weight of which ``nbytes`` (all, when None) are going to be fused; None where nothing is fused into it."""
        return WeightInWork(*self.shared(key, nbytes)) if key in self.fusions else None

    def shared(self, key: str, nbytes: int | None) -> tuple[Way, Deltas, Load, Mapping[str, StoredTensor], int]:
        """What the parts of a fused weight share, as ``WeightInWork`` takes it."""
        way = self.way(key)
        beside = {role: self.tensors[spec.key] for role, spec in way.stored.companions.items()}
        whole = self.tensors[key].nbytes
        return way, self.fusions[key], self.load, beside, whole if nbytes is None else nbytes

    def way(self, key: str) -> Way:
        """How a weight is stored, and how the result stores it."""
        return Way(self.weights[key], self.written[key])

    @property
    def companions(self) -> dict[str, StoredWeight]:
        """Companion key -> the weight that it belongs to, in the result."""
        return {spec.key: one for one in self.written.values() for spec in one.companions.values()}

    def unit_bytes(self, key: str) -> int:
        """Bytes of what can be made alone of a weight that is fused: its rows, a granule's rows, or all of it."""
        return self.tensors[key].nbytes if self.written[key].layout.whole else self.piece_bytes(key)

    def piece_bytes(self, key: str) -> int:
        """Bytes that must lie together in memory: less than a unit where rows of it can be gone through twice."""
        tensor = self.tensors[key]
        whole = any(one.whole for one in self.fusions[key])
        return tensor.nbytes if whole else row_bytes(tensor) * self.weights[key].layout.granule_rows

    def block_bytes(self, most: int) -> int:
        """Of ``most`` bytes to a block, those that hold no more values in codes than all of them in bfloat16 would."""
        ways = (self.way(key) for key in self.fusions)
        return most // 2 if any(not one.layout.in_place for way in ways for one in way) else most

    @property
    def goes_twice(self) -> bool:
        """Whether there are weights whose rows are gone through twice: to choose one scale, and to encode by it."""
        return any(self.written[key].layout.whole for key in self.fusions)

    def written_bytes(self, key: str, nbytes: int) -> int:
        """What so many stored bytes of a tensor, whole rows of a weight, take in the result."""
        return written_bytes(self.way(key), nbytes) if key in self.fusions else nbytes

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
    fusions = {key: plan.fusions.get(key, ()) for key in plan.weights}
    return Work(sources.base.tensors, fusions, plan.weights, plan.written, plan.arithmetic, sources.load)


def written_bytes(way: Way, nbytes: int) -> int:
    """What so many stored bytes, whole rows, take in the result."""
    stored, written = way
    if stored.layout == written.layout or not nbytes:
        return nbytes
    return nbytes // _row_bytes(stored.codes) * _row_bytes(written.codes)


def _row_bytes(spec: TensorSpec) -> int:
    rows = spec.shape[0] if spec.shape else 1
    return math.prod(spec.shape) * DTYPES[spec.dtype].bits // 8 // rows


def row_bytes(tensor: StoredTensor) -> int:
    """Bytes of one row of a tensor that holds any; all of them where rows are not whole bytes or there are none."""
    rows = tensor.shape[0] if tensor.shape else 1
    return tensor.nbytes // rows if tensor.nbytes % rows == 0 else tensor.nbytes
