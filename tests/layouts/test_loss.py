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


def test_scales_count_and_one_row_in_512_is_looked_at_however_a_weight_is_cut():
    codes = np.ones((1100, 8), E4M3)
    companions = {"scale": 2.0 ** np.arange(9, dtype=np.float32)[:, None]}
    values = np.repeat(companions["scale"], 128)[:1100, None].repeat(8, 1).astype(np.float32)
    values[128:] += 1
    layout = layouts.layout_named("fp8-block")
    size = layouts.measure_delta(layout, values, codes, companions, slice(0, 1100))
    assert size == layouts.DeltaSize(24, 16.0, 8 * 0.125 * (1 + 16 + 256))
    parts = [(0, 128), (128, 640), (640, 1100)]
    cut = [layouts.measure_delta(layout, values[a:b], codes[a:b], companions, slice(a, b)) for a, b in parts]
    assert sum(cut, layouts.DeltaSize()) == size


def test_of_nvfp4():
    codes = np.array([[0x01, 0x23, 0x45, 0x67, 0, 0, 0, 0]], np.uint8)  # 0, .5, 1, 1.5, 2, 3, 4, 6 and zeros
    companions = {"scale": np.full((1, 1), 2, E4M3), "scale_2": np.array(3, np.float32)}
    base = np.empty((1, 16), np.float32)
    layout = layouts.layout_named("nvfp4-linear")
    layout.decode(codes, companions, slice(0, 1), base, 1)
    size = layouts.measure_delta(layout, base - 3, codes, companions, slice(0, 1))
    assert size == layouts.DeltaSize(16, 48.0, 6 * (12 * 0.5 + 2 * 1 + 2 * 2))


def test_where_nothing_is_in_codes_there_is_nothing_to_say():
    assert layouts.DeltaSize().in_steps == 0
    assert layouts.Loss().note == ""


@pytest.mark.parametrize(
    ("changed", "delta", "lost"),
    [(20, 4.0, True), (49, 4.0, True), (50, 4.0, False), (100, 2.0, False), (99, 1.0, True)],
)
def test_a_note_warns_where_most_codes_stay_or_the_delta_is_small(changed, delta, lost):
    loss = layouts.Loss(layouts.Encoded(60, changed - 10)) + layouts.Loss(
        layouts.Encoded(40, 10), layouts.DeltaSize(10, delta, 4.0)
    )
    assert loss.note.startswith(f"{changed}.0% of 100 codes changed; the delta is {delta / 4:.2f} quantisation steps")
    assert loss.is_swallowed is lost is ("lost in rounding" in loss.note) is loss.as_json()["swallowed"]
