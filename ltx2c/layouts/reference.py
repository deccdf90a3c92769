"""The contract's rules for weights stored in codes, in plain NumPy: slow, short, and the oracle of the layouts.

With ``agg`` for the aggregate of ``ltx2c.reference``, ``S`` for what a granule's values are multiplied by, and all
operations in float32, to nearest, ties to even:

* FP8 without scale: ``t = bf16(agg + W)``, then to the code's format. e4m3fn saturates at 448, infinities too.
* FP8 e4m3fn with one scale: ``nw = W * scale + agg``, not rounded further; ``S = 1 / max|nw| * 448``; the codes are
  ``e4m3fn(clamp(nw * S, -448, 448))`` and the new scale is ``1 / S``.

* With row scales: the same, row by row.
* With block scales: ``d = bf16(W * scale)``, ``t = bf16(agg + d)``, and each block of 128 x 128 is encoded like that.
* NVFP4: ``d = bf16(e2m1 * (scale_2 * block))``, ``t = bf16(agg + d)``; the new ``scale_2`` is ``s = max|t| *
  f32(1/2688)``; each 16 of a row have ``block = e4m3fn(min(max|t| / 6 / s, 448))``, and codes ``e2m1(t * (1 / (s *
  block)))``, saturating at 6, or 0 where ``s * block`` is 0.

A granule of zeros has codes 0 and keeps its scale (in NVFP4 that is the whole weight, all scales kept; a block of zeros
in another has ``block`` 0). One with an infinity or a NaN, or so small that an inverse overflows, has no scale:
``NoScaleError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ltx2c.reference import Array, Float32Array, bf16

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
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


def fuse_fp8_row(codes: Array, scales: Array, add: Sum) -> tuple[Array, Array]:
    """Codes ``[out, in]`` and their scales, float32 ``[out, 1]``; both anew."""
    with np.errstate(all="ignore"):
        values = add(codes.astype(np.float32) * scales)
        fused = [_encoded(row, scale) for row, scale in zip(values, scales, strict=True)]
    return np.stack([row for row, _ in fused]), np.stack([scale for _, scale in fused])


def fuse_fp8_block(codes: Array, scales: Array, add: Sum, *, arithmetic: str = "ltx") -> tuple[Array, Array]:
    """Codes ``[out, in]`` and their scales, float32 ``[ceil(out / 128), ceil(in / 128)]``; both anew."""
    out, into = codes.shape
    spread = scales.repeat(128, 0)[:out].repeat(128, 1)[:, :into]
    new_codes, new_scales = np.empty_like(codes), np.empty_like(scales)
    with np.errstate(all="ignore"):
        decoded = codes.astype(np.float32) * spread
        values = add(bf16(decoded) if arithmetic == "ltx" else decoded)
        for i, j in np.ndindex(*scales.shape):
            block = np.s_[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            new_codes[block], new_scales[i, j] = _encoded(values[block], scales[i, j])
    return new_codes, new_scales


def decode_nvfp4(codes: Array, blocks: Array, scale: Array, *, arithmetic: str = "ltx") -> Float32Array:
    """What U8 ``[out, in / 2]`` stand for, with e4m3fn ``[out, in / 16]`` in plain order and float32 of one element."""
    with np.errstate(all="ignore"):
        nibbles = np.stack([codes >> 4, codes & 15], axis=-1).reshape(len(codes), -1)
        scales = (scale.reshape(()) * blocks.astype(np.float32)).repeat(16, 1)
        decoded: Float32Array = nibbles.view(E2M1).astype(np.float32) * scales
        return bf16(decoded) if arithmetic == "ltx" else decoded


def fuse_nvfp4(
    codes: Array, blocks: Array, scale: Array, add: Sum, *, arithmetic: str = "ltx"
) -> tuple[Array, Array, Array]:
    """``codes``, ``blocks`` and ``scale`` as ``decode_nvfp4`` has them; all three anew."""
    values = add(decode_nvfp4(codes, blocks, scale, arithmetic=arithmetic))
    largest = np.abs(values).max()
    with np.errstate(all="ignore"):
        if largest == 0:
            return np.zeros_like(codes), blocks.copy(), scale.copy()
        if not np.isfinite(largest) or not np.isfinite(np.float32(1) / largest):
            raise NoScaleError(f"{largest} allows no scale")
        new_scale = largest * np.float32(1 / 2688)
        grouped = values.reshape(len(values), -1, 16)
        new_blocks = np.minimum(np.abs(grouped).max(2) / np.float32(6) / new_scale, LARGEST).astype(E4M3)
        both = new_scale * new_blocks.astype(np.float32)
        inverse = np.float32(1) / both
        if not np.isfinite(inverse[both != 0]).all():
            raise NoScaleError("a block is too small")
        scaled = np.where((both == 0)[..., None], np.float32(0), np.clip(grouped * inverse[..., None], -6, 6))
    nibbles = scaled.astype(E2M1).view(np.uint8).reshape(len(values), -1)
    return nibbles[:, ::2] << 4 | nibbles[:, 1::2], new_blocks, np.full_like(scale, new_scale)


def swizzled(blocks: Array) -> Array:
    """Scales of blocks, whose rows and columns are multiples of 128 and 4, in cuBLAS's order, of the same shape."""
    rows, columns = blocks.shape
    tiles = blocks.reshape(rows // 128, 4, 32, columns // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(rows, columns)


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
