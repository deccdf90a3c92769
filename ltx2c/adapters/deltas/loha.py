"""LoHa: the elementwise product of two low-rank products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ltx2c.adapters.deltas.delta import Array, Delta
from ltx2c.adapters.deltas.factored import Factored
from ltx2c.adapters.deltas.product import product
from ltx2c.files import StoredTensor
from ltx2c.kernels.elementwise import multiply
from ltx2c.terms import FullTerm, KernelTerm
from ltx2c.threads import resolve_threads


@dataclass(frozen=True, eq=False, kw_only=True)
class LoHa(Delta):
    """``D = (w1_a @ w1_b) * (w2_a @ w2_b)``.

    FedPara: Hyeon-Woo et al. 2021, arXiv:2108.06098; the names, the Tucker form (``hada_t1``, ``hada_t2``) and alpha
    over the rank, once, are LyCORIS' (Yeh et al. 2023, arXiv:2309.14859). Both products are ``f32``'s, each element of
    D their product rounded to float32; D enters as a full difference.
    """

    one: Factored
    two: Factored

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
