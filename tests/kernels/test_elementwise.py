"""Rescaling and elementwise products by C, beside the same in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from ltx2c.adapters.deltas.reference import rescaled
from ltx2c.arrays import numbered
from ltx2c.dora import rescale
from ltx2c.kernels.elementwise import multiply, rescale_columns, rescale_rows, store
from ltx2c.reference import CANONICAL_NAN

Floats = npt.NDArray[np.float32]

SPECIAL = np.array([0.0, -0.0, 1e-40, -1e-45, np.inf, -np.inf, np.nan, 3e38, 2.0**-75], np.float32)


def drawn(shape: tuple[int, int], seed: int, special: bool) -> Floats:
    """Normal values, of wide range or with some special ones among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(np.float32)
    if special:
        chosen = random.random(shape) < 0.1
        values[chosen] = random.choice(SPECIAL, int(chosen.sum()))
    return values


def same(one: Floats, other: Floats) -> bool:
    """Bit for bit, any NaN for any NaN: payloads are made canonical where values are stored."""
    nan = np.isnan(one)
    return bool(np.array_equal(nan, np.isnan(other)) and (one.view(np.uint32) == other.view(np.uint32))[~nan].all())


@settings(deadline=None)
@given(
    rows=st.integers(1, 9),
    inputs=st.sampled_from([1, 2, 31, 63, 64, 65, 130, 1023, 1025]),
    places=st.sampled_from([1, 3, 9]),
    by_column=st.booleans(),
    step=st.sampled_from([None, 1.0, 0.8, -0.3]),
    special=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_rescaling_is_the_reference(
    rows: int, inputs: int, places: int, by_column: bool, step: float | None, special: bool, threads: int, seed: int
) -> None:
    values = drawn((rows, inputs * places), seed, special)
    magnitudes = drawn((1, inputs if by_column else rows), seed + 1, special)[0]
    expected = rescaled(values, magnitudes, by_column=by_column, step=step)
    rescale(values, magnitudes, by_column=by_column, step=step, threads=threads)
    assert same(values, expected)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_products_are_rounded_once(size: int) -> None:
    first, second = drawn((1, size), 0, True)[0], drawn((1, size), 1, True)[0]
    with np.errstate(all="ignore"):
        expected = first * second
    multiply(first, second, 2)
    assert same(first, expected)


@pytest.mark.parametrize("dtype", [np.dtype(bfloat16), np.dtype(np.float32), np.dtype(np.float16)])
@pytest.mark.parametrize("through_bf16", [True, False])
@pytest.mark.parametrize("columns", [1, 511, 512, 1300])
def test_values_are_stored_rounded(dtype: np.dtype[Any], through_bf16: bool, columns: int) -> None:
    with np.errstate(all="ignore"):
        values = drawn((3, columns), 0, True) * np.float32(3e4)
        before = drawn((3, columns), 1, True).astype(dtype)
        expected = (values.astype(bfloat16) if through_bf16 else values).astype(np.float32).astype(dtype)
    expected[np.isnan(values)] = np.array(CANONICAL_NAN[dtype]).view(dtype)
    lost = np.isfinite(before.astype(np.float32)) & ~np.isfinite(expected.astype(np.float32))
    assert store(values, *numbered(before), through_bf16, 2) == lost.sum()
    assert before.tobytes() == expected.tobytes()


def test_shapes_that_do_not_fit_touch_nothing() -> None:
    values, three = np.ones((2, 4), np.float32), np.ones(3, np.float32)
    for rescale_along in (rescale_rows, rescale_columns):
        with pytest.raises(IndexError):
            rescale_along(values, three, None, 1)
    with pytest.raises(IndexError):
        multiply(values.reshape(-1), three, 1)
    assert (values == 1).all()


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_nothing_is_rescaled_to_nothing(shape: tuple[int, int]) -> None:
    values = np.empty(shape, np.float32)
    rescale(values, np.ones(shape[0], np.float32))
    rescale(values, np.ones(max(1, shape[1]), np.float32), by_column=True)
