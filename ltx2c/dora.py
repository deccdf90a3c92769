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

from ltx2c.kernels.elementwise import rescale_columns, rescale_rows
from ltx2c.threads import resolve_threads

Float32Array = npt.NDArray[np.float32]

LANES = 64

# What LyCORIS adds to a norm: float32's epsilon.
EPSILON = np.float32(2.0**-23)


def rescale(
    values: Float32Array,
    magnitudes: Float32Array,
    *,
    by_column: bool = False,
    step: float | None = None,
    threads: int | None = 1,
) -> None:
    """Rescale ``values`` in place.

    Args:
        values: ``float32 [rows, columns]``, contiguous; by column all rows of a weight.
        magnitudes: ``float32``, one per row; by column one per input, each of which has ``columns / inputs`` columns.
        step: LyCORIS' strength, which scales the whole step; None for PEFT's way.
        threads: how many to use; None for what this process may use.
    """
    along = rescale_columns if by_column else rescale_rows
    along(values, np.ascontiguousarray(magnitudes, np.float32), step, resolve_threads(threads))
