"""LoHa: the elementwise product of two low-rank products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ltx2c.adapters.deltas.delta import Array, Delta, KernelTerm, check_factor, check_rank, matrix
from ltx2c.adapters.deltas.product import folded, product
from ltx2c.files import StoredTensor
from ltx2c.kernels.elementwise import multiply
from ltx2c.terms import FullTerm
from ltx2c.threads import resolve_threads


class Half(NamedTuple):
    """One of the two products: ``a [out, rank]`` times ``b [rank, in]``; with a core ``[rank, rank, ...]`` between
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

    def check(self, where: str) -> None:
        """Refuse (``bad-factor``, ``rank-mismatch``) what is no such product."""
        check_factor(self.a, "a", where)
        check_factor(self.b, "b", where)
        if self.core is None:
            check_rank(self.a, self.a.shape[1], self.b, self.b.shape[0], where)
            return
        check_factor(self.core, "core", where, least=3)
        check_rank(self.a, self.a.shape[0], self.core, self.core.shape[0], where)
        check_rank(self.core, self.core.shape[1], self.b, self.b.shape[0], where)


@dataclass(frozen=True, eq=False, kw_only=True)
class LoHa(Delta):
    """``D = (w1_a @ w1_b) * (w2_a @ w2_b)``.

    FedPara: Hyeon-Woo et al. 2021, arXiv:2108.06098; the names, the Tucker form (``hada_t1``, ``hada_t2``) and alpha
    over the rank, once, are LyCORIS' (Yeh et al. 2023, arXiv:2309.14859). Both products are ``f32``'s, each element of
    D their product rounded to float32; D enters as a full difference.
    """

    one: Half
    two: Half

    @property
    def kind(self) -> str:
        """``loha``."""
        return "loha"

    @property
    def shape(self) -> tuple[int, ...]:
        """``(out, in)``, of the Tucker form with the kernel."""
        return self.one.shape

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """Of the first half, then of the second."""
        return *self.one.tensors, *self.two.tensors

    @property
    def macs(self) -> int:
        """Of both products."""
        return self.one.macs + self.two.macs

    def read(self) -> LoadedLoHa:
        """Read the factors."""
        return LoadedLoHa(self.one.load(), self.two.load())


@dataclass(frozen=True, eq=False)
class LoadedLoHa:
    """Both halves' factors."""

    one: tuple[Array, Array]
    two: tuple[Array, Array]
    computed = True

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """D's rows as a full difference. As ``Difference.terms``."""
        chosen = rows or slice(None)
        first, second = (product(a[chosen], b, threads) for a, b in (self.one, self.two))
        multiply(first.reshape(-1), second.reshape(-1), resolve_threads(threads))
        return [FullTerm(first, effective_strength)]
