"""How a file's own scale, alpha, enters the strength that a user gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor

AlphaMode = Literal["stated", "ignore", "file"]
"""``"stated"``: ``.alpha`` tensors and PEFT's configuration count, other metadata does not. ``"ignore"``: strength
alone. ``"file"``: what other metadata says of alpha counts as well."""

ALPHA_DTYPES = ("BF16", "F16", "F32", "F64", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")


def check_alpha_mode(given: object) -> None:
    """Refuse (``bad-alpha-mode``) anything but the three."""
    if given not in get_args(AlphaMode):
        raise RefusedError(
            f"alpha is one of {', '.join(get_args(AlphaMode))}, not {printable(given)}", code="bad-alpha-mode"
        )


@dataclass(frozen=True)
class Scaling:
    """Alpha of one delta, with the rank that it is divided by.

    Attributes:
        alpha: None where nothing states one: then strength alone counts.
        rank: of this delta, not of the file's first.
        rooted: rsLoRA: alpha is divided by the root of the rank.
        source: what states it, for a person.
    """

    alpha: float | None = None
    rank: int = 1
    rooted: bool = False
    source: str = ""

    def of(self, strength: float) -> float:
        """The effective strength, computed in double and rounded to float32 once. A negative zero becomes zero.

        Infinite where it passes float32's range.
        """
        value = strength
        if self.alpha is not None:
            value = strength * self.alpha / (math.sqrt(self.rank) if self.rooted else self.rank)
        with np.errstate(over="ignore"):
            return float(np.float32(value)) + 0.0

    def reason(self, strength: float) -> str:
        """How that comes about, in words."""
        over = "over the root of rank" if self.rooted else "over rank"
        return f"strength {strength}" + ("" if self.alpha is None else f" times alpha {self.alpha} {over} {self.rank}")


def read_alpha(tensor: StoredTensor, where: str) -> float:
    """The one value of an ``.alpha`` tensor: part of what the adapter says about itself, so read at open.

    Raises:
        RefusedError: ``bad-alpha``: not one finite number.
    """
    if math.prod(tensor.shape) != 1 or tensor.dtype not in ALPHA_DTYPES:
        raise RefusedError(
            f"{where}: {printable(tensor.key)} cannot be an alpha: shape {list(tensor.shape)}, dtype {tensor.dtype}; "
            f"an alpha is one number, {', '.join(ALPHA_DTYPES)}",
            code="bad-alpha",
        )
    value = float(tensor.read().reshape(()))
    if not math.isfinite(value):
        raise RefusedError(f"{where}: alpha {printable(tensor.key)} is {value}, not a finite number", code="bad-alpha")
    return value
