"""Arrays as engines hand them to layouts: rows apart in memory, at odd addresses."""

from __future__ import annotations

import numpy as np


def apart(array: np.ndarray, *, lead: int = 1, gap: int = 3) -> np.ndarray:
    """A copy whose rows have a gap between them, ``lead`` bytes behind a multiple of 64."""
    row = array.shape[1] * array.itemsize
    room = np.full(len(array) * (row + gap) + lead + 64, 0xA5, np.uint8)
    start = -room.ctypes.data % 64 + lead
    rows = room[start : start + len(array) * (row + gap)].reshape(len(array), row + gap)[:, :row]
    moved = rows.view(array.dtype) if row else np.empty(array.shape, array.dtype)
    moved[...] = array
    return moved
