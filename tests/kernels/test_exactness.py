"""Every kernel against the reference, byte for byte, on values that try each of its ways to be wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from goldens import PATHS, Golden, assert_same_by_class, bits
from hypothesis import given, settings
from hypothesis import strategies as st
from values import BF16, DTYPES, KINDS, values

from ltx2c import fusion, reference

pytestmark = pytest.mark.usefixtures("kernel")

THREADS = (1, 2, 5)


def assert_fuses_like_the_reference(weight, terms, threads, in_place):
    expected = reference.fuse_tensor(weight, terms)
    lost = np.isfinite(weight.astype(np.float32)) & ~np.isfinite(expected.astype(np.float32))
    factors = [(a.copy(), b.copy()) for a, b, _ in terms]
    kept = weight.copy()
    out = weight if in_place else np.empty_like(weight)
    counts = fusion.fuse_jobs([fusion.Job(weight, terms, out)], threads=threads)
    np.testing.assert_array_equal(bits(out), bits(expected))
    assert counts == [lost.sum()]
    if not in_place:
        np.testing.assert_array_equal(bits(weight), bits(kept))
    for (a, b, _), (a_before, b_before) in zip(terms, factors, strict=True):
        assert np.array_equal(bits(a), bits(a_before)) and np.array_equal(bits(b), bits(b_before))


# Small and odd, round a register tile or a panel, across blocks of rows (252) and units of columns (512).
ROWS = st.one_of(st.integers(1, 14), st.sampled_from([60, 61, 251, 253, 300]))
COLUMNS = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 511, 513, 1030]))
RANKS = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 32, 33, 64, 129, 450, 513]))
STRENGTHS = st.one_of(
    st.sampled_from([1.0, 0.0, -0.0, 0.8, -0.3, 2.0**-120, 2.0**100]), st.floats(-4, 4, width=32, allow_subnormal=False)
)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(ROWS), draw(COLUMNS)
    dtype = draw(st.sampled_from(DTYPES))
    weight = values(rng, (rows, columns), draw(st.sampled_from(KINDS)), dtype)
    terms = []
    for _ in range(draw(st.integers(1, 4))):
        rank, stored = draw(RANKS), draw(st.sampled_from((BF16, *DTYPES)))
        a = values(rng, (rank, columns), draw(st.sampled_from(KINDS)), stored)
        b = values(rng, (rows, rank), draw(st.sampled_from(KINDS)), stored)
        terms.append((a, b, draw(STRENGTHS)))
    return weight, terms


@settings(max_examples=120, deadline=None)
@given(problem=problems(), threads=st.sampled_from(THREADS), in_place=st.booleans())
def test_any_problem(problem, threads, in_place):
    assert_fuses_like_the_reference(*problem, threads, in_place)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    rank=st.sampled_from([1, 2, 3, 8, 40]),
    strength=STRENGTHS,
)
def test_any_values(seed, kinds, rank, strength):
    # One kind for all of A and another for all of B: whole tiles that fall on one side of a guard.
    rng = np.random.default_rng(seed)
    weight = values(rng, (37, 97), kinds[0], BF16)
    terms = [(values(rng, (rank, 97), kinds[1], BF16), values(rng, (37, rank), kinds[2], BF16), strength)] * 2
    assert_fuses_like_the_reference(weight, terms, 2, False)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), total=st.sampled_from([118, 119, 141, 142, 380, 381]), spread=st.integers(0, 2))
def test_exponents_at_a_guard(seed, total, spread):
    rng = np.random.default_rng(seed)
    a_exponent = total // 2
    a = _with_exponents(rng, (24, 130), a_exponent, spread if total < 200 else -spread)
    b = _with_exponents(rng, (13, 24), total - a_exponent, spread if total < 200 else -spread)
    weight = values(rng, (13, 130), "zeros" if total < 200 else "huge", BF16)
    assert_fuses_like_the_reference(weight, [(a, b, 1.0), (a, b, -0.75)], 1, False)


def _with_exponents(rng, shape, exponent, spread):
    """Random mantissas and signs; exponents from ``exponent`` to ``exponent + spread``, both present."""
    exponents = rng.integers(min(exponent, exponent + spread), max(exponent, exponent + spread) + 1, shape)
    exponents.flat[0] = exponent
    words = rng.integers(0, 2, shape) << 15 | exponents << 7 | rng.integers(0, 128, shape)
    return words.astype(np.uint16).view(BF16)


def _column(mantissas, exponent):
    """Integers of 128..255 in magnitude as bf16 with this biased exponent."""
    return [m * 2.0 ** (exponent - 127 - 7) for m in mantissas]


# Where one step across a guard gives other bits. Products are in units of 2^(eA + eB - 268).
#   141: 181 * 181 - 180 * 182 = 1 unit = 2^-127, which a flushing dot product makes 0.
#   118: half units of the smallest denormal round before the sum in the contract, and with it when fused; the total,
#        32768 or 32769, lies on either side of half a bf16 denormal.
#   381: 255 * 255 units overflow to inf, but fused into a large negative sum stay finite.
CRITICAL = {
    141: ([181, -180], [181, 182]),
    118: ([130, 149, 187], [129, 129, 158]),
    381: ([-255, 255], [128, 255]),
}


@pytest.mark.parametrize("total", CRITICAL)
def test_one_step_across_a_guard(total):
    b, a = CRITICAL[total]
    a_exponent = total // 2
    a = np.array(_column(a, a_exponent), BF16)[:, None].repeat(70, axis=1)
    b = np.array([_column(b, total - a_exponent)] * 7, BF16)
    assert_fuses_like_the_reference(np.zeros((7, 70), BF16), [(a, b, 1.0)], 1, False)


def test_a_denormal_beside_large_values():
    # The exponents' sum is far above the guard's bound, but a dot product would read the denormal as zero.
    a, b = np.full((2, 70), 2.0**-133, BF16), np.full((7, 2), 2.0**20, BF16)
    assert_fuses_like_the_reference(np.zeros((7, 70), BF16), [(a, b, 1.0)], 1, False)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_goldens(path):
    golden = Golden.load(path)
    assert_same_by_class(fusion.fuse_tensor(golden.weight, golden.terms), golden.expected)


def test_rows_apart_in_memory():
    rng = np.random.default_rng(5)
    weight = values(rng, (40, 200), "trained", BF16)[5:35, 3:163]
    a, b = (
        values(rng, (20, 300), "trained", BF16)[::2, 7:167],
        values(rng, (90, 30), "trained", BF16)[60::-2, 1:11][:30],
    )
    out = np.zeros((60, 170), BF16)
    fusion.fuse_jobs([fusion.Job(weight, [(a, b, 0.7)], out[::2, 10:])], threads=2)
    np.testing.assert_array_equal(bits(out[::2, 10:]), bits(reference.fuse_tensor(weight, [(a, b, 0.7)])))
    assert not out[:, :10].any() and not out[1::2].any()


def at_an_odd_address(array):
    room = np.empty(array.nbytes + 1, np.uint8)
    start = 1 - room.ctypes.data % 2
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert moved.ctypes.data % 2 == 1
    return moved


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_addresses(dtype):
    # As in a file: tensors may begin at any byte. Whole panels, an edge, and ranks that are staged in part.
    rng = np.random.default_rng(7)
    weight = values(rng, (13, 150), "trained", dtype)
    terms = [
        (values(rng, (rank, 150), "trained", stored), values(rng, (13, rank), "trained", stored), 0.7)
        for rank, stored in ((37, BF16), (64, BF16), (5, dtype))
    ]
    moved = [(at_an_odd_address(a), at_an_odd_address(b), strength) for a, b, strength in terms]
    assert_fuses_like_the_reference(at_an_odd_address(weight), moved, 2, True)
    assert_fuses_like_the_reference(at_an_odd_address(weight), moved[:1], 2, True)


def test_many_jobs_at_once():
    # More weights than the ring has buffers, of sizes that make threads overtake each other.
    rng = np.random.default_rng(6)
    jobs, expected = [], []
    for index in range(80):
        rows, columns, rank = (int(n) for n in rng.integers(1, [400, 700, 40]))
        dtype = DTYPES[index % 3]
        weight = values(rng, (rows, columns), "trained", dtype)
        terms = [
            (values(rng, (rank, columns), "trained", BF16), values(rng, (rows, rank), "trained", BF16), 0.5)
            for _ in range(index % 4)
        ]
        expected.append(reference.fuse_tensor(weight, terms))
        jobs.append(fusion.Job(weight, terms, weight if index % 2 else np.empty_like(weight)))
    fusion.fuse_jobs(jobs, threads=5)
    for job, wanted in zip(jobs, expected, strict=True):
        np.testing.assert_array_equal(bits(job.out), bits(wanted))


def test_float8_weights_are_left_to_the_rules():
    with pytest.raises(ValueError, match="float8"):
        fusion.fuse_tensor(np.zeros((2, 2), ml_dtypes.float8_e4m3fn), [])
