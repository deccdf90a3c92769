"""NVFP4: e2m1 codes, two to a byte, with an e4m3 scale for each 16 of a row and a float32 scale for all.

Stored as U8 ``[out, in / 2]``, the first of two codes in the high half. The scales of blocks are padded to
``[roundup(out, 128), roundup(in / 16, 4)]`` and either in the order of cuBLAS, tiles of 128 x 4, or row-major;
row-major ones may be without padding. No shape tells the two orders apart. Padding stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ltx2c.arithmetic import Arithmetic
from ltx2c.kernels import codecs
from ltx2c.layouts.fp8_cast import as_bytes, largest_magnitude
from ltx2c.layouts.fp8_scaled import SCALE
from ltx2c.layouts.layout import FLOAT32, Array, Companions, Encoded, Working, rounded_sum

SCALE_2 = "scale_2"  # role of the scale for all
BLOCK = 16


@dataclass(frozen=True)
class Nvfp4:
    """Block scales in one of the two orders."""

    name: str
    swizzled: bool
    in_place = False
    lowest_bits = 0x11
    granule_rows = 1
    whole = True

    def working(self, arithmetic: Arithmetic) -> Working:
        return rounded_sum(arithmetic)

    def fits(self, shape: tuple[int, ...], scales: tuple[int, ...]) -> bool:
        """Whether block scales of the shape ``scales`` suit values of ``shape``."""
        out, into = shape
        if into % BLOCK:
            return False
        return scales == self.padded(shape) or (not self.swizzled and scales == (out, into // BLOCK))

    def padded(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The shape of the block scales of values of ``shape``, in whole tiles."""
        out, into = shape
        return -(-out // 128) * 128, -(-into // (4 * BLOCK)) * 4

    def decode(self, codes: Array, companions: Companions, rows: slice, out: Array, threads: int) -> None:
        wide = out.dtype == FLOAT32
        scales, scale = as_bytes(companions[SCALE]), companions[SCALE_2].reshape(())
        codecs.decode_nvfp4(codes, as_bytes(out), wide, scales, float(scale), self.swizzled, rows.start, threads)

    def encode(
        self, values: Array, codes: Array, companions: Companions, rows: slice, threads: int, largest: int | None = None
    ) -> Encoded:
        wide = values.dtype == FLOAT32
        scales, scale = as_bytes(companions[SCALE]), companions[SCALE_2].reshape(())
        largest = largest_magnitude(values, threads) if largest is None else largest
        new_scale, *found = codecs.encode_nvfp4(
            as_bytes(values), codes, wide, scales, float(scale), self.swizzled, rows.start, largest, threads
        )
        scale[...] = np.float32(new_scale)
        return Encoded(values.size, *found)


NVFP4_SWIZZLED = Nvfp4("nvfp4-swizzled", True)
NVFP4_LINEAR = Nvfp4("nvfp4-linear", False)
