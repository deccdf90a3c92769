"""The arithmetic contract in plain NumPy: slow, short, and the oracle that every other path is tested against.

With ``bf16(x)`` and ``f32(x)`` for rounding to nearest, ties to even, and gradual underflow throughout, one weight
``W [out, in]`` and terms of strength ``s``, each ``A [rank, in]`` and ``B [out, rank]`` or a whole ``D [out, in]``,
fuse as follows.

``ltx``, the default:

1. Factors are rounded to bf16 first, whatever they are stored as. D is used as it is.
2. The first term scales B, and both roundings are real::

       Bs  = bf16(f32(B * f32(s)))
       acc = 0;  for k = 0 .. rank-1, in order:  acc = f32(acc + f32(Bs[:, k] * A[k, :]))
       agg = bf16(acc)                             of a whole D:  agg = bf16(f32(f32(s) * D))

3. Each later term leaves B alone and scales the product; multiply and add round separately::

       acc = the same sum over B itself, or D
       agg = bf16(f32(agg + f32(f32(s) * acc)))

4. The weight takes the aggregate through bf16, whatever it is stored as::

       W' = stored dtype of bf16(f32(agg + f32(W)))

``f32``: factors at their stored precision, one rounding a step, the total starts at the weight::

       t = f32(W)
       acc = 0;  for k = 0 .. rank-1, in order:  acc = fma(B[:, k], A[k, :], acc), or acc = D
       t = f32(t + f32(f32(s) * acc))              per term, in order
       W' = stored dtype of t

A NaN result is stored as the canonical quiet NaN of its dtype, sign bit clear. A weight of -0.0 that meets a delta of
+0.0 becomes +0.0. The pattern of ``ltx``'s roundings is that of Lightricks/LTX-2's ``fuse_loras.py``; the order of the
sum over k, which upstream leaves to torch, is fixed here so that the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ltx2c.arithmetic import F32, LTX, LTX_WIDE, Arithmetic, arithmetic_named
from ltx2c.dtypes import FUSIBLE
from ltx2c.terms import FullTerm, Term

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# The quiet NaN that a fused weight stores, by dtype, as an unsigned integer of its width.
CANONICAL_NAN: dict[np.dtype[Any], np.unsignedinteger[Any]] = {
    dtype.numpy: np.dtype(f"u{dtype.numpy.itemsize}").type(dtype.nan) for dtype in FUSIBLE.values()
}


def fuse_tensor(
    weight: Array,
    terms: Sequence[Term],
    *,
    out: Array | None = None,
    arithmetic: str | Arithmetic = LTX,
    threads: int | None = None,
) -> Array:
    """Fuse adapters into one weight, step by step as the contract says.

    Args:
        weight: ``[out, in]``, bfloat16, float32 or float16.
        terms: in fusion order, each ``(A [rank, in], B [out, rank], strength)`` or ``FullTerm(D [out, in], strength)``,
            of bfloat16, float32 or float16.
        out: where to put the result; ``weight`` itself is allowed. A new array when None.
        arithmetic: ``"ltx"`` or ``"f32"``.
        threads: accepted for the sake of one signature, and unused.

    Returns:
        ``out``, or a new array of the weight's shape and dtype. Without terms, a copy of the weight.

    Raises:
        RefusedError: there is no such arithmetic.
    """
    chosen = arithmetic_named(arithmetic)
    fused = _canonical(_FUSE[chosen](weight, terms)) if terms else weight.copy()
    if out is None:
        return fused
    out[...] = fused
    return out


def _ltx(weight: Array, terms: Sequence[Term]) -> Array:
    with np.errstate(all="ignore"):  # overflow to inf and NaN are results here, not mistakes
        return bf16(aggregate(terms) + weight.astype(np.float32)).astype(weight.dtype)


def _ltx_wide(weight: Array, terms: Sequence[Term]) -> Array:
    with np.errstate(all="ignore"):
        return aggregate(terms) + weight


def _f32(weight: Array, terms: Sequence[Term]) -> Array:
    with np.errstate(all="ignore"):
        total = weight.astype(np.float32)
        for term in terms:
            total = total + np.float32(term[-1]) * _accumulated_f32(term)
        return total.astype(weight.dtype)


_FUSE: dict[Arithmetic, Callable[[Array, Sequence[Term]], Array]] = {LTX: _ltx, F32: _f32, LTX_WIDE: _ltx_wide}


def _canonical(fused: Array) -> Array:
    bits = CANONICAL_NAN[fused.dtype]
    fused.view(bits.dtype)[np.isnan(fused)] = bits
    return fused


def aggregate(terms: Sequence[Term]) -> Float32Array:
    """``ltx``'s delta of all terms together: ``agg [out, in]``, bf16 values held in float32."""
    first, *later = terms
    with np.errstate(all="ignore"):
        if isinstance(first, FullTerm):
            agg = bf16(np.float32(first.strength) * first.d.astype(np.float32))
        else:
            a, b, strength = first
            agg = bf16(product(bf16(bf16(b) * np.float32(strength)), bf16(a)))
        for term in later:
            agg = bf16(agg + np.float32(term[-1]) * _accumulated_ltx(term))
    return agg


def _accumulated_ltx(term: Term) -> Float32Array:
    if isinstance(term, FullTerm):
        whole: Float32Array = term.d.astype(np.float32)
        return whole
    a, b, _ = term
    return product(bf16(b), bf16(a))


def _accumulated_f32(term: Term) -> Float32Array:
    if isinstance(term, FullTerm):
        whole: Float32Array = term.d.astype(np.float32)
        return whole
    a, b, _ = term
    return product_fused(b.astype(np.float32), a.astype(np.float32))


def product(b: Float32Array, a: Float32Array) -> Float32Array:
    """``b @ a`` with one float32 accumulator per element, k strictly increasing, every product and sum rounded."""
    acc = np.zeros((b.shape[0], a.shape[1]), np.float32)
    for k in range(b.shape[1]):
        acc += b[:, k, None] * a[k]
    return acc


def product_fused(b: Float32Array, a: Float32Array) -> Float32Array:
    """The same with one rounding a step, of product and sum together."""
    acc = np.zeros((b.shape[0], a.shape[1]), np.float32)
    for k in range(b.shape[1]):
        acc = fma(b[:, k, None], a[k], acc)
    return acc


def fma(b: Float32Array, a: Float32Array, c: Float32Array) -> Float32Array:
    """``f32(b * a + c)``, rounded once.

    In float64 the product is exact. The sum is rounded to odd: where it is not exact (TwoSum tells what was lost) and
    its last bit is even, it moves one step towards what was lost. Of that, rounding to float32 is right.
    """
    exact = b.astype(np.float64) * a
    total = np.asarray(exact + c)
    part = total - exact
    lost = (exact - (total - part)) + (c - part)  # NaN where the total is inf or NaN: neither is below nor above 0
    step = np.where((lost > 0) == (total > 0), 1, -1) * ((lost > 0) | (lost < 0))
    bits = total.view(np.int64)
    bits += step * (1 - (bits & 1))
    return total.astype(np.float32)


def bf16(values: Array) -> Float32Array:
    """``values`` rounded to bfloat16, ties to even, and held in float32."""
    return values.astype(BFLOAT16).astype(np.float32)
