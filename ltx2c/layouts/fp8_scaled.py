"""FP8 e4m3fn with one float32 scale for the whole weight: value = code * scale.

The scale is chosen anew for the fused values: 448, the largest code, is the largest magnitude.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ltx2c.arithmetic import Arithmetic
from ltx2c.kernels import codecs
from ltx2c.layouts.fp8_cast import KINDS, as_bytes, largest_magnitude
from ltx2c.layouts.layout import FLOAT32, Array, Companions, Encoded, Working, unrounded_sum

SCALE = "scale"  # the companion's role


class ScaledFp8(ABC):
    """What layouts of e4m3fn codes with scales have in common: a scale for each granule of the weight."""

    in_place = False
    lowest_bits = 0x01

    @abstractmethod
    def grid(self, scales: Array, rows: slice) -> Array:
        """The scales of some rows as a row-major grid, over the memory of the companion."""

    @abstractmethod
    def granule(self, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale, in a weight of so many columns; of no meaning where one is for all."""

    def decode(self, codes: Array, companions: Companions, rows: slice, out: Array, threads: int) -> None:
        scales = self.grid(companions[SCALE], rows)
        wide = out.dtype == FLOAT32
        codecs.decode_fp8(
            as_bytes(codes), as_bytes(out), wide, KINDS["F8_E4M3"], scales, self.granule(codes.shape[1]), threads
        )

    def encode(
        self, values: Array, codes: Array, companions: Companions, rows: slice, threads: int, largest: int | None = None
    ) -> Encoded:
        scales = self.grid(companions[SCALE], rows)
        wide, granule = values.dtype == FLOAT32, self.granule(codes.shape[1])
        if largest is None:
            largest = largest_magnitude(values, threads) if scales.size == 1 else 0
        found = codecs.encode_fp8(
            as_bytes(values), as_bytes(codes), wide, KINDS["F8_E4M3"], scales, granule, largest, threads
        )
        return Encoded(values.size, *found)


@dataclass(frozen=True)
class Fp8Scaled(ScaledFp8):
    """One scale, ``[]``, ``[1]`` or ``[1, 1]``. The sum of weight and aggregate is not rounded before it is scaled."""

    name: str = "fp8-scaled"
    granule_rows = 1
    whole = True

    def granule(self, columns: int) -> tuple[int, int]:
        return 1, columns

    def grid(self, scales: Array, rows: slice) -> Array:
        return scales.reshape(1, 1)

    def working(self, arithmetic: Arithmetic) -> Working:
        return unrounded_sum(arithmetic)


FP8_SCALED = Fp8Scaled()
