"""What quantisation leaves of a delta: how large it is beside the step from one code to the next.

A delta much smaller than the step leaves most codes as they were, and the adapter does little: a person should know.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ltx2c.layouts.layout import Array, Companions, Encoded, Layout

EVERY = 512  # one row of so many is looked at

# Where fewer codes change, or the mean delta is so small beside a step, most of it is lost.
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


@dataclass(frozen=True)
class Loss:
    """What encoding fused values left of a delta; adds up over parts and weights.

    Attributes:
        encoded: how many codes there are, and how many changed.
        size: of the delta.
    """

    encoded: Encoded = field(default_factory=Encoded)
    size: DeltaSize = field(default_factory=DeltaSize)

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.encoded + other.encoded, self.size + other.size)

    @property
    def is_swallowed(self) -> bool:
        """Whether most of the delta is lost: few codes changed, or those of new scales did and it is small."""
        return self.encoded.changed < _FEW * self.encoded.elements or self.size.in_steps < _FEW

    @property
    def note(self) -> str:
        """A line for a report: the share of codes that changed, and the delta's size; "" where there are no codes."""
        codes = self.encoded.elements
        if not codes:
            return ""
        line = (
            f"{self.encoded.changed / codes:.1%} of {codes:,} codes changed; the delta is {self.size.in_steps:.2f} "
            "quantisation steps in the mean"
        )
        lost = ": most of it is lost in rounding; fuse the bf16 base, then quantise" if self.is_swallowed else ""
        return line + lost

    def as_json(self) -> dict[str, float]:
        """The same in JSON's own types."""
        return {
            "codes": self.encoded.elements,
            "changed": self.encoded.changed,
            "delta_in_steps": self.size.in_steps,
            "swallowed": self.is_swallowed,
        }


def measure_delta(layout: Layout, values: Array, codes: Array, companions: Companions, rows: slice) -> DeltaSize:
    """The size of what was added to some rows, before ``layout.encode`` overwrites them. Args are as for that.

    However a weight is cut, the same of its rows are looked at.
    """
    total = DeltaSize()
    for row in range(-rows.start % EVERY, len(values), EVERY):
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
