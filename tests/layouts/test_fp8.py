"""FP8 codes and values: every code, every kind of value, and the rules of scales, against the NumPy reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from goldens import bits
from layouts.patches import apart
from values import KINDS, values

from ltx2c import layouts
from ltx2c.layouts import reference

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
CASTS = {"fp8": reference.E4M3, "fp8-e5m2": reference.E5M2}
SHAPES = [(1, 1), (3, 7), (5, 64), (130, 67), (2, 700)]


def scaled_reference(values, scale):
    return reference.fuse_fp8_scaled(np.zeros(values.shape, reference.E4M3), scale, lambda _: values)


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_every_code_is_decoded_exactly(name, dtype):
    codes = np.arange(256, dtype=np.uint8).view(CASTS[name]).reshape(2, 128)
    decoded = np.empty(codes.shape, dtype)
    layouts.layout_named(name).decode(codes, {}, slice(0, 2), decoded, 1)
    expected = codes.astype(F32).astype(dtype)
    expected[np.isnan(expected)] = np.nan  # the canonical one
    np.testing.assert_array_equal(bits(decoded), bits(expected))


@pytest.mark.parametrize("name", CASTS)
def test_every_sixteen_leading_bits_with_ties_and_neighbours(name):
    # What decides is the first bits and whether any of the others is set: all of the former, with four of the latter.
    every = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array([0, 1, 0x8000, 0xFFFF], np.uint32)
    given = every.view(F32)
    codes = np.zeros(given.shape, CASTS[name])
    layouts.layout_named(name).encode(given, codes, {}, slice(0, len(codes)), 2)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(bits(codes), bits(reference.to_fp8(given, CASTS[name])))


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_encodes_as_the_reference(name, dtype, kind):
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        given = values(rng, shape, kind, dtype)
        codes = apart(rng.integers(0, 256, shape, dtype=np.uint8).view(CASTS[name]))
        before = codes.copy()
        found = layouts.layout_named(name).encode(apart(given), codes, {}, slice(0, shape[0]), 2)
        with np.errstate(invalid="ignore"):
            expected = reference.to_fp8(given.astype(F32), CASTS[name])
        np.testing.assert_array_equal(bits(codes), bits(expected))
        finite = [np.isfinite(array.astype(F32)) for array in (before, expected)]
        assert found == layouts.Encoded(
            given.size, int((bits(before) != bits(expected)).sum()), int((finite[0] & ~finite[1]).sum()), 0
        )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [*SHAPES, (700, 300)], ids=str)
@pytest.mark.parametrize("scale_shape", [(), (1,), (1, 1)], ids=str)
def test_one_scale(threads, shape, scale_shape):
    rng = np.random.default_rng(4)
    layout = layouts.layout_named("fp8-scaled")
    codes = apart(rng.integers(0, 127, shape, dtype=np.uint8).view(reference.E4M3))
    scale = np.full(scale_shape, 0.0137, F32)
    decoded = apart(np.empty(shape, F32))
    layout.decode(codes, {"scale": scale}, slice(0, shape[0]), decoded, threads)
    np.testing.assert_array_equal(bits(decoded), bits(codes.astype(F32) * F32.type(0.0137)))

    given = values(rng, shape, "trained", F32)
    before = codes.copy()
    expected, new_scale = scaled_reference(given, scale)
    found = layout.encode(given, codes, {"scale": scale}, slice(0, shape[0]), threads)
    np.testing.assert_array_equal(bits(codes), bits(expected))
    np.testing.assert_array_equal(bits(scale), bits(new_scale))
    assert scale.shape == scale_shape
    assert found == layouts.Encoded(given.size, int((bits(before) != bits(expected)).sum()), 0, 0)


def test_zeros_keep_their_scale():
    codes = np.full((2, 3), 0x81, np.uint8).view(reference.E4M3)
    scale = np.array(0.5, F32)
    found = layouts.layout_named("fp8-scaled").encode(
        np.array([[0, -0.0, 0], [0, 0, -0.0]], F32), codes, {"scale": scale}, slice(0, 2), 1
    )
    assert not bits(codes).any() and scale == 0.5
    assert found == layouts.Encoded(6, 6, 0, 0)


# The smallest that has a scale: S = f32(1 / max) * 448 must not overflow.
@pytest.mark.parametrize("spoiler", [np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-120])
def test_values_without_a_scale_are_told_and_left(spoiler):
    given = np.zeros((2, 3), F32)
    given[1, 1] = spoiler
    with pytest.raises(reference.NoScaleError):
        scaled_reference(given, np.array(1, F32))
    codes = np.full((2, 3), 0x18, np.uint8).view(reference.E4M3)
    scale = np.array(0.5, F32)
    found = layouts.layout_named("fp8-scaled").encode(given, codes, {"scale": scale}, slice(0, 2), 1)
    assert found == layouts.Encoded(6, 0, 0, 6)
    assert np.all(bits(codes) == 0x18) and scale == 0.5


@pytest.mark.parametrize("largest", [2.0**-119, 2.0**-100, 3.4e38], ids=str)
def test_extreme_scales(largest):
    given = np.linspace(-largest, largest, 41, dtype=F32).reshape(1, 41)
    codes, scale = np.zeros((1, 41), reference.E4M3), np.array(1, F32)
    expected, new_scale = scaled_reference(given, scale)
    layouts.layout_named("fp8-scaled").encode(given, codes, {"scale": scale}, slice(0, 1), 1)
    np.testing.assert_array_equal(bits(codes), bits(expected))
    assert bits(scale.reshape(1)) == bits(new_scale.reshape(1))


def test_nothing_to_do():
    for name in ("fp8", "fp8-scaled"):
        for shape in ((0, 5), (5, 0)):
            codes, given = np.zeros(shape, reference.E4M3), np.zeros(shape, F32)
            companions = {"scale": np.array(0.5, F32)}
            layouts.layout_named(name).decode(codes, companions, slice(0, shape[0]), given, 2)
            assert layouts.layout_named(name).encode(given, codes, companions, slice(0, shape[0]), 2) == (
                layouts.Encoded()
            )
            assert companions["scale"] == 0.5
