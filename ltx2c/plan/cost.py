"""What a step costs, and how long that takes on a machine of given rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Multiply-adds, bytes read from files, and bytes written to memory."""

    macs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @classmethod
    def total(cls, costs: Iterable[Cost]) -> Cost:
        """The sum of all."""
        every = list(costs)
        return cls(
            sum(cost.macs for cost in every),
            sum(cost.bytes_read for cost in every),
            sum(cost.bytes_written for cost in every),
        )


@dataclass(frozen=True)
class Rates:
    """What one machine does in a second: floating-point operations while fusing, and bytes copied into memory."""

    flops: float
    bytes: float

    def seconds(self, cost: Cost) -> float:
        """A prediction: arithmetic and copying share the cores, so their times add up."""
        return 2 * cost.macs / self.flops + max(cost.bytes_read, cost.bytes_written) / self.bytes
