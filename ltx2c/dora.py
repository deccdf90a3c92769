"""DoRA's rescaling of fused values, on arrays: the lengths of rows or columns are brought to given magnitudes.

Of values ``V`` (float32, after every delta has entered) and magnitudes ``m``, all in float32 but the sum:

    n2 = sum of V * V in float64, products exact
    n  = f32(sqrt(n2))                            LyCORIS: f32(n + 2^-23)
    g  = f32(m / n)                               LyCORIS: f32(f32(s * f32(g - 1)) + 1)
    V' = f32(V * g)

The order of the sum is part of it. Over a row: 64 lanes, of which lane j takes columns j, j + 64, ... in order, then
the lanes in order. Over a column: rows in order, then the places of a convolution's kernel in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

LANES = 64

# What LyCORIS adds to a norm: float32's epsilon.
EPSILON = np.float32(2.0**-23)


def rescale(
    values: Float32Array, magnitudes: Float32Array, *, by_column: bool = False, step: float | None = None
) -> None:
    """Rescale ``values`` in place.

    Args:
        values: ``float32 [rows, columns]``; by column all rows of a weight.
        magnitudes: ``float32``, one per row; by column one per input, each of which has ``columns / inputs`` columns.
        step: LyCORIS' strength, which scales the whole step; None for PEFT's way.
    """
    with np.errstate(all="ignore"):  # zero rows, overflow: infinities and NaN are results, and are counted
        squares = _of_columns(values, len(magnitudes)) if by_column else _of_rows(values)
        norms = np.sqrt(squares).astype(np.float32)
        if step is not None:
            norms += EPSILON
        factors = magnitudes / norms
        if step is not None:
            factors = np.float32(step) * (factors - np.float32(1)) + np.float32(1)
        if by_column:
            values *= np.repeat(factors, values.shape[1] // len(factors))
        else:
            values *= factors[:, None]


def _of_rows(values: Float32Array) -> Float64Array:
    lanes = np.zeros((len(values), min(LANES, values.shape[1])))
    for begin in range(0, values.shape[1], LANES):
        part = values[:, begin : begin + LANES].astype(np.float64)
        part *= part
        lanes[:, : part.shape[1]] += part
    return _in_order(lanes)


def _of_columns(values: Float32Array, inputs: int) -> Float64Array:
    squares = np.zeros(values.shape[1])
    for row in values:
        wide = row.astype(np.float64)
        wide *= wide
        squares += wide
    return _in_order(squares.reshape(inputs, -1))


def _in_order(parts: Float64Array) -> Float64Array:
    total = parts[:, 0].copy()
    for column in range(1, parts.shape[1]):
        total += parts[:, column]
    return total
