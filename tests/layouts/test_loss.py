"""What a report says of a delta that quantisation swallows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ltx2c import layouts

E4M3 = ml_dtypes.float8_e4m3fn


def test_the_step_is_the_distance_to_the_neighbouring_code():
    codes = np.array([[1.0, 1.125, 2.0, 0.0, -16.0, 448.0]], E4M3)
    steps = [0.125, 0.125, 0.25, 2.0**-9, 2.0]  # 448 has a NaN for a neighbour, and does not count
    values = codes.astype(np.float32) + 0.5
    size = layouts.measure_delta(layouts.layout_named("fp8"), values, codes, {}, slice(0, 1))
    assert size == layouts.DeltaSize(5, 2.5, sum(steps))
    assert size.in_steps == 2.5 / sum(steps)


def test_scales_count_and_one_row_in_128_is_looked_at():
    codes = np.ones((300, 8), E4M3)
    companions = {"scale": np.array([[2.0], [4.0], [8.0]], np.float32)}
    values = np.repeat([2.0, 4.0, 8.0], 128)[:300, None].repeat(8, 1).astype(np.float32)
    values[128:] += 1
    size = layouts.measure_delta(layouts.layout_named("fp8-block"), values, codes, companions, slice(0, 300))
    assert size == layouts.DeltaSize(24, 16.0, 8 * 0.125 * (2 + 4 + 8))
    part = layouts.measure_delta(
        layouts.layout_named("fp8-block"), values[256:], codes[256:], companions, slice(256, 300)
    )
    assert part == layouts.DeltaSize(8, 8.0, 8.0)


def test_of_nvfp4():
    codes = np.array([[0x01, 0x23, 0x45, 0x67, 0, 0, 0, 0]], np.uint8)  # 0, .5, 1, 1.5, 2, 3, 4, 6 and zeros
    companions = {"scale": np.full((1, 1), 2, E4M3), "scale_2": np.array(3, np.float32)}
    base = np.empty((1, 16), np.float32)
    layout = layouts.layout_named("nvfp4-linear")
    layout.decode(codes, companions, slice(0, 1), base, 1)
    size = layouts.measure_delta(layout, base - 3, codes, companions, slice(0, 1))
    assert size == layouts.DeltaSize(16, 48.0, 6 * (12 * 0.5 + 2 * 1 + 2 * 2))


def test_nothing_was_looked_at():
    assert layouts.DeltaSize().in_steps == 0
    assert layouts.loss_note(layouts.Encoded(), layouts.DeltaSize()).startswith("0.0% of 0 codes changed")


@pytest.mark.parametrize(("changed", "lost"), [(20, True), (49, True), (50, False), (100, False)])
def test_a_note_warns_where_most_codes_stay(changed, lost):
    encoded = layouts.Encoded(100, changed)
    note = layouts.loss_note(encoded, layouts.DeltaSize(10, 1.0, 4.0))
    assert note.startswith(f"{changed}.0% of 100 codes changed; the delta is 0.25 quantisation steps")
    assert layouts.is_swallowed(encoded) is lost is ("lost in rounding" in note)
