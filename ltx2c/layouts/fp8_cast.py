"""FP8 without scales: each code is a value by itself, and a fused value is the nearest code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ltx2c.arithmetic import Arithmetic
from ltx2c.kernels import codecs
from ltx2c.layouts.layout import FLOAT32, Array, Companions, Encoded, Working, rounded_sum

# The codecs' numbers of the two formats, by safetensors' names of them.
KINDS = {"F8_E4M3": 0, "F8_E5M2": 1}


@dataclass(frozen=True)
class Fp8Cast:
    """Codes of e4m3fn, which saturates at 448 (infinities too), or e5m2, which overflows to infinity from 61440 on."""

    name: str
    dtype: str
    in_place = False
    lowest_bits = 0x01
    granule_rows = 1
    whole = False

    def working(self, arithmetic: Arithmetic) -> Working:
        return rounded_sum(arithmetic)

    def decode(self, codes: Array, companions: Companions, rows: slice, out: Array, threads: int) -> None:
        wide = out.dtype == FLOAT32
        codecs.decode_fp8(as_bytes(codes), as_bytes(out), wide, KINDS[self.dtype], None, (1, 1), threads)

    def encode(
        self, values: Array, codes: Array, companions: Companions, rows: slice, threads: int, largest: int | None = None
    ) -> Encoded:
        wide = values.dtype == FLOAT32
        kind = KINDS[self.dtype]
        found = codecs.encode_fp8(as_bytes(values), as_bytes(codes), wide, kind, None, (1, 1), 0, threads)
        return Encoded(values.size, *found)


def as_bytes(array: Array) -> Array:
    """A 2-D array as bytes ``[rows, columns * itemsize]``, without a copy."""
    return array.view(np.uint8)


def largest_magnitude(values: Array, threads: int) -> int:
    """Of bfloat16 or float32 values ``[rows, columns]``: what a scale that is for all of them is chosen by.

    Returns:
        The bits of a float32: 0 where all are zeros, more than any number's where one is infinite or NaN.
    """
    return codecs.largest_magnitude(as_bytes(values), values.dtype == FLOAT32, threads)


FP8 = Fp8Cast("fp8", "F8_E4M3")
FP8_E5M2 = Fp8Cast("fp8-e5m2", "F8_E5M2")
