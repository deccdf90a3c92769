"""What is computed, as a value that a job, a plan and a report carry: the contract's two arithmetics.

``reference.py`` has a function for each; the kernels know them by ``code``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ltx2c.errors import RefusedError, printable


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic.

    Attributes:
        name: as users, plans and metadata spell it.
        code: the kernels' number for it (core.h).
        through_bf16: whether it rounds factors and aggregate to bfloat16, so that float32 and float16 factors lose
            digits.
        scales_products: whether strength scales every term's product, so that one product serves several strengths.
        with_float32_sum: the arithmetic of the same aggregate whose sum with the weight stays float32, where this one
            rounds the sum to bfloat16, so that float32 and float16 weights lose digits; None where it does not.
    """

    name: str
    code: int
    through_bf16: bool
    scales_products: bool
    with_float32_sum: Arithmetic | None = None

    @property
    def rounds_sum(self) -> bool:
        """Whether the sum of weight and aggregate is rounded to bfloat16 before it is stored."""
        return self.with_float32_sum is not None

    @property
    def unrounded(self) -> Arithmetic:
        """The arithmetic of the same aggregate that leaves the sum in float32; itself where it does so."""
        return self.with_float32_sum or self


LTX_WIDE = Arithmetic("ltx_wide", 2, through_bf16=True, scales_products=False)
"""LTX's aggregate plus a float32 weight, unrounded. For layouts that store the sum by a rule of their own; nobody
chooses it by name."""

LTX = Arithmetic("ltx", 0, through_bf16=True, scales_products=False, with_float32_sum=LTX_WIDE)
"""Upstream LTX's, and the default: bf16 aggregates, each rounding as Lightricks/LTX-2's ``fuse_loras.py`` has it."""

F32 = Arithmetic("f32", 1, through_bf16=False, scales_products=True)
"""Float32 throughout, the total starting at the weight, one rounding to the stored dtype at the end."""

ARITHMETICS: Mapping[str, Arithmetic] = MappingProxyType({chosen.name: chosen for chosen in (LTX, F32)})
"""What users may choose."""


def arithmetic_named(name: str | Arithmetic) -> Arithmetic:
    """The arithmetic that a user names; one that is a value already is returned as it is.

    Raises:
        RefusedError: ``bad-arithmetic``: there is none of that name.
    """
    if isinstance(name, Arithmetic):
        return name
    if name not in ARITHMETICS:
        raise RefusedError(
            f"there is no arithmetic '{printable(name)}'; choose from {', '.join(ARITHMETICS)}", code="bad-arithmetic"
        )
    return ARITHMETICS[name]
