"""How a fuse is planned, beyond what is fused into what: the arguments that every way to it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ltx2c.adapters.scaling import AlphaMode
from ltx2c.arithmetic import LTX
from ltx2c.plan.block_weights import BlockWeights, Factors
from ltx2c.plan.match import OnUnmatched


@dataclass(frozen=True)
class Options:
    """As ``plan_fuse`` says of its arguments of the same names."""

    arithmetic: str = LTX.name
    unmatched: OnUnmatched = "error"
    nvfp4_scales: str | None = None
    alpha: AlphaMode = "stated"
    block_weights: BlockWeights = ()
    variant: str | None = None
    out_dtype: str | None = None
    keep: Sequence[str] = ()

    def given(self) -> dict[str, Any]:
        """Those, beside the arithmetic, that change a result's bytes and were given: for its metadata."""
        given: dict[str, Any] = {}
        if self.nvfp4_scales is not None:
            given["nvfp4_scales"] = self.nvfp4_scales
        if self.alpha != "stated":
            given["alpha"] = self.alpha
        if self.out_dtype is not None:
            given["out_dtype"] = self.out_dtype
        if self.keep:
            given["keep"] = list(self.keep)
        return given | Factors(self.block_weights).options
