"""Arrays of every kind of value that arithmetic could trip over, from a seed."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ltx2c.dtypes import FUSIBLE

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(dtype.numpy for dtype in FUSIBLE.values())


def _trained(rng, shape):
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def _wide(rng, shape):
    return np.ldexp(rng.standard_normal(shape, dtype=np.float32), rng.integers(-60, 60, shape))


def _tiny(rng, shape):
    """Around the guards' lower bounds: products from normal to below the smallest denormal."""
    return np.ldexp(rng.standard_normal(shape, dtype=np.float32), rng.integers(-76, -58, shape))


def _huge(rng, shape):
    """Around the guards' upper bound: products that just fit and that overflow."""
    return np.ldexp(rng.standard_normal(shape, dtype=np.float32), rng.integers(58, 66, shape))


def _denormal(rng, shape):
    return np.ldexp(rng.integers(-128, 128, shape).astype(np.float32), -133)


def _zeros(rng, shape):
    return rng.choice(np.array([0.0, -0.0, 0.5, -1.0], np.float32), shape, p=[0.45, 0.45, 0.05, 0.05])


def _infinite(rng, shape):
    return _sprinkled(rng, shape, [np.inf, -np.inf])


def _nan(rng, shape):
    return _sprinkled(rng, shape, [np.nan, -np.nan])


def _sprinkled(rng, shape, specials):
    values = _trained(rng, shape)
    chosen = rng.random(shape) < 0.02
    values[chosen] = rng.choice(np.array(specials, np.float32), int(chosen.sum()))
    return values


_VALUES = {
    "trained": _trained,
    "wide": _wide,
    "tiny": _tiny,
    "huge": _huge,
    "denormal": _denormal,
    "zeros": _zeros,
    "infinite": _infinite,
    "nan": _nan,
}

KINDS = (*_VALUES, "bits")


def values(rng: np.random.Generator, shape: tuple[int, int], kind: str, dtype: np.dtype) -> np.ndarray:
    """An array of ``dtype``; kind ``bits`` draws every bit pattern alike, NaN payloads included."""
    if kind == "bits":
        return rng.integers(0, 256, (shape[0], shape[1] * dtype.itemsize), dtype=np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        return _VALUES[kind](rng, shape).astype(dtype)
