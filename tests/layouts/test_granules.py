"""FP8 with row and block scales against the NumPy reference, cut into parts as engines cut them."""

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

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
SHAPES = [(1, 1), (3, 7), (127, 128), (128, 129), (300, 260), (256, 384)]
FUSE = {"fp8-row": reference.fuse_fp8_row, "fp8-block": reference.fuse_fp8_block}


def scales_of(name, shape, rng):
    out, into = shape
    grid = (out, 1) if name == "fp8-row" else (-(-out // 128), -(-into // 128))
    return rng.uniform(1e-3, 1e-2, grid).astype(F32)


def weight_of(shape, rng):
    return rng.integers(0, 254, shape, dtype=np.uint8).astype(np.uint8).view(reference.E4M3)


def parts(layout, rows):
    """Whole, and cut where engines may cut."""
    cuts = range(0, rows, layout.granule_rows)
    return [[slice(0, rows)], [slice(at, min(rows, at + layout.granule_rows)) for at in cuts]]


def arithmetics(name):
    return [("ltx", reference.bf16_sum if name == "fp8-block" else reference.wide_sum), ("f32", reference.wide_sum)]


def expectation(name, codes, scales, add, arithmetic):
    if name == "fp8-row":
        return reference.fuse_fp8_row(codes, scales, add)
    return reference.fuse_fp8_block(codes, scales, add, arithmetic=arithmetic)


@pytest.mark.parametrize("name", FUSE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("which", [0, 1], ids=["ltx", "f32"])
def test_decodes_and_encodes_as_the_reference(name, shape, which):
    rng = np.random.default_rng(5)
    layout = layouts.layout_named(name)
    arithmetic, rule = arithmetics(name)[which]
    codes, scales = weight_of(shape, rng), scales_of(name, shape, rng)
    codes[np.isnan(codes.astype(F32))] = 0
    add = rule(reference.bf16(values(rng, shape, "trained", F32)))
    expected, expected_scales = expectation(name, codes, scales, add, arithmetic)
    for cut in parts(layout, shape[0]):
        ours, our_scales, found = apart(codes), scales.copy(), layouts.Encoded()
        decoded = apart(np.empty(shape, layout.working(arithmetic_named(arithmetic)).dtype))
        for rows in cut:
            layout.decode(ours[rows], {"scale": our_scales}, rows, decoded[rows], 2)
        fused = add(decoded.astype(F32)).astype(decoded.dtype)
        for rows in cut:
            found += layout.encode(fused[rows], ours[rows], {"scale": our_scales}, rows, 2)
        np.testing.assert_array_equal(bits(ours), bits(expected))
        np.testing.assert_array_equal(bits(our_scales), bits(expected_scales))
        assert found == layouts.Encoded(ours.size, int((bits(codes) != bits(expected)).sum()), 0, 0)


@pytest.mark.parametrize("name", FUSE)
def test_a_granule_of_zeros_keeps_its_scale_and_others_do_not(name):
    shape = (200, 150)
    layout, rng = layouts.layout_named(name), np.random.default_rng(6)
    given = values(rng, shape, "trained", F32)
    given[:128] = 0
    given[5, 5] = -0.0
    codes, scales = np.full(shape, 0x42, np.uint8).view(reference.E4M3), scales_of(name, shape, rng)
    before = scales.copy()
    layout.encode(given, codes, {"scale": scales}, slice(0, 200), 2)
    assert not bits(codes)[:128].any()
    zeros = 128 if name == "fp8-row" else 1
    np.testing.assert_array_equal(scales[:zeros], before[:zeros])
    assert not np.any(scales[zeros:] == before[zeros:])


@pytest.mark.parametrize("name", FUSE)
@pytest.mark.parametrize("spoiler", [np.inf, -np.inf, np.nan])
def test_one_infinity_or_nan_spoils_its_granule_alone(name, spoiler):
    shape = (200, 150)
    layout, rng = layouts.layout_named(name), np.random.default_rng(7)
    given = values(rng, shape, "trained", F32)
    given[130, 140] = spoiler
    codes, scales = np.zeros(shape, reference.E4M3), scales_of(name, shape, rng)
    found = layout.encode(given, codes, {"scale": scales}, slice(0, 200), 2)
    assert found.unencodable == (150 if name == "fp8-row" else 72 * 22)
    with pytest.raises(reference.NoScaleError):
        expectation(name, codes, scales, lambda _: given, "f32")


def test_ties_go_to_even():
    # 448 is in every row, so that the multiplier is 1: f32(1 / 448) * 448.
    ties = np.array([[448, 17, 19, 0.0009765625, 0.0029296875, -17, 460]], F32)
    ties[0, 6] = 448
    codes, scales = np.zeros(ties.shape, reference.E4M3), np.ones((1, 1), F32)
    layouts.layout_named("fp8-row").encode(ties, codes, {"scale": scales}, slice(0, 1), 1)
    assert codes.astype(F32).tolist() == [[448, 16, 20, 0, 0.00390625, -16, 448]]
