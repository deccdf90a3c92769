"""Weights that go into several results: read once for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.adapters.deltas.delta import Array, Difference
from ltx2c.adapters.deltas.lowrank import LoadedPair
from ltx2c.arithmetic import F32
from ltx2c.engines.rows import Loaded
from ltx2c.engines.weights import Load, Place, WeightInWork, Work
from ltx2c.errors import RefusedError
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.plan import Deltas
from ltx2c.terms import FullTerm, KernelTerm, KroneckerTerm


class JointWeight(WeightInWork):
    """A weight with everything that any result fuses into it.

    Attributes:
        of: what each result fuses into it; None for one that takes the base's bytes.
        failed: what went wrong with a result's deltas, by its number.
    """

    of: tuple[WeightInWork | None, ...]
    failed: Mapping[int, RefusedError | OSError]

    def load(self) -> None:
        """Read companions and deltas, each once, and hand them to every result."""
        with self._loading:
            if self._loaded is None:
                known, failed = self._load_each_once()
                self._hold({role: tensor.read() for role, tensor in self._beside.items()})
                self.failed = {
                    number: failed[place]
                    for number, weight in enumerate(self.of)
                    if weight is not None
                    for place in weight.places
                    if place in failed
                }
                for number, weight in enumerate(self.of):
                    if weight is not None and number not in self.failed:
                        weight.take(known, self.companions)
                self._loaded = []

    def _load_each_once(self) -> tuple[dict[Place, LoadedDelta], dict[Place, RefusedError | OSError]]:
        known: dict[Place, LoadedDelta] = {}
        failed: dict[Place, RefusedError | OSError] = {}
        for one in self._deltas:
            place = one.delta.adapter.place, one.delta.key
            if place not in known and place not in failed:
                try:
                    known[place] = self._load(one.delta)
                except (RefusedError, OSError) as error:
                    failed[place] = error
        return known, failed


@dataclass(frozen=True)
class JointWork(Work):
    """What several results fuse into the weights of one base, taken together.

    Attributes:
        works: of each result.
    """

    works: tuple[Work, ...] = field(repr=False)

    def begin(self, key: str, nbytes: int | None = None) -> JointWeight | None:
        """As ``Work.begin``; a ``JointWeight``."""
        if key not in self.fusions:
            return None
        weight = JointWeight(*self.shared(key, nbytes))
        weight.of = tuple(work.begin(key, nbytes) for work in self.works)
        return weight


def joint_work(works: Sequence[Work], load: Load) -> JointWork:
    """The works of several results of one base, by one arithmetic. ``load`` reads a delta of any."""
    fusions: dict[str, Deltas] = {}
    for work in works:
        for key, deltas in work.fusions.items():
            fusions[key] = tuple(dict.fromkeys((*fusions.get(key, ()), *deltas)))
    weights = {key: stored for work in works for key, stored in work.weights.items()}
    written = {key: stored for work in works for key, stored in work.written.items()}

    first = works[0]
    return JointWork(first.tensors, fusions, weights, written, first.arithmetic, load, works=tuple(works))


class Products:
    """``B @ A`` of some rows, made once for all results that fuse it, at whatever strengths.

    Of an arithmetic that scales every product: adding it as a whole difference is then the same, and is computed by
    ``f32``. Under ``ltx`` a first adapter's B is scaled before.
    """

    def __init__(self, weights: Iterable[WeightInWork]) -> None:
        """``weights``: of all results, loaded."""
        uses = Counter(id(one.delta) for weight in weights for one in weight.loaded)
        self._shared = {delta for delta, count in uses.items() if count > 1}
        self._made: dict[int, LoadedDelta] = {}

    def share(self, weight: WeightInWork) -> WeightInWork:
        """The same weight, to be fused with products that are shared."""
        return weight.with_loaded([Loaded(self._of(delta), applied) for delta, applied in weight.loaded])

    def _of(self, delta: LoadedDelta) -> LoadedDelta:
        if id(delta) not in self._shared or not isinstance(delta.difference, LoadedPair):
            return delta
        return self._made.setdefault(id(delta), replace(delta, difference=_Product(delta.difference)))


class _Product:
    """A pair as a whole difference of some rows, computed when it is first asked for, and kept."""

    computed = False

    def __init__(self, pair: Difference) -> None:
        self._pair = pair
        self._known: dict[tuple[int, int] | None, Array] = {}

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """As ``Difference.terms``."""
        place = None if rows is None else (rows.start, rows.stop)
        if place not in self._known:
            self._known[place] = _product(self._pair, rows, threads)
        return [FullTerm(self._known[place], effective_strength)]


def _product(pair: Difference, rows: slice | None, threads: int | None) -> Array:
    (term,) = pair.terms(1.0, rows, threads=threads)
    assert not isinstance(term, FullTerm | KroneckerTerm)
    a, b, _ = term
    out = np.full((b.shape[0], a.shape[1]), -0.0, np.float32)  # what changes no sum, not even one of -0.0
    fuse_jobs([Job(out, [term], out, F32)], threads=threads)
    return out
