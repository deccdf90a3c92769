"""FP8 e4m3fn with a float32 scale for each row, ``[out, 1]``: the rule of one scale, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from ltx2c.layouts.fp8_cast import FLOAT32
from ltx2c.layouts.fp8_scaled import ScaledFp8
from ltx2c.layouts.layout import Array, Working


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

    def working(self, arithmetic: str) -> Working:
        return Working(FLOAT32, "ltx_wide" if arithmetic == "ltx" else "f32")


FP8_ROW = Fp8Row()
