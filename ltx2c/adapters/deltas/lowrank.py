"""LoRA: a low-rank delta ``B @ A``, kept as its two factors. On convolutions LoCon, perhaps with a Tucker core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ltx2c.adapters.deltas.delta import Array, Delta, check_factor, check_rank, matrix
from ltx2c.adapters.deltas.product import folded
from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.terms import KernelTerm


@dataclass(frozen=True, eq=False, kw_only=True)
class LowRank(Delta):
    """The pair of factors of one module's delta ``B @ A``.

    LoRA: Hu et al. 2021, arXiv:2106.09685. On a convolution (LoCon, kohya's and LyCORIS') A is a convolution with the
    weight's kernel and B one of 1x1: the delta is the same product of the flattened factors. With ``lora_mid``, both
    are 1x1 and the core has the kernel: A is then the core with A folded in (``product.folded``), stored as F32.

    Attributes:
        a: ``A [rank, in, ...]``, bfloat16, float16 or float32.
        b: ``B [out, rank, 1, ...]``, likewise.
        mid: the core ``[rank, rank, ...]``, or None.
        transposed: fan_in_fan_out: the weight is stored ``[in, out]``, and takes ``A^T @ B^T``.
    """

    a: StoredTensor = field(repr=False)
    b: StoredTensor = field(repr=False)
    mid: StoredTensor | None = field(default=None, repr=False)
    transposed: bool = False

    @property
    def kind(self) -> str:
        """``lora``, on a convolution ``locon``."""
        return "locon" if len(self.shape) > 2 else "lora"

    @property
    def rank(self) -> int:
        """The inner dimension of this pair, which may differ from its neighbours'."""
        return self.b.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(out, in, ...)``."""
        if self.transposed:
            return self.a.shape[1], self.b.shape[0]
        kernel = self.a.shape[2:] if self.mid is None else self.mid.shape[2:]
        return self.b.shape[0], self.a.shape[1], *kernel

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """A, B, and the core."""
        return (self.a, self.b) if self.mid is None else (self.a, self.b, self.mid)

    @property
    def macs(self) -> int:
        """Of the product, and of folding the core."""
        core = 0 if self.mid is None else math.prod(self.mid.shape) * self.a.shape[1]
        return math.prod(self.shape) * self.rank + core

    def read(self) -> LoadedPair:
        """Read the factors as stored."""
        a, b = matrix(self.a.read()), matrix(self.b.read())
        if self.transposed:
            return LoadedPair(b.T, a.T)
        return LoadedPair(a, b, None if self.mid is None else self.mid.read())


@dataclass(frozen=True, eq=False)
class LoadedPair:
    """The factors of a pair as matrices, and the core."""

    a: Array
    b: Array
    mid: Array | None = None
    computed = False

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """A whole and B's rows. As ``Difference.terms``."""
        a = self.a if self.mid is None else folded(self.mid, self.a, threads)
        return [(a, self.b if rows is None else self.b[rows], effective_strength)]


def check_pair(a: StoredTensor, b: StoredTensor, mid: StoredTensor | None, where: str) -> None:
    """Refuse (``bad-factor``, ``rank-mismatch``) what is no pair, or no core between its sides."""
    check_factor(a, "A", where)
    check_factor(b, "B", where)
    if any(extent != 1 for extent in b.shape[2:]) or (mid is not None and any(extent != 1 for extent in a.shape[2:])):
        wrong = b if any(extent != 1 for extent in b.shape[2:]) else a
        raise RefusedError(
            f"{where}: {printable(wrong.key)} {list(wrong.shape)} is a convolution of another kernel than 1",
            code="bad-factor",
        )
    if mid is None:
        if b.shape[1] != a.shape[0]:
            raise RefusedError(
                f"{where}: the rank differs: B {printable(b.key)} {list(b.shape)} has {b.shape[1]} columns, "
                f"A {printable(a.key)} {list(a.shape)} has {a.shape[0]} rows",
                code="rank-mismatch",
            )
        return
    check_factor(mid, "mid", where, least=3)
    check_rank(b, b.shape[1], mid, mid.shape[0], where)
    check_rank(mid, mid.shape[1], a, a.shape[0], where)
