"""FP8 layouts against upstream's own cases: decode, fuse by the kernels, encode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from goldens import assert_same_by_class, bits

from ltx2c import fusion, layouts, reference
from ltx2c.arithmetic import LTX
from ltx2c.files import TensorFile
from ltx2c.layouts import reference as layout_reference

PATHS = sorted((Path(__file__).parent.parent / "data" / "goldens_fp8").glob("*.safetensors"))
NAMES = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8-e5m2", "bfloat16": "bf16"}


def load(path):
    with TensorFile.open(path) as file:  # the safetensors library knows no FP8 in NumPy
        tensors = {key: tensor.read() for key, tensor in file.tensors.items()}
        strengths = json.loads(file.metadata["strengths"])
    return tensors, [(tensors[f"lora_A.{i}"], tensors[f"lora_B.{i}"], s) for i, s in enumerate(strengths)]


def test_the_golden_set_is_whole():
    assert len([path for path in PATHS if path.stem.startswith("cast")]) == 68
    assert len([path for path in PATHS if path.stem.startswith("scaled")]) == 31


@pytest.mark.parametrize("path", [path for path in PATHS if path.stem.startswith("cast")], ids=lambda path: path.stem)
def test_cast(path):
    tensors, terms = load(path)
    codes = tensors["weight"].copy()
    layout = layouts.layout_named(NAMES[codes.dtype.name])
    if layout.in_place:
        fusion.fuse_jobs([fusion.Job(codes, terms, codes)])
    else:
        add = layout_reference.bf16_sum(reference.aggregate(terms))
        assert_same_by_class(layout_reference.fuse_fp8_cast(codes, add), tensors["expected.weight"])
        rows = slice(0, len(codes))
        values = np.empty(codes.shape, layout.working(LTX).dtype)
        layout.decode(codes, {}, rows, values, 2)
        fusion.fuse_jobs([fusion.Job(values, terms, values)])
        layout.encode(values, codes, {}, rows, 2)
    assert_same_by_class(codes, tensors["expected.weight"])


@pytest.mark.parametrize("path", [path for path in PATHS if path.stem.startswith("scaled")], ids=lambda path: path.stem)
def test_scaled(path):
    tensors, terms = load(path)
    codes, scale = tensors["weight"].copy(), tensors["weight_scale"].copy()
    expected, expected_scale = tensors["expected.weight"], tensors["expected.weight_scale"]
    add = layout_reference.wide_sum(reference.aggregate(terms))
    fused, new_scale = layout_reference.fuse_fp8_scaled(codes, scale, add)
    assert_same_by_class(fused, expected)
    np.testing.assert_array_equal(bits(new_scale), bits(expected_scale))

    layout = layouts.layout_named("fp8-scaled")
    rows = slice(0, len(codes))
    values = np.empty(codes.shape, layout.working(LTX).dtype)
    layout.decode(codes, {"scale": scale}, rows, values, 2)
    fusion.fuse_jobs([fusion.Job(values, terms, values, layout.working(LTX).arithmetic)])
    layout.encode(values, codes, {"scale": scale}, rows, 2)
    assert_same_by_class(codes, expected)
    assert scale.shape == expected_scale.shape
    np.testing.assert_array_equal(bits(scale), bits(expected_scale))
