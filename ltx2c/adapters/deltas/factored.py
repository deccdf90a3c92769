"""A matrix that is stored as a product of two factors, or of three: half of a LoHa, a side of a LoKr."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ltx2c.adapters.deltas.delta import Array, check_factor, check_rank, matrix
from ltx2c.adapters.deltas.product import folded
from ltx2c.files import StoredTensor


class Factored(NamedTuple):
    """``a [out, rank]`` times ``b [rank, in]``; with a core ``[rank, rank, ...]`` between
    them, ``a`` is ``[rank, out]``, as LyCORIS stores it."""

    a: StoredTensor
    b: StoredTensor
    core: StoredTensor | None

    @property
    def rows(self) -> int:
        return self.a.shape[0] if self.core is None else self.a.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.b.shape[1], *(() if self.core is None else self.core.shape[2:])

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        return (self.a, self.b) if self.core is None else (self.a, self.b, self.core)

    @property
    def rank(self) -> int:
        return self.b.shape[0]

    @property
    def macs(self) -> int:
        core = 0 if self.core is None else math.prod(self.core.shape) * self.b.shape[1]
        return math.prod(self.shape) * self.rank + core

    def load(self) -> tuple[Array, Array]:
        """``(a [out, rank], b [rank, the rest])``, a core folded into b."""
        a, b = matrix(self.a.read()), matrix(self.b.read())
        return (a, b) if self.core is None else (np.ascontiguousarray(a.T), folded(self.core.read(), b, 1))

    def check(self, where: str, kind: str = "") -> None:
        """Refuse (``bad-factor``, ``rank-mismatch``) what is no such product; ``kind`` names the factors."""
        check_factor(self.a, kind or "a", where)
        check_factor(self.b, kind or "b", where)
        if self.core is None:
            check_rank(self.a, self.a.shape[1], self.b, self.b.shape[0], where)
            return
        check_factor(self.core, "core", where, least=3)
        check_rank(self.a, self.a.shape[0], self.core, self.core.shape[0], where)
        check_rank(self.core, self.core.shape[1], self.b, self.b.shape[0], where)
