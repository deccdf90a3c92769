"""What a weight can be given: the terms of a fusion, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt

Array = npt.NDArray[Any]

# A [rank, in], B [out, rank], effective strength.
LowRankTerm: TypeAlias = tuple[Array, Array, float]


class FullTerm(NamedTuple):
    """A whole difference: ``D [out, in]``, bfloat16, float32 or float16, times its effective strength."""

    d: Any
    strength: float


Term: TypeAlias = LowRankTerm | FullTerm
