"""Adapter files: how their keys name pairs, what their metadata says, and what makes one unusable."""

from __future__ import annotations

from ltx2c.adapters.adapter import Adapter
from ltx2c.adapters.pair import Pair

__all__ = ["Adapter", "Pair"]
