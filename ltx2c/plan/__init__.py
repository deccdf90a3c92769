"""What to do, as pure data: computed from names, shapes and dtypes, with every refusal that headers can tell."""

from __future__ import annotations

from ltx2c.plan.fuse import plan_fuse
from ltx2c.plan.match import UnmatchedKey
from ltx2c.plan.plan import AppliedDelta, Deltas, Fusions, Plan

__all__ = ["AppliedDelta", "Deltas", "Fusions", "Plan", "UnmatchedKey", "plan_fuse"]
