"""NVFP4 against the NumPy reference: both orders of scales, all codes, ties, zeros, padding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from goldens import bits
from layouts.patches import apart
from values import values

from ltx2c import layouts
from ltx2c.arithmetic import arithmetic_named
from ltx2c.layouts import reference

F32 = np.dtype(np.float32)
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
SHAPES = [(1, 16), (3, 48), (128, 64), (130, 80), (300, 1040)]
ORDERS = ["nvfp4-swizzled", "nvfp4-linear", "nvfp4-exact"]  # the last: linear without padding


def swizzled_place(row, column, columns):
    """As cuBLAS's documentation has it."""
    tile = (row // 128) * (columns // 4) + column // 4
    return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + column % 4


def stored_scales(blocks, order, padding=0x5A):
    """Block scales as they are stored; padding is filled with something to be left alone."""
    rows, columns = blocks.shape
    if order == "nvfp4-exact":
        return blocks.copy()
    padded = np.full((-(-rows // 128) * 128, -(-columns // 4) * 4), padding, np.uint8)
    if order == "nvfp4-linear":
        padded[:rows, :columns] = bits(blocks)
    else:
        for row, column in np.ndindex(rows, columns):
            padded.reshape(-1)[swizzled_place(row, column, padded.shape[1])] = bits(blocks)[row, column]
    return padded.view(reference.E4M3)


def layout_of(order):
    return layouts.layout_named("nvfp4-linear" if order == "nvfp4-exact" else order)


def base(shape, rng):
    out, into = shape
    codes = rng.integers(0, 256, (out, into // 2), dtype=np.uint8)
    blocks = rng.integers(1, 127, (out, into // 16), dtype=np.uint8).view(reference.E4M3)
    return codes, blocks, np.array(0.0003, F32)


def test_the_reference_knows_the_order_of_tiles():
    blocks = np.arange(256 * 8, dtype=np.uint16).reshape(256, 8)
    ours = reference.swizzled(blocks).reshape(-1)
    for row, column in np.ndindex(256, 8):
        assert ours[swizzled_place(row, column, 8)] == blocks[row, column]


def test_all_sixteen_codes_in_both_halves():
    codes = np.array([[code << 4 | 15 - code for code in range(16)]], np.uint8)
    companions = {"scale": np.ones((1, 2), reference.E4M3), "scale_2": np.array(1, F32)}
    decoded = np.empty((1, 32), F32)
    layouts.layout_named("nvfp4-linear").decode(codes, companions, slice(0, 1), decoded, 1)
    np.testing.assert_array_equal(decoded[0, ::2], E2M1)
    np.testing.assert_array_equal(decoded[0, 1::2], E2M1[::-1])
    assert np.signbit(decoded[0, 16]) and not np.signbit(decoded[0, 0])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
def test_decodes_and_encodes_as_the_reference(order, shape, arithmetic):
    rng = np.random.default_rng(8)
    layout = layout_of(order)
    codes, blocks, scale = base(shape, rng)
    rule = reference.bf16_sum if arithmetic == "ltx" else reference.wide_sum
    add = rule(reference.bf16(values(rng, shape, "trained", F32)))
    expected, new_blocks, new_scale = reference.fuse_nvfp4(codes, blocks, scale, add, arithmetic=arithmetic)

    companions = {"scale": stored_scales(blocks, order), "scale_2": scale.copy()}
    decoded = apart(np.empty(shape, layout.working(arithmetic_named(arithmetic)).dtype))
    for rows in (slice(0, 1), slice(1, shape[0])):  # rows are decoded in parts, as a file is read
        layout.decode(codes[rows], companions, rows, decoded[rows], 2)
    np.testing.assert_array_equal(
        decoded.astype(F32), reference.decode_nvfp4(codes, blocks, scale, arithmetic=arithmetic)
    )
    ours = apart(codes)
    found = layout.encode(add(decoded.astype(F32)).astype(decoded.dtype), ours, companions, slice(0, shape[0]), 2)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(bits(companions["scale"]), bits(stored_scales(new_blocks, order)))
    assert bits(companions["scale_2"].reshape(1)) == bits(new_scale.reshape(1))
    changed = sum(int(((codes ^ expected) & half != 0).sum()) for half in (0x0F, 0xF0))
    assert found == layouts.Encoded(shape[0] * shape[1], changed, 0, 0)


def encoded(given, *, scale=0.5):
    codes = np.full((given.shape[0], given.shape[1] // 2), 0x77, np.uint8)
    companions = {
        "scale": np.full((given.shape[0], given.shape[1] // 16), 0x31, np.uint8).view(reference.E4M3),
        "scale_2": np.array([scale], F32),
    }
    found = layouts.layout_named("nvfp4-linear").encode(given, codes, companions, slice(0, len(given)), 1)
    return codes, companions, found


def test_ties_go_to_the_even_code_and_six_saturates():
    # max 2688 makes both scales exact: s is 1, and 6 * 448 the largest.
    given = np.zeros((1, 32), F32)
    given[0, 16:] = 2688
    given[0, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 5.5]
    codes, companions, _ = encoded(given)
    assert companions["scale_2"][0] == 1 and companions["scale"].astype(F32).tolist() == [[1, 448]]
    nibbles = np.stack([codes >> 4, codes & 15], -1).reshape(-1)
    assert [E2M1[code] for code in nibbles[:16]] == [6, 0, 1, 1, 2, 2, 4, 4, -0.0, -1, -1, -2, -2, -4, -4, 6]
    assert nibbles[8] == 8


def test_a_block_of_zeros_has_codes_and_scale_zero():
    given = np.ones((2, 32), F32)
    given[1, :16] = -0.0
    codes, companions, found = encoded(given)
    assert not codes[1, :8].any() and codes[1, 8:].all() and bits(companions["scale"])[1, 0] == 0
    assert found.unencodable == 0


def test_a_weight_of_zeros_keeps_its_scales():
    codes, companions, found = encoded(np.full((2, 32), -0.0, F32))
    assert not codes.any() and companions["scale_2"][0] == 0.5 and np.all(bits(companions["scale"]) == 0x31)
    assert found == layouts.Encoded(64, 64, 0, 0)


def test_a_block_too_small_for_its_scale_has_codes_zero():
    given = np.full((1, 32), 1, F32)
    given[0, :16] = -(2.0**-40)
    codes, companions, found = encoded(given)
    assert not codes[0, :8].any() and bits(companions["scale"])[0, 0] == 0 and found.unencodable == 0


@pytest.mark.parametrize("spoiler", [np.inf, -np.inf, np.nan])
def test_one_infinity_or_nan_has_no_scale(spoiler):
    given = np.ones((2, 32), F32)
    given[1, 3] = spoiler
    assert encoded(given)[2].unencodable == 64


@pytest.mark.parametrize("largest", [2.0**-149, 2.0**-129, 2.0**-127])
def test_a_weight_too_small_has_no_scale(largest):
    given = np.full((1, 16), largest, F32)
    assert encoded(given)[2].unencodable == 16
    with pytest.raises(reference.NoScaleError):
        reference.fuse_nvfp4(
            np.zeros((1, 8), np.uint8), np.ones((1, 1), reference.E4M3), np.array(1, F32), lambda _: given
        )


def test_nothing_to_do():
    codes, companions, found = encoded(np.zeros((0, 32), F32))
    assert found == layouts.Encoded() and codes.shape == (0, 16) and companions["scale_2"][0] == 0.5


def test_ml_dtypes_agrees_on_e2m1():
    given = np.linspace(-7, 7, 4481, dtype=F32)
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], F32)
    every = np.concatenate([given, ties, -ties])

    def nearest(value):
        return min(range(16), key=lambda c: (abs(E2M1[c] - value), np.signbit(E2M1[c]) != np.signbit(value), c % 2))

    np.testing.assert_array_equal(every.astype(ml_dtypes.float4_e2m1fn).view(np.uint8), list(map(nearest, every)))
