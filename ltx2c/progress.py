"""How far a long job has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Handed to a ``progress`` callback after each step of a job; the last call has both counts complete.

    A job of no steps (there is no tensor) makes no call.

    Attributes:
        bytes_done, bytes_total: of the output.
        macs_done, macs_total: multiply-adds; both 0 where there is no arithmetic.
    """

    bytes_done: int
    bytes_total: int
    macs_done: int = 0
    macs_total: int = 0


OnProgress = Callable[[Progress], None]
