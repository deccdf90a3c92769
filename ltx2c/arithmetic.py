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
        through_bf16: whether it rounds factors, aggregate and sum to bfloat16, so that float32 and float16 weights
            and factors lose digits.
    """

    name: str
    code: int
    through_bf16: bool


LTX = Arithmetic("ltx", 0, through_bf16=True)
"""Upstream LTX's, and the default: bf16 aggregates, each rounding as Lightricks/LTX-2's ``fuse_loras.py`` has it."""

F32 = Arithmetic("f32", 1, through_bf16=False)
"""Float32 throughout, the total starting at the weight, one rounding to the stored dtype at the end."""

LTX_WIDE = Arithmetic("ltx_wide", 2, through_bf16=True)
"""LTX's aggregate plus a float32 weight, unrounded. For layouts that store the sum by a rule of their own; nobody
chooses it by name."""

ARITHMETICS: Mapping[str, Arithmetic] = MappingProxyType({chosen.name: chosen for chosen in (LTX, F32)})
"""What users may choose."""

KERNEL_ARITHMETICS: Mapping[str, Arithmetic] = MappingProxyType({**ARITHMETICS, LTX_WIDE.name: LTX_WIDE})
"""What a job of the kernels may carry."""


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
