"""What may be a strength: of an adapter in a state, of a term of one weight."""

from __future__ import annotations

import math
import numbers

import ml_dtypes

from ltx2c.errors import RefusedError, printable

# The least double that rounds to an infinite float32. Compared, not rounded: how the calling thread rounds is its own.
_BEYOND_FLOAT32 = float.fromhex("0x1.ffffffp127")

# Floats first: whether a class is a number to the abc takes a while to find out.
_REAL = (float, numbers.Real, ml_dtypes.bfloat16)


def check_strength(strength: object, whose: object) -> float:
    """``strength`` as a float, not yet rounded to float32. A bool is a number to Python, but here a mistake.

    Args:
        strength: a real number of Python or NumPy.
        whose: the adapter or the term that has it, for the message.

    Raises:
        RefusedError: not a number, NaN, or beyond float32's range.
    """
    if isinstance(strength, _REAL) and not isinstance(strength, bool):
        try:
            value = float(strength)
        except OverflowError:  # a whole number beyond double's range
            value = math.inf
        if abs(value) < _BEYOND_FLOAT32:
            return value
    raise RefusedError(
        f"{printable(whose)}: strength {printable(strength)} is not a finite float32 number", code="bad-strength"
    )
