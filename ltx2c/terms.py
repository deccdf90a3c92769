"""What a weight can be given: the terms of a fusion, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A [rank, in], B [out, rank], effective strength.
LowRankTerm: TypeAlias = tuple[Array, Array, float]


class FullTerm(NamedTuple):
    """A whole difference: ``D [out, in]``, bfloat16, float32 or float16, times its effective strength."""

    d: Any
    strength: float


class KroneckerTerm(NamedTuple):
    """Rows of the Kronecker product of two matrices, from row ``first`` on, as a whole difference of as many rows.

    ``f32(one[p, j] * two[q, r])`` at row ``p * rows2 + q``, column ``j * columns2 + r``. The kernels make it where they
    use it. Both are contiguous ``float32``.
    """

    one: npt.NDArray[np.float32]
    two: npt.NDArray[np.float32]
    first: int
    strength: float


Term: TypeAlias = LowRankTerm | FullTerm
"""What users give."""

KernelTerm: TypeAlias = Term | KroneckerTerm
"""What the kernels take."""
