"""LoRA: a low-rank delta ``B @ A``, kept as its two factors, with the strength that alpha gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ltx2c.adapters.deltas.delta import Array, KernelTerm, rounded_strength
from ltx2c.adapters.keys import Role
from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor

FACTOR_DTYPES = ("BF16", "F16", "F32")
ALPHA_DTYPES = ("BF16", "F16", "F32", "F64", "I32", "I64")


@dataclass(frozen=True, eq=False)
class LowRank:
    """The pair of factors of one module's delta ``B @ A``, unread.

    Attributes:
        module: the module's name as the adapter spells it, namespace removed.
        a: ``A [rank, in]``, bfloat16, float16 or float32.
        b: ``B [out, rank]``, likewise.
        alpha: the value of the pair's ``.alpha`` tensor, finite; None where the file holds none.
        adapter: the file or folder the pair comes from.
    """

    module: str
    a: StoredTensor
    b: StoredTensor
    alpha: float | None
    adapter: Path = field(repr=False)

    kind = "lora"
    target = "weight"

    @property
    def rank(self) -> int:
        """The inner dimension of this pair, which may differ from its neighbours'."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(out, in)`` of the delta, and of the only weights it fits."""
        return self.b.shape[0], self.a.shape[1]

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """A, then B."""
        return self.a, self.b

    @property
    def macs(self) -> int:
        """Multiply-adds to fuse this pair."""
        return self.b.shape[0] * self.rank * self.a.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of both factors as stored."""
        return self.a.nbytes + self.b.nbytes

    def effective_strength(self, strength: float) -> float:
        """``strength``, times alpha / rank where the file holds an alpha. As ``Delta.effective_strength``."""
        return rounded_strength(strength if self.alpha is None else strength * self.alpha / self.rank)

    def strength_reason(self, strength: float) -> str:
        """As ``Delta.strength_reason``."""
        return f"strength {strength} times alpha {self.alpha} over rank {self.rank}"

    def load(self) -> LoadedPair:
        """Read both factors as stored, into fresh arrays. As ``Delta.load``."""
        return LoadedPair(self.a.read(), self.b.read())


@dataclass(frozen=True, eq=False)
class LoadedPair:
    """The factors of a pair, as stored."""

    a: Array
    b: Array

    def terms(self, effective_strength: float, rows: slice | None = None) -> Sequence[KernelTerm]:
        """A whole and B's rows. As ``LoadedDelta.terms``."""
        return [(self.a, self.b if rows is None else self.b[rows], effective_strength)]


def pair_from(module: str, tensors: Mapping[Role, StoredTensor], adapter: Path) -> LowRank:
    """The pair that one module's tensors make.

    Raises:
        RefusedError: a side is missing, a factor or alpha is of a shape, dtype or value that cannot be one, or the
            ranks of A and B differ.
    """
    where = printable(adapter)
    missing = [role for role in ("A", "B") if role not in tensors]
    if missing:
        held = ", ".join(printable(tensor.key) for tensor in tensors.values())
        raise RefusedError(
            f"{where}: module {printable(module)} has no {' and no '.join(missing)}, only {held}", code="missing-factor"
        )
    a, b = tensors["A"], tensors["B"]
    _check_factor(a, "A", where)
    _check_factor(b, "B", where)
    if b.shape[1] != a.shape[0]:
        raise RefusedError(
            f"{where}: the rank differs: B {printable(b.key)} {list(b.shape)} has {b.shape[1]} columns, "
            f"A {printable(a.key)} {list(a.shape)} has {a.shape[0]} rows",
            code="rank-mismatch",
        )
    alpha = _read_alpha(tensors["alpha"], where) if "alpha" in tensors else None
    return LowRank(module, a, b, alpha, adapter)


def _check_factor(tensor: StoredTensor, side: str, where: str) -> None:
    if len(tensor.shape) != 2 or 0 in tensor.shape or tensor.dtype not in FACTOR_DTYPES:
        raise RefusedError(
            f"{where}: {printable(tensor.key)} cannot be factor {side}: shape {list(tensor.shape)}, dtype "
            f"{tensor.dtype}; a factor is 2-D, not empty, and {', '.join(FACTOR_DTYPES)}",
            code="bad-factor",
        )


def _read_alpha(tensor: StoredTensor, where: str) -> float:
    """The one value of an ``.alpha`` tensor: part of what the adapter says about itself, so read at open."""
    if math.prod(tensor.shape) != 1 or tensor.dtype not in ALPHA_DTYPES:
        raise RefusedError(
            f"{where}: {printable(tensor.key)} cannot be an alpha: shape {list(tensor.shape)}, dtype {tensor.dtype}; "
            f"an alpha is one number, {', '.join(ALPHA_DTYPES)}",
            code="bad-alpha",
        )
    value = float(tensor.read().reshape(()))
    if not math.isfinite(value):
        raise RefusedError(f"{where}: alpha {printable(tensor.key)} is {value}, not a finite number", code="bad-alpha")
    return value
