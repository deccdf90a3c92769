"""How large deltas are beside the weights that they enter: what people choose strengths by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas import LowRank
from ltx2c.adapters.deltas.delta import matrix
from ltx2c.arithmetic import F32
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.layouts import detect
from ltx2c.plan.match import Matches, Placed
from ltx2c.terms import FullTerm, KernelTerm, KroneckerTerm
from ltx2c.threads import resolve_threads

Array = npt.NDArray[Any]

# Rows of a delta that are computed at once.
_ROWS = 512


@dataclass(frozen=True)
class DeltaNorm:
    """One weight's: Frobenius norms of the adapter's delta at strength 1 and of the weight, as stored values.

    A whole replacement and DoRA's rescaling are no deltas: of the first the difference is not known, the second is
    left out.
    """

    key: str
    delta: float
    weight: float

    @property
    def relative(self) -> float | None:
        """The delta's norm over the weight's; None where the weight is zero."""
        return self.delta / self.weight if self.weight else None


def together(norms: Iterable[DeltaNorm]) -> DeltaNorm:
    """Several weights as one: the norm of all deltas over the norm of all weights."""
    every = list(norms)
    delta, weight = (math.sqrt(sum(getattr(one, name) ** 2 for one in every)) for name in ("delta", "weight"))
    return DeltaNorm(every[0].key, delta, weight)


def delta_norms(base: Checkpoint, matches: Matches) -> Iterator[DeltaNorm]:
    """Per weight that an adapter touches, in the base's order. Approximate: float32 products, no order of summation.

    Raises:
        OSError: a file could not be read.
        RefusedError: ``no-fuse-rule``: a weight is stored in no known layout.
    """
    for key, tensor in base.tensors.items():
        placed = [one for one in matches.placed.get(key, ()) if one.delta.kind != "whole"]
        if placed:
            squares = sum(_squares(one) for one in placed)
            yield DeltaNorm(key, math.sqrt(squares), _norm(base, tensor))


def _squares(placed: Placed) -> float:
    delta, place = placed
    loaded = delta.load()
    strength = delta.effective_strength(1.0)
    begin, end = place.rows or (0, delta.shape[0] if delta.shape else 1)
    total = 0.0
    step = end if isinstance(delta, LowRank) else _ROWS  # a pair is never multiplied out
    for row in range(begin, end, step):
        for term in loaded.terms(strength, slice(row, min(end, row + step)), threads=None):
            total += _squares_of_term(term, min(end, row + step) - row)
    return total


def _squares_of_term(term: KernelTerm, rows: int) -> float:
    if isinstance(term, KroneckerTerm):
        return _squares_of_kronecker(term, rows)
    return _squares_of_full(term) if isinstance(term, FullTerm) else _squares_of_pair(*term)


def _squares_of_kronecker(term: KroneckerTerm, rows: int) -> float:
    """Of a row, the product of both sides'."""
    one, two = (np.square(side, dtype=np.float64).sum(axis=1) for side in (term.one, term.two))
    return float(np.outer(one, two).ravel()[term.first : term.first + rows].sum()) * term.strength**2


def _squares_of_full(term: FullTerm) -> float:
    values = np.asarray(term.d, np.float32).ravel()
    return float(np.dot(values, values)) * term.strength**2


def _squares_of_pair(a: Array, b: Array, strength: float) -> float:
    """Of ``B @ A`` without making it: the sum of ``(B^T B) * (A A^T)``."""
    wide_a, wide_b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return max(0.0, float(np.sum((wide_b.T @ wide_b) * (wide_a @ wide_a.T), dtype=np.float64))) * strength**2


def _norm(base: Checkpoint, tensor: StoredTensor) -> float:
    stored = detect(base.tensors, tensor.key)
    codes = matrix(tensor.read())
    if stored.layout.in_place:
        values = np.asarray(codes, np.float32)
    else:
        companions = {role: base.tensors[spec.key].read() for role, spec in stored.companions.items()}
        out = np.empty((stored.shape[0], math.prod(stored.shape[1:])), stored.layout.working(F32).dtype)
        stored.layout.decode(codes, companions, slice(0, len(out)), out, resolve_threads(None))
        values = np.asarray(out, np.float32)
    return float(np.linalg.norm(values))
