"""Fuse rules as data: how an aggregated delta enters a weight, by the dtype it is stored in.

Upstream's word and shape: Lightricks/LTX-2's ``fuse_loras.py`` picks a ``FuseRule`` by dtype. A layout that stands in
no row is refused by name before a byte is written, never fused by a rule that was made for another.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor


@dataclass(frozen=True)
class FuseRule:
    """How the delta enters one stored dtype.

    Attributes:
        through: the dtype that the sum of weight and delta is rounded to before it is stored.
    """

    through: str


# By safetensors' name of the dtype. Upstream rounds the sum to bf16 whatever the weight is stored as.
RULES: dict[str, FuseRule] = {dtype: FuseRule(through="BF16") for dtype in ("BF16", "F32", "F16")}

# A tensor of such a name beside ``<module>.weight`` means that the stored numbers are codes, to be scaled before use.
SCALE_SIBLINGS = (".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".scale_weight")


def check_rule(weight: StoredTensor, base: Container[str]) -> None:
    """Make sure that there is a rule for one weight of ``base``.

    Raises:
        RefusedError: no rule for its dtype, or it is stored with a scale beside it.
    """
    module = weight.key.removesuffix(".weight")
    scale = next((key for ending in SCALE_SIBLINGS if (key := module + ending) in base), None)
    if weight.dtype not in RULES or scale:
        beside = f" with {printable(scale)} beside it" if scale else ""
        raise RefusedError(
            f"{printable(weight.file.path)}: weight {printable(weight.key)} is {weight.dtype}{beside}, and there is "
            f"no rule to fuse that; ltx2c fuses {', '.join(RULES)}",
            code="no-fuse-rule",
        )
