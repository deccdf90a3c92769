"""Which arrays share bytes; races between jobs are tried in test_fusion.py."""

from __future__ import annotations

import numpy as np
import pytest

from ltx2c import overlaps


def test_columns_of_one_array_lie_between_each_other():
    store = np.zeros((40, 60), np.float32)
    assert not overlaps.shares_memory(store[:, :23], store[:, 23:])
    assert overlaps.shares_memory(store[:, :24], store[:, 23:])
    assert not overlaps.shares_memory(store[::2], store[1::2])


@pytest.mark.parametrize("shares", [False, True])
def test_what_takes_too_long_to_tell_counts_as_shared(monkeypatch, shares):
    store = np.zeros(30_000, np.uint8)
    one = np.lib.stride_tricks.as_strided(store, (60, 3), (216, 2))
    other = np.lib.stride_tricks.as_strided(store[66:], (60, 3), (340, 2))
    if shares:
        monkeypatch.setattr(overlaps, "_MOST_WORK", 1)
    assert overlaps.shares_memory(one, other) == shares
