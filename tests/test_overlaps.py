"""Which arrays share bytes; races between jobs are tried in test_fusion.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import steps

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


def _use(job: int, array: np.ndarray, written: bool) -> overlaps.Use:
    return overlaps.Use(job, array, written)


def _by_pairs(uses: list[overlaps.Use]) -> set[tuple[int, int]]:
    """Every race, the slow way."""
    return {
        (at, other)
        for at, one in enumerate(uses)
        for other, two in enumerate(uses)
        if one.written and one.job != two.job and np.shares_memory(one.array, two.array)
    }


_SLICES = st.tuples(st.integers(0, 11), st.integers(1, 12), st.integers(0, 8), st.integers(1, 9))
_VIEWS = {
    "plain": lambda array: array,
    "upside down": lambda array: array[::-1],
    "transposed": lambda array: array.T,
    "every other row": lambda array: array[::2],
    "every other column": lambda array: array[:, ::2],
    "one row": lambda array: array[:1],
}


@given(
    slices=st.lists(
        st.tuples(_SLICES, st.integers(0, 3), st.booleans(), st.sampled_from(sorted(_VIEWS))), min_size=2, max_size=12
    ),
    pitch=st.sampled_from([9, 13]),
    lead=st.integers(0, 12),
    plain=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_a_race_is_found_where_there_is_one(slices, pitch, lead, plain):
    store = np.zeros(lead + 24 * pitch, np.uint8)[lead:].reshape(24, pitch)[:, :9]
    uses = []
    for (top, rows, left, columns), job, written, view in slices:
        array = store[top : top + rows, left : left + columns]
        uses.append(_use(job, array if plain else _VIEWS[view](array), written))
    found = overlaps.find_race(uses)
    races = _by_pairs(uses)
    if found is None:
        assert not races
    else:
        writer, other = (next(at for at, use in enumerate(uses) if use is one) for one in found)
        assert (writer, other) in races


@pytest.mark.parametrize("shape", ["columns", "tiles", "rows"])
def test_thousands_of_slices_of_one_array_are_not_compared_pair_by_pair(shape):
    rows, columns = {"columns": (1, 6000), "tiles": (80, 75), "rows": (6000, 1)}[shape]
    store = np.zeros((rows * 2 if shape != "rows" else 6000, columns * 2), np.float32)
    read = np.zeros_like(store)
    uses = []
    for job in range(rows * columns):
        down, across = divmod(job, columns)
        place = (slice(2 * down, 2 * down + 2) if shape != "rows" else down, slice(2 * across, 2 * across + 2))
        uses += [_use(job, np.atleast_2d(store[place]), True), _use(job, np.atleast_2d(read[place]), False)]
    assert steps(lambda: overlaps.find_race(uses)) < 100 * len(uses)
    assert overlaps.find_race(uses) is None
    uses.append(_use(-1, store[-1:, -1:], False))
    writer, other = overlaps.find_race(uses)
    assert writer.job == rows * columns - 1 and other.job == -1
