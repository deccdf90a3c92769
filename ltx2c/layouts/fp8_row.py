"""FP8 e4m3fn with a float32 scale for each row, ``[out, 1]``: the rule of one scale, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from ltx2c.arithmetic import Arithmetic
from ltx2c.layouts.fp8_scaled import ScaledFp8
from ltx2c.layouts.layout import Array, Working, unrounded_sum


@dataclass(frozen=True)
class Fp8Row(ScaledFp8):
    """As torchao and compressed-tensors write channels."""

    name: str = "fp8-row"
    granule_rows = 1
    whole = False

    def grid(self, scales: Array, rows: slice) -> Array:
        return scales[rows]

    def granule(self, columns: int) -> tuple[int, int]:
        return 1, columns

    def working(self, arithmetic: Arithmetic) -> Working:
        return unrounded_sum(arithmetic)


FP8_ROW = Fp8Row()
