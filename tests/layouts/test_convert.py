"""Weights stored in another layout than the base's: what becomes what, in which arithmetic, to which bytes."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from goldens import bits
from layouts.patches import apart
from refusals import refused
from values import DTYPES, KINDS, values

from ltx2c import layouts, reference
from ltx2c.arithmetic import F32 as FLOAT
from ltx2c.arithmetic import LTX
from ltx2c.layouts import reference as layout_reference

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
NAMES = {BF16: "BF16", F32: "F32", np.dtype(np.float16): "F16"}
SHAPE = (6, 32)


def stored(name, key="blocks.0.to_q.weight"):
    layout = layouts.layout_named(name)
    dtype, shape = (
        {"fp8": "F8_E4M3", "fp8-scaled": "F8_E4M3", "fp8-row": "F8_E4M3", "fp8-e5m2": "F8_E5M2"}.get(
            name, name.upper()
        ),
        SHAPE,
    )
    companions = {}
    if name in ("fp8-scaled", "fp8-row"):
        scale = layouts.TensorSpec(key.replace("weight", "weight_scale"), "F32", (6, 1) if name == "fp8-row" else ())
        companions = {"scale": scale}
    return layouts.StoredWeight(layout, layouts.TensorSpec(key, dtype, shape), companions, SHAPE)


@pytest.mark.parametrize("name", ["fp8", "fp8-e5m2", "fp8-scaled", "fp8-row"])
@pytest.mark.parametrize("out_dtype", ["bf16", "f16", "f32"])
def test_quantised_weights_become_values_and_lose_their_scales(name, out_dtype):
    target = layouts.converted(stored(name), out_dtype)
    assert target.outputs == (layouts.TensorSpec("blocks.0.to_q.weight", out_dtype.upper(), SHAPE),)
    assert target.shape == SHAPE


@pytest.mark.parametrize("name", ["bf16", "f32", "f16"])
def test_plain_weights_stay_where_values_are_wanted(name):
    for out_dtype in ("bf16", "f16", "f32", None):
        assert layouts.converted(stored(name), out_dtype) == stored(name)


@pytest.mark.parametrize("name", ["bf16", "f32", "f16"])
def test_plain_weights_are_quantised(name):
    assert layouts.converted(stored(name), "fp8") == stored("fp8")
    assert layouts.converted(stored(name), "fp8-scaled") == stored("fp8-scaled")


@pytest.mark.parametrize("pattern", ["blocks.0.*", "*to_q.weight", "blocks.0.to_q.weight"])
def test_what_is_to_be_kept_is_kept(pattern):
    for out_dtype, name in (("fp8", "bf16"), ("bf16", "fp8-scaled")):
        assert layouts.converted(stored(name), out_dtype, ["other.*", pattern]) == stored(name)
        assert layouts.converted(stored(name), out_dtype, ["other.*"]) != stored(name)


@pytest.mark.parametrize(
    ("key", "shape", "taken"),
    [
        ("transformer_blocks.3.attn1.to_q.weight", (8, 8), True),
        ("model.diffusion_model.transformer_blocks.0.ff.net.0.proj.weight", (8, 8), True),
        ("transformer_blocks.3.attn1.to_q.bias", (8,), False),
        ("transformer_blocks.3.attn1.q_norm.weight", (8,), False),
        ("norm_out.linear.weight", (8, 8), False),
        ("adaln_single.emb.timestep_embedder.linear_1.weight", (8, 8), False),
        ("text_embedding_projection.weight", (8, 8), False),
        ("adaln_single.linear.weight", (8, 8), False),
        ("scale_shift_table", (6, 8), False),
        ("conv.weight", (8, 8, 3, 3), False),
        ("x.weight", (8,), False),
    ],
)
def test_which_weights_quantising_takes(key, shape, taken):
    assert layouts.is_quantisable(key, "BF16", shape) is taken
    assert not layouts.is_quantisable(key, "F8_E4M3", shape) and not layouts.is_quantisable(key, "I64", shape)


def test_norms_stay_as_they_are():
    source = stored("bf16", "blocks.0.norm1.weight")
    assert layouts.converted(source, "fp8") == source


def test_codes_are_not_made_of_codes():
    with refused("already-quantised", "blocks.0.to_q.weight", "fp8-row", "fp8-scaled"):
        layouts.converted(stored("fp8-row"), "fp8-scaled")
    assert layouts.converted(stored("fp8-scaled"), "fp8-scaled") == stored("fp8-scaled")


def test_an_output_dtype_that_is_none():
    with refused("bad-out-dtype", "int4", "fp8-scaled"):
        layouts.converted(stored("bf16"), "int4")


def test_converted_weights_are_rounded_to_bf16_under_ltx_alone():
    for name, dtype in (("fp8", BF16), ("fp8-scaled", F32), ("fp8-row", F32)):
        assert layouts.working(stored(name), stored("f32"), LTX) == (dtype, LTX)
        assert layouts.working(stored(name), stored("f32"), FLOAT) == (F32, FLOAT)
    for name, dtype in (("bf16", BF16), ("f32", F32), ("f16", F32)):
        assert layouts.working(stored(name), stored("fp8-scaled"), LTX) == (dtype, LTX)
        assert layouts.working(stored(name), stored("fp8-scaled"), FLOAT) == (F32, FLOAT)
    for name in layouts.LAYOUTS:
        same = layouts.StoredWeight(layouts.layout_named(name), layouts.TensorSpec("x", "U8", SHAPE), {}, SHAPE)
        assert layouts.working(same, same, LTX) == same.layout.working(LTX)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DTYPES, DTYPES)), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_casts_as_numpy_with_canonical_nan(source, target, kind):
    given = values(np.random.default_rng(9), (5, 77), kind, source)
    with np.errstate(all="ignore"):
        expected = given.astype(F32).astype(target)
    expected.view(f"u{target.itemsize}")[np.isnan(expected)] = reference.CANONICAL_NAN[target]
    out = apart(np.zeros(given.shape, target))
    found = layouts.convert(layouts.PLAIN[NAMES[target]], apart(given), out, {}, slice(0, 5), 2)
    np.testing.assert_array_equal(bits(out), bits(expected))
    assert found.nonfinite == int((np.isinf(expected) & np.isfinite(given.astype(F32))).sum())
    widened = np.empty(given.shape, target)
    layouts.PLAIN[NAMES[source]].decode(given, {}, slice(0, 5), widened, 2)
    np.testing.assert_array_equal(bits(widened), bits(expected))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_quantises_as_the_reference(dtype):
    given = values(np.random.default_rng(10), SHAPE, "trained", dtype)
    codes, companions = layouts.new_arrays(stored("fp8-scaled"), 6)
    assert codes.shape == SHAPE and companions["scale"].shape == ()
    found = layouts.convert(layouts.layout_named("fp8-scaled"), given, codes, companions, slice(0, 6), 1)
    expected, scale = layout_reference.fuse_fp8_scaled(codes, np.array(1, F32), lambda _: given.astype(F32))
    np.testing.assert_array_equal(bits(codes), bits(expected))
    assert companions["scale"] == scale and found == layouts.Encoded(given.size, given.size, 0, 0)


def test_zeros_are_quantised_with_the_scale_one_and_nan_is_told():
    codes, companions = layouts.new_arrays(stored("fp8-scaled"), 6)
    layouts.convert(layouts.layout_named("fp8-scaled"), np.zeros(SHAPE, F32), codes, companions, slice(0, 6), 1)
    assert companions["scale"] == 1
    given = np.full(SHAPE, np.nan, F32)
    found = layouts.convert(layouts.layout_named("fp8-scaled"), given, codes, companions, slice(0, 6), 1)
    assert found.unencodable == given.size
    codes, companions = layouts.new_arrays(stored("fp8"), 6)
    assert layouts.convert(layouts.layout_named("fp8"), given, codes, companions, slice(0, 6), 1).nonfinite == 0
    assert np.isnan(codes.astype(F32)).all()
