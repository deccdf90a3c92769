"""LoKr: the Kronecker product of two small matrices, each whole or itself a product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ltx2c.adapters.deltas.delta import Delta, Float32Array, check_factor, matrix
from ltx2c.adapters.deltas.factored import Factored
from ltx2c.adapters.deltas.product import product
from ltx2c.files import StoredTensor
from ltx2c.terms import KernelTerm, KroneckerTerm


class Side(NamedTuple):
    """``w1`` or ``w2``: whole, or a product. One of both is None."""

    whole: StoredTensor | None
    factored: Factored | None

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        if self.factored is not None:
            return self.factored.tensors
        assert self.whole is not None
        return (self.whole,)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.factored is not None:
            return self.factored.shape
        assert self.whole is not None
        return self.whole.shape

    @property
    def rank(self) -> int | None:
        """None where it is whole."""
        return None if self.factored is None else self.factored.rank

    @property
    def macs(self) -> int:
        return 0 if self.factored is None else self.factored.macs

    def load(self) -> Float32Array:
        """``float32 [rows, the rest]``."""
        if self.factored is not None:
            return product(*self.factored.load(), 1)
        assert self.whole is not None
        return np.ascontiguousarray(matrix(self.whole.read()), np.float32)

    def check(self, where: str) -> None:
        """Refuse (``bad-factor``, ``rank-mismatch``) what is no such matrix."""
        if self.factored is not None:
            self.factored.check(where, "of LoKr")
        else:
            assert self.whole is not None
            check_factor(self.whole, "of LoKr", where)


@dataclass(frozen=True, eq=False, kw_only=True)
class LoKr(Delta):
    """``D = kron(w1, w2)``: ``D[p * rows2 + q, j * columns2 + r] = w1[p, j] * w2[q, r]``.

    KronA: Edalati et al. 2022, arXiv:2212.10650; the names, the Tucker form (``lokr_t2``) and the strength are
    LyCORIS' (Yeh et al. 2023, arXiv:2309.14859): alpha over the rank, and 1 where both sides are whole. PEFT divides
    alpha by the configured rank in any case. A side that is a product is ``f32``'s, each element of D one product
    rounded to float32; D enters as a full difference, which the kernels make where they use it.
    """

    one: Side
    two: Side

    @property
    def kind(self) -> str:
        """``lokr``."""
        return "lokr"

    @property
    def shape(self) -> tuple[int, ...]:
        """``(out, in)``, where w2 is a convolution with its kernel."""
        (rows1, columns1, *_), (rows2, columns2, *kernel) = self.one.shape, self.two.shape
        return rows1 * rows2, columns1 * columns2, *kernel

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """Of the first side, then of the second."""
        return *self.one.tensors, *self.two.tensors

    @property
    def macs(self) -> int:
        """Of the sides, and one per element of D."""
        return self.one.macs + self.two.macs + math.prod(self.shape)

    def read(self) -> LoadedLoKr:
        """Read the factors and multiply out the sides, which are small."""
        return LoadedLoKr(self.one.load(), self.two.load())


@dataclass(frozen=True, eq=False)
class LoadedLoKr:
    """Both sides as matrices."""

    one: Float32Array
    two: Float32Array
    computed = False

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """D's rows, by both sides. As ``Difference.terms``."""
        return [KroneckerTerm(self.one, self.two, rows.start if rows else 0, effective_strength)]
