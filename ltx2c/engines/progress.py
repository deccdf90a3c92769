"""How far an engine has come, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Work done and in all: tensor bytes put in place, and multiply-adds."""

    bytes_done: int
    bytes_total: int
    macs_done: int
    macs_total: int


OnProgress = Callable[[Progress], None]
