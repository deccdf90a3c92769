"""What quantisation leaves of a delta: how large it is beside the step from one code to the next.

A delta much smaller than the step leaves most codes as they were, and the adapter does little: a person should know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ltx2c.layouts.layout import Array, Companions, Encoded, Layout

EVERY = 128  # one row of so many is looked at

# Below this share of changed codes most of the delta is lost.
_FEW = 0.5


@dataclass(frozen=True)
class DeltaSize:
    """Sums over the rows looked at; adds up over parts and weights.

    Attributes:
        elements: how many.
        delta: the sum of ``|fused - base|``.
        step: the sum of the distances from a base's code to the next.
    """

    elements: int = 0
    delta: float = 0.0
    step: float = 0.0

    def __add__(self, other: DeltaSize) -> DeltaSize:
        return DeltaSize(self.elements + other.elements, self.delta + other.delta, self.step + other.step)

    @property
    def in_steps(self) -> float:
        """The mean delta in mean quantisation steps; 0 where nothing was looked at."""
        return self.delta / self.step if self.step else 0.0


def measure_delta(layout: Layout, values: Array, codes: Array, companions: Companions, rows: slice) -> DeltaSize:
    """The size of what was added to some rows, before ``layout.encode`` overwrites them. Args are as for that."""
    total = DeltaSize()
    for row in range(0, len(values), EVERY):
        here = slice(row, row + 1)
        place = slice(rows.start + row, rows.start + row + 1)
        base, neighbour = np.empty((2, 1, values.shape[1]), np.float32)
        flipped = (codes[here].view(np.uint8) ^ np.uint8(layout.lowest_bits)).view(codes.dtype)
        layout.decode(codes[here], companions, place, base, 1)
        layout.decode(flipped, companions, place, neighbour, 1)
        with np.errstate(invalid="ignore"):
            delta, step = np.abs(values[here].astype(np.float32) - base), np.abs(neighbour - base)
        known = np.isfinite(delta) & np.isfinite(step)  # the neighbour of 448 is NaN
        total += DeltaSize(int(known.sum()), float(delta[known].sum()), float(step[known].sum()))
    return total


def is_swallowed(encoded: Encoded) -> bool:
    """Whether so few codes changed that most of the delta is lost."""
    return encoded.changed < _FEW * encoded.elements


def loss_note(encoded: Encoded, size: DeltaSize) -> str:
    """A line for a report: the share of codes that changed, and the delta's size in quantisation steps."""
    share = encoded.changed / encoded.elements if encoded.elements else 0.0
    line = f"{share:.1%} of {encoded.elements} codes changed; the delta is {size.in_steps:.2f} quantisation steps"
    lost = ": most of it is lost in rounding; fuse a bf16 base, then quantise" if is_swallowed(encoded) else ""
    return line + lost
