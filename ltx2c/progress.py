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


class Tracker:
    """Counts how far a job has come, and tells whoever asked."""

    def __init__(self, bytes_total: int, macs_total: int, tell: OnProgress | None) -> None:
        self._now = Progress(0, bytes_total, 0, macs_total)
        self._tell = tell

    def advance(self, nbytes: int, macs: int) -> None:
        """So many more are done."""
        done = self._now
        self._now = done._replace(bytes_done=done.bytes_done + nbytes, macs_done=done.macs_done + macs)
        if self._tell is not None:
            self._tell(self._now)
