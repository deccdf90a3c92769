"""The oracle itself: against upstream's goldens, and on the points where a plausible rewrite would go wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from goldens import PATHS, Golden, assert_same_by_class, bits

from ltx2c import reference

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_reproduces_upstream(path):
    golden = Golden.load(path)
    assert_same_by_class(reference.fuse_tensor(golden.weight, golden.terms), golden.expected)
    assert_same_by_class(reference.aggregate(golden.terms).astype(BF16), golden.expected_delta)


def test_the_golden_set_is_whole():
    assert len(PATHS) == 302
    assert any(Golden.load(path).fma_discriminating for path in PATHS)


def test_the_sum_runs_in_increasing_k():
    # 1 + 2^-24 rounds back to 1 each time; the small terms first would have reached 1 + 2^-23.
    a = np.ones((3, 1), BF16)
    b = np.array([[1.0, 2.0**-24, 2.0**-24]], BF16)
    assert reference.product(b.astype(np.float32), a.astype(np.float32))[0, 0] == 1.0
    assert reference.product(b[:, ::-1].astype(np.float32), a.astype(np.float32))[0, 0] == 1.0 + 2.0**-23


def test_a_negative_zero_weight_meets_a_zero_delta():
    weight = np.array([[-0.0]], BF16)
    fused = reference.fuse_tensor(weight, [(np.zeros((1, 1), BF16), np.zeros((1, 1), BF16), 1.0)])
    assert bits(fused)[0, 0] == 0


@pytest.mark.parametrize(("dtype", "nan"), [(BF16, 0x7FC0), (np.float16, 0x7E00), (np.float32, 0x7FC00000)])
def test_nan_is_canonical(dtype, nan):
    weight = np.array([[-np.nan, np.inf]], dtype)
    terms = [(np.array([[1.0, -np.inf]], BF16), np.array([[1.0]], BF16), 1.0)]
    assert bits(reference.fuse_tensor(weight, terms)).tolist() == [[nan, nan]]


def test_denormals_are_kept():
    tiny = np.array([[2.0**-133]], BF16)
    one = np.ones((1, 1), BF16)
    assert reference.fuse_tensor(np.zeros((1, 1), BF16), [(tiny, one, 1.0)])[0, 0] == tiny[0, 0]


def test_a_float32_weight_is_rounded_through_bf16():
    weight = np.array([[1.0 + 2.0**-20]], np.float32)
    zero = np.zeros((1, 1), BF16)
    assert reference.fuse_tensor(weight, [(zero, zero, 1.0)])[0, 0] == 1.0


def test_out_may_be_the_weight_and_no_terms_is_a_copy():
    weight = np.ones((2, 2), BF16)
    terms = [(np.ones((1, 2), BF16), np.ones((2, 1), BF16), 1.0)]
    copy = reference.fuse_tensor(weight, [])
    assert copy is not weight and np.array_equal(copy, weight)
    assert reference.fuse_tensor(weight, terms, out=weight) is weight
    assert np.all(weight.astype(np.float32) == 2.0)
