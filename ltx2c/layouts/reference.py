"""The contract's rules for weights stored in codes, in plain NumPy: slow, short, and the oracle of the layouts.

With ``agg`` for the aggregate of ``ltx2c.reference``, ``S`` for what a granule's values are multiplied by, and all
operations in float32, to nearest, ties to even:

* FP8 without scale: ``t = bf16(agg + W)``, then to the code's format. e4m3fn saturates at 448, infinities too.
* FP8 e4m3fn with one scale: ``nw = W * scale + agg``, not rounded further; ``S = 1 / max|nw| * 448``; the codes are
  ``e4m3fn(clamp(nw * S, -448, 448))`` and the new scale is ``1 / S``.

A granule of zeros has codes 0 and keeps its scale. One with an infinity or a NaN, or so small that ``S`` overflows, has
no scale: ``NoScaleError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ltx2c.reference import Array, Float32Array, bf16

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
LARGEST = np.float32(448)  # of e4m3fn
_CANONICAL_NAN = {E4M3: 0x7F, E5M2: 0x7E}

# Decoded weight -> fused values: what the delta does to it. ``bf16_sum(agg)`` or ``wide_sum(agg)`` under ``ltx``.
Sum = Callable[[Float32Array], Float32Array]


class NoScaleError(ArithmeticError):
    """The values of a granule have no scale."""


def bf16_sum(aggregate: Float32Array) -> Sum:
    """``t = bf16(agg + W)``."""
    return lambda weight: bf16(aggregate + weight)


def wide_sum(aggregate: Float32Array) -> Sum:
    """``nw = W + agg``, not rounded to bfloat16."""
    return lambda weight: weight + aggregate


def fuse_fp8_cast(codes: Array, add: Sum) -> Array:
    """Codes ``[out, in]`` of e4m3fn or e5m2; the fused ones, of the same format."""
    with np.errstate(all="ignore"):
        return to_fp8(add(codes.astype(np.float32)), codes.dtype)


def fuse_fp8_scaled(codes: Array, scale: Array, add: Sum) -> tuple[Array, Array]:
    """Codes ``[out, in]`` of e4m3fn and their scale, float32 of one element; both anew, of the same shapes."""
    with np.errstate(all="ignore"):
        return _encoded(add(codes.astype(np.float32) * scale.reshape(())), scale)


def _encoded(values: Float32Array, scale: Any) -> tuple[Array, Array]:
    """One granule: its codes and its scale, which has the shape of the one before."""
    largest = np.abs(values).max()
    if largest == 0:
        return np.zeros(values.shape, E4M3), scale.copy()
    multiplier = np.float32(1) / largest * LARGEST
    if not np.isfinite(largest) or not np.isfinite(multiplier):
        raise NoScaleError(f"{largest} allows no scale")
    codes = to_fp8(np.clip(values * multiplier, -LARGEST, LARGEST), E4M3)
    return codes, np.full_like(scale, np.float32(1) / multiplier)


def to_fp8(values: Float32Array, dtype: np.dtype[Any]) -> Array:
    """To nearest, ties to even; e4m3fn saturates, e5m2 overflows to infinity."""
    kept = np.where(np.isnan(values), values, np.clip(values, -LARGEST, LARGEST)) if dtype == E4M3 else values
    codes: Array = kept.astype(dtype)
    codes.view(np.uint8)[np.isnan(values)] = _CANONICAL_NAN[dtype]
    return codes
