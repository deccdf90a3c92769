"""DoRA's magnitude: what a module's weight is rescaled to, after all deltas have entered it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ltx2c.files import StoredTensor


@dataclass(frozen=True, eq=False)
class Magnitude:
    """The lengths of one weight's rows, or columns, as stored.

    DoRA: Liu et al. 2024, arXiv:2402.09353. PEFT (``lora_magnitude_vector``) scales the delta by the strength before
    the norm: ``V = W + s dW, W' = m V / |V|``. LyCORIS (``dora_scale``) scales the whole step:
    ``V = W + dW, W' = V (s (m / |V| - 1) + 1)``.

    Attributes:
        tensor: ``[out]``, ``[out, 1, ...]`` or ``[1, out, 1, 1]`` (PEFT's of a convolution): lengths of rows;
            ``[1, in, 1, ...]`` (LyCORIS' of the input side): of columns.
        scales_the_step: LyCORIS' way.
    """

    tensor: StoredTensor
    scales_the_step: bool

    @property
    def by_column(self) -> bool:
        """Whether lengths are of the inputs, over all outputs. The shape says which, also on a square weight."""
        shape = self.tensor.shape
        return self.scales_the_step and len(shape) > 1 and shape[0] == 1

    @property
    def size(self) -> int:
        """How many lengths there are."""
        return math.prod(self.tensor.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether it has a length for every row, or column, of a weight of this shape."""
        if len(shape) < 2:
            return False
        return self.size == (shape[1] if self.by_column else shape[0])

    def read(self) -> npt.NDArray[np.float32]:
        """The lengths, ``float32 [size]``."""
        return self.tensor.read().reshape(-1).astype(np.float32)
