"""The deltas that are computed before they are fused, in plain NumPy: slow, short, the oracle of their tests.

Each is a difference ``D`` in float32, which then enters as a full term does (``ltx2c.reference``). Products of factors
are the ``f32`` arithmetic's: ``fma`` over k in order, from 0. ``f32(x)`` rounds to nearest, ties to even.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.dora import EPSILON, LANES
from ltx2c.reference import product_fused

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]


def product(b: Array, a: Array) -> Float32Array:
    """``b @ a``; a total of -0.0 is 0.0."""
    return product_fused(b.astype(np.float32), a.astype(np.float32)) + np.float32(0)


def folded(core: Array, a: Array) -> Float32Array:
    """``F[i, c, k] = sum over j of core[i, j, k] a[j, c]``, as ``[i, c * k]``."""
    places = core.reshape(*core.shape[:2], -1)
    each = [product(places[:, :, k], a) for k in range(places.shape[2])]
    return np.stack(each, axis=2).reshape(core.shape[0], -1)


def loha(w1_a: Array, w1_b: Array, w2_a: Array, w2_b: Array, t1: Array | None = None, t2: Array | None = None) -> Array:
    """``D = f32((w1_a @ w1_b) * (w2_a @ w2_b))``, a core folded into the second factor where there is one."""
    with np.errstate(all="ignore"):
        return _half(w1_a, w1_b, t1) * _half(w2_a, w2_b, t2)


def _half(a: Array, b: Array, core: Array | None) -> Float32Array:
    return product(a, b) if core is None else product(a.T, folded(core, b))


def lokr(w1: Array, w2: Array) -> Float32Array:
    """``D[p * rows2 + q, j * columns2 + r] = f32(w1[p, j] * w2[q, r])``; w2 flattened behind its rows."""
    first, second = w1.astype(np.float32), w2.reshape(w2.shape[0], -1).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.kron(first, second)


def side(a: Array, b: Array, core: Array | None = None) -> Float32Array:
    """A side of LoKr that is a product."""
    return _half(a, b, core)


def rescaled(
    values: Float32Array, magnitudes: Float32Array, *, by_column: bool = False, step: float | None = None
) -> Float32Array:
    """DoRA's rescaling as ``ltx2c.dora`` states it, number by number."""
    out = values.copy()
    inputs = len(magnitudes)
    with np.errstate(all="ignore"):
        for index, magnitude in enumerate(magnitudes):
            group = np.s_[:, index * (values.shape[1] // inputs) : (index + 1) * (values.shape[1] // inputs)]
            lines = values[group] if by_column else values[index]
            norm = np.float32(math.sqrt(_squares_of_columns(lines) if by_column else _squares_of_row(lines)))
            norm = norm if step is None else norm + EPSILON
            factor = magnitude / norm
            if step is not None:
                factor = np.float32(step) * (factor - np.float32(1)) + np.float32(1)
            out[group if by_column else index] *= factor
    return out


def _squares_of_row(row: Float32Array) -> float:
    lanes = [0.0] * LANES
    for column, value in enumerate(row):
        lanes[column % LANES] += float(value) * float(value)
    return _in_order(lanes)


def _squares_of_columns(columns: Float32Array) -> float:
    places = [0.0] * columns.shape[1]
    for row in columns:
        for place, value in enumerate(row):
            places[place] += float(value) * float(value)
    return _in_order(places)


def _in_order(parts: list[float]) -> float:
    total = 0.0
    for part in parts:
        total += part
    return total
