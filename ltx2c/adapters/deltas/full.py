"""Deltas that are stored in full: differences of weights, biases and norms; and tensors that replace theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ltx2c.adapters.deltas.delta import Array, Delta, matrix
from ltx2c.files import StoredTensor
from ltx2c.terms import FullTerm, KernelTerm


@dataclass(frozen=True, eq=False, kw_only=True)
class Full(Delta):
    """``D`` itself: ``W' = W + s D``.

    LyCORIS' full and norm modules (``.diff``, ``.diff_b``, ``.w_norm``, ``.b_norm``: difference times strength, alpha
    has no part in it), lightx2v's ``.diff``, ``.diff_b`` and ``.diff_m`` (of a block's modulation), and PEFT's
    ``lora_B.bias``, which has its pair's alpha.
    """

    tensor: StoredTensor = field(repr=False)

    @property
    def kind(self) -> str:
        """``diff``."""
        return "diff"

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's own."""
        return self.tensor.shape

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """The one."""
        return (self.tensor,)

    @property
    def macs(self) -> int:
        """One per element."""
        return math.prod(self.tensor.shape)

    def read(self) -> LoadedFull:
        """Read it."""
        return LoadedFull(matrix(self.tensor.read()))


@dataclass(frozen=True, eq=False, kw_only=True)
class Whole(Full):
    """A tensor that was trained whole and takes the place of the base's: ``W' = D``.

    PEFT's ``modules_to_save`` and trained biases. There is no half of it: at a strength other than 1 it is refused.
    """

    @property
    def kind(self) -> str:
        """``whole``."""
        return "whole"

    @property
    def replaces(self) -> bool:
        """It does."""
        return True


@dataclass(frozen=True, eq=False)
class LoadedFull:
    """The difference as a matrix."""

    values: Array
    computed = False

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """Its rows. As ``Difference.terms``."""
        return [FullTerm(self.values if rows is None else self.values[rows], effective_strength)]
