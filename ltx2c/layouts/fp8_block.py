"""FP8 e4m3fn with a float32 scale for each block of 128 x 128, ``[ceil(out / 128), ceil(in / 128)]``.

A decoded weight is rounded to bfloat16 under ``ltx``, and the sum with the aggregate again; then each block has its
scale chosen anew. Blocks at the lower and right edge are smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from ltx2c.arithmetic import Arithmetic
from ltx2c.layouts.fp8_scaled import ScaledFp8
from ltx2c.layouts.layout import Array, Working, rounded_sum

BLOCK = 128


@dataclass(frozen=True)
class Fp8Block(ScaledFp8):
    """As DeepSeek's files have it, where the scale is called ``weight_scale_inv`` and is multiplied by all the same."""

    name: str = "fp8-block"
    granule_rows = BLOCK
    whole = False

    def grid(self, scales: Array, rows: slice) -> Array:
        return scales[rows.start // BLOCK : -(-rows.stop // BLOCK)]

    def granule(self, columns: int) -> tuple[int, int]:
        return BLOCK, BLOCK

    def working(self, arithmetic: Arithmetic) -> Working:
        return rounded_sum(arithmetic)


FP8_BLOCK = Fp8Block()
