"""The oracle itself: against upstream's goldens, and on the points where a plausible rewrite would go wrong."""

from __future__ import annotations

import ctypes
import ctypes.util

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


# ---- f32 ------------------------------------------------------------------------------------------------------------


def test_fma_is_libms():
    # All kinds of bits, sums that cancel, results at the edge of the denormals: where a second rounding would show.
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    libm.fmaf.restype, libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    rng = np.random.default_rng(8)
    with np.errstate(all="ignore"):
        triples = np.concatenate([adversarial(rng, 4000) for _ in range(3)], axis=1)
        mine = reference.fma(*triples)
        expected = np.array([libm.fmaf(*map(float, triple)) for triple in triples.T], np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(mine), nan)
    assert np.array_equal(bits(mine)[~nan], bits(expected)[~nan])


def adversarial(rng, count):
    """b, a, c as ``[3, count]`` float32: any bits; c near -b*a; products near ties of c."""
    b, a, c = rng.integers(0, 2**32, (3, count), dtype=np.uint32).view(np.float32).copy()
    third = count // 3
    b[third:], a[third:] = rng.standard_normal((2, count - third), dtype=np.float32)
    c[third : 2 * third] = -(b * a)[third : 2 * third]
    c[third : 2 * third].view(np.uint32)[...] += rng.integers(-2, 3, third).astype(np.uint32)
    scale = rng.integers(-30, 30, count - 2 * third)
    c[2 * third :] = np.ldexp((b * a)[2 * third :], scale).astype(np.float32)
    return np.stack([b, a, c])


def test_f32_keeps_the_digits_of_factors_and_weight():
    fine = np.float32(1 + 2.0**-20)
    weight = np.array([[fine]])
    fused = reference.fuse_tensor(weight, [(np.array([[fine]]), np.array([[fine]]), 1.0)], arithmetic="f32")
    assert fused[0, 0] == np.float32(np.float64(fine) * fine) + fine


def test_f32_and_ltx_differ_on_bf16_weights_by_design():
    one, small = np.ones((1, 1), BF16), np.full((1, 1), 2.0**-9, BF16)
    terms = [(one, small, 1.0), (one, small, 1.0)]
    assert reference.fuse_tensor(one, terms, arithmetic="f32")[0, 0] == BF16(1 + 2.0**-8)
    assert reference.fuse_tensor(one, terms)[0, 0] == BF16(1 + 2.0**-8)
