"""The arithmetic contract in plain NumPy: slow, short, and the oracle that every other path is tested against.

With ``bf16(x)`` and ``f32(x)`` for rounding to nearest, ties to even, and gradual underflow throughout, one weight
``W [out, in]`` and adapters ``A [rank, in]``, ``B [out, rank]`` of strength ``s`` fuse as follows.

1. Factors are rounded to bf16 first, whatever they are stored as.
2. The first adapter scales B, and both roundings are real::

       Bs  = bf16(f32(B * f32(s)))
       acc = 0;  for k = 0 .. rank-1, in order:  acc = f32(acc + f32(Bs[:, k] * A[k, :]))
       agg = bf16(acc)

3. Each later adapter leaves B alone and scales the product; multiply and add round separately::

       acc = the same sum over B itself
       agg = bf16(f32(agg + f32(f32(s) * acc)))

4. The weight takes the aggregate through bf16, whatever it is stored as::

       W' = stored dtype of bf16(f32(agg + f32(W)))

A NaN result is stored as the canonical quiet NaN of its dtype, sign bit clear. A weight of -0.0 that meets a delta of
+0.0 becomes +0.0. The pattern of roundings is that of Lightricks/LTX-2's ``fuse_loras.py``; the order of the sum over
k, which upstream leaves to torch, is fixed here so that the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# The quiet NaN that a fused weight stores, by dtype: sign clear, top mantissa bit set.
CANONICAL_NAN: dict[np.dtype[Any], np.unsignedinteger[Any]] = {
    BFLOAT16: np.uint16(0x7FC0),
    np.dtype(np.float16): np.uint16(0x7E00),
    np.dtype(np.float32): np.uint32(0x7FC00000),
}


def fuse_tensor(
    weight: Array,
    terms: Sequence[tuple[Array, Array, float]],
    *,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Fuse adapters into one weight, step by step as the contract says.

    Args:
        weight: ``[out, in]``, bfloat16, float32 or float16.
        terms: ``(A [rank, in], B [out, rank], strength)`` in fusion order; bfloat16, float32 or float16 factors.
        out: where to put the result; ``weight`` itself is allowed. A new array when None.
        threads: accepted for the sake of one signature, and unused.

    Returns:
        ``out``, or a new array of the weight's shape and dtype. Without terms, a copy of the weight.
    """
    fused = _fuse(weight, terms) if terms else weight.copy()
    if out is None:
        return fused
    out[...] = fused
    return out


def _fuse(weight: Array, terms: Sequence[tuple[Array, Array, float]]) -> Array:
    with np.errstate(all="ignore"):  # overflow to inf and NaN are results here, not mistakes
        fused: Array = bf16(aggregate(terms) + weight.astype(np.float32)).astype(weight.dtype)
    bits = CANONICAL_NAN[fused.dtype]
    fused.view(bits.dtype)[np.isnan(fused)] = bits
    return fused


def aggregate(terms: Sequence[tuple[Array, Array, float]]) -> Float32Array:
    """The delta of all terms together: ``agg [out, in]``, bf16 values held in float32."""
    (a, b, strength), *later = terms
    with np.errstate(all="ignore"):
        agg = bf16(product(bf16(bf16(b) * np.float32(strength)), bf16(a)))
        for a, b, strength in later:
            agg = bf16(agg + np.float32(strength) * product(bf16(b), bf16(a)))
    return agg


def product(b: Float32Array, a: Float32Array) -> Float32Array:
    """``b @ a`` with one float32 accumulator per element, k strictly increasing, every product and sum rounded."""
    acc = np.zeros((b.shape[0], a.shape[1]), np.float32)
    for k in range(b.shape[1]):
        acc += b[:, k, None] * a[k]
    return acc


def bf16(values: Array) -> Float32Array:
    """``values`` rounded to bfloat16, ties to even, and held in float32."""
    return values.astype(BFLOAT16).astype(np.float32)
