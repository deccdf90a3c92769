"""Which layout a weight is in, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from tensor_files import write

from ltx2c import layouts
from ltx2c.files import Checkpoint


def stored(tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], key: str = "x.weight") -> layouts.StoredWeight:
    with Checkpoint.open(write(tmp_path / "b.safetensors", tensors)) as base:
        return layouts.detect(base.tensors, key)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("BF16", "bf16"), ("F32", "f32"), ("F16", "f16"), ("F8_E4M3", "fp8"), ("F8_E5M2", "fp8-e5m2")],
)
def test_without_a_scale(tmp_path, dtype, name):
    found = stored(tmp_path, {"x.weight": (dtype, [6, 5]), "y.weight_scale": ("F32", []), "x.input_scale": ("F32", [])})
    assert found == layouts.StoredWeight(
        layouts.layout_named(name), layouts.TensorSpec("x.weight", dtype, (6, 5)), {}, (6, 5)
    )
    assert [tensor.key for tensor in found.outputs] == ["x.weight"]


@pytest.mark.parametrize("ending", ["weight_scale", "weight_scale_inv", "scale_weight"])
@pytest.mark.parametrize("shape", [[], [1], [1, 1]], ids=str)
def test_with_one_scale(tmp_path, ending, shape):
    found = stored(tmp_path, {"x.weight": ("F8_E4M3", [6, 5]), f"x.{ending}": ("F32", shape)})
    assert found.layout.name == "fp8-scaled" and found.shape == (6, 5)
    assert found.companions == {"scale": layouts.TensorSpec(f"x.{ending}", "F32", tuple(shape))}
    assert [tensor.key for tensor in found.outputs] == ["x.weight", f"x.{ending}"]


@pytest.mark.parametrize("dtype", ["U8", "I8", "F64", "I64", "BOOL"])
def test_unknown_dtypes(tmp_path, dtype):
    with refused("no-fuse-rule", "b.safetensors", f"x.weight is {dtype} [6, 5],"):
        stored(tmp_path, {"x.weight": (dtype, [6, 5])})


@pytest.mark.parametrize(
    ("dtype", "ending", "scale"),
    [
        ("F8_E5M2", "weight_scale", ("F32", [])),
        ("BF16", "weight_scale", ("F32", [])),
        ("F8_E4M3", "weight_scale", ("F16", [])),
        ("F8_E4M3", "weight_scale", ("F32", [5])),
        ("F8_E4M3", "weight_scale", ("F32", [2])),
        ("F8_E4M3", "weight_scale_2", ("F32", [])),
        ("U8", "weight_scale", ("F8_E4M3", [128, 4])),
    ],
)
def test_scales_without_a_rule(tmp_path, dtype, ending, scale):
    beside = f"x.weight is {dtype} [6, 5] with x.{ending} {scale[0]} {scale[1]} beside it"
    with refused("no-fuse-rule", "b.safetensors", beside):
        stored(tmp_path, {"x.weight": (dtype, [6, 5]), f"x.{ending}": scale})


def test_two_scales(tmp_path):
    with refused("no-fuse-rule", "x.weight_scale ", "x.scale_weight "):
        stored(
            tmp_path,
            {"x.weight": ("F8_E4M3", [6, 5]), "x.weight_scale": ("F32", []), "x.scale_weight": ("F32", [])},
        )


def test_names():
    assert {name: layouts.layout_named(name).name for name in layouts.LAYOUTS} == {n: n for n in layouts.LAYOUTS}
    with refused("no-layout", "int3", "fp8-scaled"):
        layouts.layout_named("int3")
