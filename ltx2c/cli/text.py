"""Numbers and counts as a person reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ltx2c.errors import printable

# How many lines of a list a person is shown; --json has them all.
_SHOWN = 12


def first(lines: Sequence[str]) -> list[str]:
    """The first dozen lines of a list, and how many more there are."""
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"  and {more:,} more (--json has them all)"] if more > 0 else list(lines)


def unmatched(keys: Sequence[str]) -> list[str]:
    """Adapter keys that were left out, a line each."""
    return first([f"  left out, no target in the base: {printable(key)}" for key in keys])


def count(number: int, noun: str) -> str:
    """``1 tensor``, ``4,349 tensors``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(nbytes: float) -> str:
    """Bytes with three digits and a decimal unit: ``812 B``, ``42.0 GB``."""
    return f"{nbytes:.0f} B" if nbytes < 1000 else f"{_scaled(nbytes)}B"


def operations(flops: float) -> str:
    """Floating-point operations with a decimal unit: ``17.1 TFLOP``."""
    return f"{_scaled(flops)}FLOP"


def _scaled(number: float) -> str:
    for unit in " kMGT":
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {unit.strip()}"


def described(error: OSError) -> str:
    """Which file, and what the system said."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{printable(os.fsdecode(error.filename))}: {reason}"
