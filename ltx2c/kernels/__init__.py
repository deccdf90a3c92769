"""The compiled kernels: which this build holds, which run on this CPU, and which one is used.

A kernel is named after the first chip that had its instructions. They differ in speed only: every one gives the
contract's bytes.
"""

from __future__ import annotations

import functools

from ltx2c.errors import RefusedError, printable

# All are loaded with the first. Each binds to the OpenMP runtime that is in sight at that moment, and torch may bring
# another in between; `fuse` ends its own runtime's threads before a fork, so the others must have the same.
from ltx2c.kernels import codecs as codecs
from ltx2c.kernels import elementwise as elementwise
from ltx2c.kernels.fuse import CancelledError, Jobs, Stop, built, forced, processors

__all__ = ["CancelledError", "Jobs", "Stop", "available", "processors", "selected", "verdicts", "why"]

_VARIABLE = "LTX2C_KERNEL"


@functools.cache
def verdicts() -> dict[str, str]:
    """For each kernel of this build, slowest first: why it does not run on this CPU, or ``""`` if it does."""
    return built()


def available() -> tuple[str, ...]:
    """Names of the kernels that run here, slowest first."""
    return tuple([name for name, verdict in verdicts().items() if not verdict])


def selected() -> str:
    """The kernel in use: the fastest that runs here, or the one that ``LTX2C_KERNEL`` names.

    Raises:
        RefusedError: ``LTX2C_KERNEL`` names a kernel that does not run here.
    """
    name = forced()
    if name is None:
        return available()[-1]
    if name not in available():
        raise RefusedError(
            f"{_VARIABLE} names the kernel '{printable(name)}', but this machine runs only {', '.join(available())}",
            code="kernel",
        )
    return name


def why() -> str:
    """One line on the choice: forced or fastest, and what kept each faster kernel of this build away."""
    if forced() is not None:
        return f"{selected()}: named by {_VARIABLE}"
    names = list(verdicts())
    missed = names[names.index(selected()) + 1 :]
    return "; ".join([f"{selected()}: the fastest that runs here", *(f"{n}: {verdicts()[n]}" for n in missed)])
