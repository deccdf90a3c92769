"""Every kernel in every arithmetic, with terms of both kinds in any order, against the reference byte for byte."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from goldens import bits
from hypothesis import given, settings
from hypothesis import strategies as st
from values import BF16, DTYPES, KINDS, values

import ltx2c
from ltx2c import fusion, reference
from ltx2c.arithmetic import ARITHMETICS, F32, LTX, LTX_WIDE, arithmetic_named
from ltx2c.errors import RefusedError
from ltx2c.terms import FullTerm, KroneckerTerm

pytestmark = pytest.mark.usefixtures("kernel")

F32_DTYPE = np.dtype(np.float32)
PAIRS = tuple(itertools.pairwise((*DTYPES, BF16)))  # of A and B that are stored differently


def whole(term, rows):
    """A Kronecker product's rows as the full term that they are."""
    if not isinstance(term, KroneckerTerm):
        return term
    with np.errstate(all="ignore"):
        return FullTerm(np.kron(term.one, term.two)[term.first : term.first + rows], term.strength)


def assert_fuses_like_the_reference(weight, terms, arithmetic, threads=2, in_place=True):
    expected = reference.fuse_tensor(weight, [whole(term, len(weight)) for term in terms], arithmetic=arithmetic)
    lost = np.isfinite(weight.astype(np.float32)) & ~np.isfinite(expected.astype(np.float32))
    before = [[array.copy() for array in term if isinstance(array, np.ndarray)] for term in terms]
    out = weight if in_place else np.empty_like(weight)
    counts = fusion.fuse_jobs([fusion.Job(weight, terms, out, arithmetic)], threads=threads)
    np.testing.assert_array_equal(bits(out), bits(expected))
    assert counts == [lost.sum()]
    for term, copies in zip(terms, before, strict=True):
        for array, copy in zip(term, copies, strict=False):
            assert np.array_equal(bits(array), bits(copy))


ROWS = st.one_of(st.integers(1, 14), st.sampled_from([61, 253]))
COLUMNS = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 513, 1030]))
RANKS = st.one_of(st.integers(1, 9), st.sampled_from([31, 32, 33, 129]))
STRENGTHS = st.one_of(
    st.sampled_from([1.0, 0.0, -0.0, 0.8, -0.3, 2.0**-120, 2.0**100]), st.floats(-4, 4, width=32, allow_subnormal=False)
)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(ROWS), draw(COLUMNS)
    arithmetic = draw(st.sampled_from([F32, F32, LTX, LTX_WIDE]))
    dtype = F32_DTYPE if arithmetic is LTX_WIDE else draw(st.sampled_from(DTYPES))
    weight = values(rng, (rows, columns), draw(st.sampled_from(KINDS)), dtype)
    terms = []
    for _ in range(draw(st.integers(1, 4))):
        of_a, of_b = draw(st.sampled_from([(BF16, BF16), (F32_DTYPE, F32_DTYPE), *PAIRS]))
        if draw(st.integers(0, 2)) == 0:
            terms.append(FullTerm(values(rng, (rows, columns), draw(st.sampled_from(KINDS)), of_a), draw(STRENGTHS)))
            continue
        rank = draw(RANKS)
        a = values(rng, (rank, columns), draw(st.sampled_from(KINDS)), of_a)
        b = values(rng, (rows, rank), draw(st.sampled_from(KINDS)), of_b)
        terms.append((a, b, draw(STRENGTHS)))
    return weight, terms, arithmetic


@settings(max_examples=120, deadline=None)
@given(problem=problems(), threads=st.sampled_from([1, 2, 5]), in_place=st.booleans())
def test_any_problem(problem, threads, in_place):
    assert_fuses_like_the_reference(*problem, threads, in_place)


