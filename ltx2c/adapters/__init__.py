"""Adapter files: how their keys name deltas, what their metadata says, and what makes one unusable."""

from __future__ import annotations

from ltx2c.adapters.adapter import Adapter
from ltx2c.adapters.deltas import Delta, LowRank

__all__ = ["Adapter", "Delta", "LowRank"]
