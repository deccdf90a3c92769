"""What an adapter adds to a module's weight or bias: one small module per kind of delta, behind one protocol."""

from __future__ import annotations

from ltx2c.adapters.deltas.delta import Delta, KernelTerm, LoadedDelta
from ltx2c.adapters.deltas.lowrank import LowRank

__all__ = ["Delta", "KernelTerm", "LoadedDelta", "LowRank"]