@st.composite
def kronecker_problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sides = st.integers(1, 9) | st.sampled_from([16, 33, 64])
    one, two = (values(rng, (draw(sides), draw(sides)), draw(st.sampled_from(KINDS)), F32_DTYPE) for _ in range(2))
    if draw(st.booleans()):  # more columns than are made at a time
        one = np.tile(one, (1, -(-1100 // (one.shape[1] * two.shape[1]))))
    all_rows, columns = one.shape[0] * two.shape[0], one.shape[1] * two.shape[1]
    first = draw(st.integers(0, all_rows - 1))
    rows = draw(st.integers(1, min(70, all_rows - first)))
    arithmetic = draw(st.sampled_from([F32, LTX, LTX, LTX_WIDE]))
    dtype = F32_DTYPE if arithmetic is LTX_WIDE else draw(st.sampled_from([BF16, *DTYPES]))
    weight = values(rng, (rows, columns), draw(st.sampled_from(KINDS)), dtype)
    terms = [KroneckerTerm(one, two, first, draw(STRENGTHS))]
    if draw(st.booleans()):
        rank = draw(st.sampled_from([1, 8, 450]))
        terms.append((values(rng, (rank, columns), "trained", BF16), values(rng, (rows, rank), "trained", BF16), 0.7))
    if draw(st.booleans()):
        terms.append(FullTerm(values(rng, (rows, columns), "wide", BF16), draw(STRENGTHS)))
    return weight, draw(st.permutations(terms)), arithmetic


@settings(max_examples=80, deadline=None)
@given(problem=kronecker_problems(), threads=st.sampled_from([1, 3]), in_place=st.booleans())
def test_kronecker_products_made_on_the_way(problem, threads, in_place):
    assert_fuses_like_the_reference(*problem, threads, in_place)


def test_rows_that_a_kronecker_product_has_not():
    one, two = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    for shape, first in (((3, 15), 6), ((3, 14), 0)):
        weight = np.ones(shape, np.float32)
        with pytest.raises(IndexError):
            fusion.fuse_jobs([fusion.Job(weight, [KroneckerTerm(one, two, first, 1.0)], weight, F32)])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 3),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    rank=st.sampled_from([1, 2, 3, 8, 40]),
    strength=STRENGTHS,
)
def test_f32_of_any_values(seed, dtypes, kinds, rank, strength):
    # One kind for all of A and another for all of B: whole tiles that fall on one side of a guard.
    rng = np.random.default_rng(seed)
    shapes = [(37, 97), (rank, 97), (37, rank)]
    weight, a, b = (values(rng, *each) for each in zip(shapes, kinds, dtypes, strict=True))
    assert_fuses_like_the_reference(weight, [(a, b, strength)] * 2, F32)


def _column(mantissas, exponent):
    return [m * 2.0 ** (exponent - 127 - 7) for m in mantissas]


# bf16 factors on either side of the dot product's bounds; the last overflows to inf unless product and sum are fused.
@pytest.mark.parametrize(
    ("total", "b", "a"),
    [
        (141, [181, -180], [181, 182]),
        (118, [130, 149, 187], [129, 129, 158]),
        (380, [-255, 255], [128, 255]),
        (381, [-255, 255], [128, 255]),
    ],
)
def test_f32_across_a_guard(total, b, a):
    a_exponent = total // 2
    a = np.array(_column(a, a_exponent), BF16)[:, None].repeat(70, axis=1)
    b = np.array([_column(b, total - a_exponent)] * 7, BF16)
    for dtype in (BF16, F32_DTYPE):
        assert_fuses_like_the_reference(np.zeros((7, 70), dtype), [(a, b, 1.0)], F32)


def test_f32_rounds_product_and_sum_once():
    # (1 + 2^-12)^2 - 1 - 2^-11 is 2^-24; a rounded product has lost it.
    one = np.float32(1)
    a = np.array([[one + np.float32(2**-12)], [one]]).repeat(70, axis=1)
    b = np.array([[one + np.float32(2**-12), -one - np.float32(2**-11)]] * 7)
    b = b[:, ::-1].copy()
    fused = ltx2c.fuse_tensor(np.zeros((7, 70), np.float32), [(a[::-1].copy(), b, 1.0)], arithmetic="f32")
    assert (fused == np.float32(2**-24)).all()


def test_f32_starts_at_the_weight():
    # 1 + 2^-24 is 1, twice; the deltas summed first would give 1 + 2^-23.
    weight = np.ones((3, 5), np.float32)
    term = FullTerm(np.full((3, 5), 2.0**-24, np.float32), 1.0)
    assert (ltx2c.fuse_tensor(weight, [term, term], arithmetic="f32") == 1.0).all()


@pytest.mark.parametrize("arithmetic", [LTX, F32, LTX_WIDE], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_of_any_payload_becomes_canonical(arithmetic, dtype):
    rng = np.random.default_rng(3)
    kind = F32_DTYPE if arithmetic is LTX_WIDE else dtype
    weight = values(rng, (7, 150), "trained", kind)
    payload = rng.integers(0, 256, (7, 150 * dtype.itemsize), dtype=np.uint8).view(f"u{dtype.itemsize}")
    nan = (bits(np.array(np.inf, dtype)) | payload).view(dtype)
    assert_fuses_like_the_reference(weight.copy(), [FullTerm(nan, -0.5)], arithmetic)
    a, b = values(rng, (3, 150), "trained", dtype), values(rng, (7, 3), "trained", dtype)
    assert_fuses_like_the_reference(weight.copy(), [(a, b, 1.0), FullTerm(nan, 0.5), (a, b, 1.0)], arithmetic)
    if arithmetic is not LTX_WIDE:
        assert_fuses_like_the_reference(nan.copy(), [(a, b, 1.0)], arithmetic)


def test_infinite_factors_count_only_columns_that_exist():
    # Beyond the right edge inf meets the padding's zeros.
    a, b = np.ones((1, 17), np.float32), np.full((3, 1), np.inf, np.float32)
    for arithmetic in (LTX, F32):
        assert_fuses_like_the_reference(np.zeros((3, 17), np.float32), [(a, b, 1.0)], arithmetic)


def test_full_terms_of_any_layout():
    rng = np.random.default_rng(4)
    weight, store = values(rng, (40, 97), "trained", BF16), values(rng, (97, 200), "trained", F32_DTYPE)
    views = [store.T[:40], store[:40, 3:100], store.T[79:39:-1]]
    for d in views:
        expected = reference.fuse_tensor(weight, [FullTerm(d, 0.5)])
        assert np.array_equal(bits(ltx2c.fuse_tensor(weight, [FullTerm(d, 0.5)])), bits(expected))


def test_names():
    assert arithmetic_named("f32") is F32 and arithmetic_named(LTX) is LTX and list(ARITHMETICS) == ["ltx", "f32"]
    for wrong in ("F32", "ltx_wide", "\n"):
        with pytest.raises(RefusedError) as refusal:
            ltx2c.fuse_tensor(np.zeros((2, 2), BF16), [], arithmetic=wrong)
        assert refusal.value.code == "bad-arithmetic" and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("clash", "code"), [("shape", "shape-mismatch"), ("out", "overlap"), ("strength", "bad-strength")]
)
def test_refuses_full_terms_that_do_not_fit(clash, code):
    weight = np.zeros((4, 6), BF16)
    term = {
        "shape": FullTerm(np.zeros((4, 5), BF16), 1.0),
        "out": FullTerm(weight, 1.0),
        "strength": FullTerm(np.zeros((4, 6), BF16), float("nan")),
    }[clash]
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensor(weight, [term], out=weight)
    assert refusal.value.code == code
