"""What an adapter adds to a module's tensors: one small module per kind of delta, behind one protocol."""

from __future__ import annotations

from ltx2c.adapters.deltas.delta import Delta, LoadedDelta
from ltx2c.adapters.deltas.full import Full, Whole
from ltx2c.adapters.deltas.loha import LoHa
from ltx2c.adapters.deltas.lokr import LoKr
from ltx2c.adapters.deltas.lowrank import LowRank
from ltx2c.adapters.deltas.magnitude import Magnitude

__all__ = ["Delta", "Full", "LoHa", "LoKr", "LoadedDelta", "LowRank", "Magnitude", "Whole"]
