"""Weights stored as the values they are, of a dtype that is fused in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ltx2c.arithmetic import Arithmetic
from ltx2c.arrays import numbered
from ltx2c.dtypes import FUSIBLE
from ltx2c.kernels import codecs
from ltx2c.layouts.layout import Array, Companions, Encoded, Working


@dataclass(frozen=True)
class Plain:
    """Values of one dtype, by its safetensors name.

    ``ltx`` rounds the sum of weight and delta to bfloat16 whatever the dtype, as upstream does; ``f32`` to the dtype.
    """

    dtype: str
    in_place = True
    lowest_bits = 0x01
    granule_rows = 1
    whole = False

    @property
    def name(self) -> str:
        return self.dtype.lower()

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of arrays."""
        return FUSIBLE[self.dtype].numpy

    def working(self, arithmetic: Arithmetic) -> Working:
        return Working(self.numpy, arithmetic)

    def decode(self, codes: Array, companions: Companions, rows: slice, out: Array, threads: int) -> None:
        codecs.cast(*numbered(codes), *numbered(out), codes.shape[1], threads)

    def encode(
        self, values: Array, codes: Array, companions: Companions, rows: slice, threads: int, largest: int | None = None
    ) -> Encoded:
        overflowed = codecs.cast(*numbered(values), *numbered(codes), codes.shape[1], threads)
        return Encoded(values.size, values.size, overflowed)


PLAIN = {dtype: Plain(dtype) for dtype in FUSIBLE}
