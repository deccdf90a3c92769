"""What to do, as pure data: computed from names, shapes and dtypes, with every refusal that headers can tell."""

from __future__ import annotations

from ltx2c.plan.fuse import Plan, Term, plan_fuse
from ltx2c.plan.match import UnmatchedKey

__all__ = ["Plan", "Term", "UnmatchedKey", "plan_fuse"]
