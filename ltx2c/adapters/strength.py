"""What may be an adapter's strength."""

from __future__ import annotations

import math
import numbers
from pathlib import Path

import numpy as np

from ltx2c.errors import RefusedError, printable


def check_strength(strength: object, adapter: Path) -> float:
    """``strength`` as a float.

    Raises:
        RefusedError: not a number, NaN, or beyond float32's range.
    """
    if isinstance(strength, numbers.Real) and not isinstance(strength, bool):
        value = float(strength)
        with np.errstate(over="ignore"):
            if math.isfinite(np.float32(value)):
                return value
    raise RefusedError(
        f"{printable(adapter)}: strength {printable(strength)} is not a finite float32 number", code="bad-strength"
    )
