"""Which layout a weight is in, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from tensor_files import write

from ltx2c import layouts
from ltx2c.files import Checkpoint


def stored(tmp_path: Path, tensors, key="x.weight", *, metadata=None, nvfp4_scales=None) -> layouts.StoredWeight:
    with Checkpoint.open(write(tmp_path / "b.safetensors", tensors, metadata)) as base:
        return layouts.detect(base.tensors, key, metadata=base.metadata, nvfp4_scales=nvfp4_scales)


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


@pytest.mark.parametrize(
    ("shape", "scale", "name"),
    [
        ([6, 5], [6, 1], "fp8-row"),
        ([1, 5], [1, 1], "fp8-scaled"),
        ([300, 260], [3, 3], "fp8-block"),
        ([3, 5], [1, 1], "fp8-scaled"),
        ([1, 1], [1, 1], "fp8-scaled"),
        ([2, 100], [2, 1], "fp8-row"),
        ([129, 100], [2, 1], "fp8-block"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", ["weight_scale", "weight_scale_inv", "scale_weight"])
def test_by_the_scale_s_shape(tmp_path, shape, scale, name, ending):
    found = stored(tmp_path, {"x.weight": ("F8_E4M3", shape), f"x.{ending}": ("F32", scale)})
    assert found.layout.name == name and found.shape == tuple(shape)
    assert found.companions == {"scale": layouts.TensorSpec(f"x.{ending}", "F32", tuple(scale))}


def nvfp4(out: int, into: int, scales: list[int], **more: tuple[str, list[int]]) -> dict:
    return {
        "x.weight": ("U8", [out, into // 2]),
        "x.weight_scale": ("F8_E4M3", scales),
        "x.weight_scale_2": ("F32", []),
        **more,
    }


@pytest.mark.parametrize(
    ("scales", "order"), [([128, 4], "swizzled"), ([128, 4], "linear"), ([6, 3], "linear")], ids=str
)
def test_nvfp4_in_the_order_that_is_given(tmp_path, scales, order):
    found = stored(tmp_path, nvfp4(6, 48, scales), nvfp4_scales=order)
    assert found.layout.name == f"nvfp4-{order}" and found.shape == (6, 48)
    assert [tensor.key for tensor in found.outputs] == ["x.weight", "x.weight_scale", "x.weight_scale_2"]
    assert set(found.companions) == {"scale", "scale_2"}


def test_nvfp4_without_an_order(tmp_path):
    with refused("nvfp4-scales", "b.safetensors", "x.weight_scale [128, 4]", "--nvfp4-scales swizzled|linear"):
        stored(tmp_path, nvfp4(6, 48, [128, 4]))


def test_nvfp4_in_an_order_that_cannot_be(tmp_path):
    with refused("nvfp4-scales-shape", "x.weight_scale [6, 3]", "swizzled"):
        stored(tmp_path, nvfp4(6, 48, [6, 3]), nvfp4_scales="swizzled")


def test_an_order_that_is_none(tmp_path):
    with refused("bad-nvfp4-scales", "zigzag", "swizzled, linear"):
        stored(tmp_path, {"x.weight": ("BF16", [6, 5])}, nvfp4_scales="zigzag")


@pytest.mark.parametrize(
    "change", [("x.weight_scale", ("F8_E4M3", [6, 4])), ("x.weight_scale_2", ("F32", [2]))], ids=str
)
def test_nvfp4_whose_scales_do_not_fit(tmp_path, change):
    tensors = nvfp4(6, 48, [128, 4]) | dict([change])
    with refused("no-fuse-rule", f"{change[0]} {change[1][0]} {change[1][1]}"):
        stored(tmp_path, tensors, nvfp4_scales="linear")


def test_nvfp4_of_a_width_that_is_not_whole_blocks(tmp_path):
    with refused("no-fuse-rule", "x.weight is U8 [6, 20]"):
        stored(tmp_path, nvfp4(6, 40, [128, 4]), nvfp4_scales="swizzled")


LAYERS = json.dumps({"format_version": "1.0", "layers": {"x": {"format": "nvfp4"}, "y": {"format": "float8_e4m3fn"}}})


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_metadata_that_says_nvfp4_means_swizzled(tmp_path, prefix):
    tensors = {prefix + key: spec for key, spec in nvfp4(6, 48, [128, 4]).items()}
    found = stored(tmp_path, tensors, f"{prefix}x.weight", metadata={"_quantization_metadata": LAYERS})
    assert found.layout.name == "nvfp4-swizzled"
    with refused("nvfp4-scales-differ", "linear", "swizzled"):
        stored(
            tmp_path,
            tensors,
            f"{prefix}x.weight",
            metadata={"_quantization_metadata": LAYERS},
            nvfp4_scales="linear",
        )


def test_a_mark_that_says_nvfp4_means_swizzled(tmp_path):
    mark = np.frombuffer(b'{"format": "nvfp4"}', np.uint8)
    assert stored(tmp_path, nvfp4(6, 48, [128, 4]) | {"x.comfy_quant": mark}).layout.name == "nvfp4-swizzled"


def test_a_mark_that_says_another_format_than_is_found(tmp_path):
    mark = np.frombuffer(b'{"format": "float8_e5m2"}', np.uint8)
    with refused("no-fuse-rule", "x.weight is F8_E4M3", "declared to be float8_e5m2"):
        stored(tmp_path, {"x.weight": ("F8_E4M3", [6, 5]), "x.comfy_quant": mark})


def test_a_mark_of_the_format_that_is_found(tmp_path):
    mark = np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8)
    tensors = {"x.weight": ("F8_E4M3", [6, 5]), "x.weight_scale": ("F32", []), "x.comfy_quant": mark}
    assert stored(tmp_path, tensors | {"scaled_fp8": ("F8_E4M3", [0])}).layout.name == "fp8-scaled"


@pytest.mark.parametrize("text", [b"nvfp4", b"{}", b"[1]", b'{"format": 3}', b"\xff", b"[" * 9000])
def test_marks_that_cannot_be_read(tmp_path, text):
    with refused("bad-quantization-metadata", "b.safetensors", "x.comfy_quant"):
        stored(tmp_path, nvfp4(6, 48, [128, 4]) | {"x.comfy_quant": np.frombuffer(text, np.uint8)})


@pytest.mark.parametrize(
    "text",
    [
        "nvfp4",
        "[]",
        "{}",
        '{"layers": {"x": 1}}',
        '{"layers": {"x": {"format": 1}}}',
        pytest.param('{"layers": {"x": {"format": "nvfp4"}}, "y": [' + "[]," * 2_000_000 + "1]}", id="megabytes"),
        pytest.param('{"layers": {"x": {"format": "nvfp4"}}, "y": ' + "[" * 101 + "]" * 101 + "}", id="nested"),
    ],
)
def test_metadata_that_cannot_be_read(tmp_path, text):
    with refused("bad-quantization-metadata", "_quantization_metadata"):
        stored(tmp_path, nvfp4(6, 48, [128, 4]), metadata={"_quantization_metadata": text})


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"producer": {"name": "llm-compressor"}}', '{"quant_method": 1}'])
def test_what_does_not_say_modelopt_stops_nothing(tmp_path, text):
    for name in ("config.json", "hf_quant_config.json"):
        (tmp_path / name).write_text(text)
    found = stored(tmp_path, nvfp4(6, 48, [128, 4]), metadata={"quantization_config": text}, nvfp4_scales="linear")
    assert found.layout.name == "nvfp4-linear"


def test_what_modelopt_says_of_itself(tmp_path):
    said = {"quantization_config": '{"quant_method": "modelopt_fp4"}'}
    with refused("nvfp4-codes", "x.weight", "metadata quantization_config", "low half"):
        stored(tmp_path, nvfp4(6, 48, [128, 4]), metadata=said, nvfp4_scales="linear")
    # ComfyUI's mark says the order of the codes as well as that of the scales.
    mark = {"x.comfy_quant": np.frombuffer(b'{"format": "nvfp4"}', np.uint8)}
    assert stored(tmp_path, nvfp4(6, 48, [128, 4]) | mark, metadata=said).layout.name == "nvfp4-swizzled"
    assert stored(tmp_path, {"x.weight": ("F8_E4M3", [6, 5])}, metadata=said).layout.name == "fp8"


@pytest.mark.parametrize(
    ("beside", "what"),
    [
        ("x.weight.absmax", "bitsandbytes"),
        ("x.SCB", "bitsandbytes"),
        ("x.weight_zero_point", "zero points"),
        ("x.weight_scale", "integers"),
    ],
)
def test_integers_are_refused_by_name_with_what_to_do(tmp_path, beside, what):
    with refused("no-fuse-rule", "x.weight", what, "fuse the bf16 checkpoint, then quantise the result"):
        stored(tmp_path, {"x.weight": ("I8", [6, 5]), beside: ("F32", [6, 1])})


@pytest.mark.parametrize(
    ("format_", "what"), [("int8_tensorwise", "INT8"), ("convrot_w4a4", "ConvRot"), ("svdquant_w4a4", "SVDQuant")]
)
def test_declared_formats_are_refused_by_name(tmp_path, format_, what):
    mark = np.frombuffer(json.dumps({"format": format_}).encode(), np.uint8)
    with refused("no-fuse-rule", what, format_, "fuse the bf16 checkpoint"):
        stored(tmp_path, {"x.weight": ("I8", [6, 5]), "x.weight_scale": ("F32", [6, 1]), "x.comfy_quant": mark})


def test_mxfp8_is_refused_by_name(tmp_path):
    mark = np.frombuffer(b'{"format": "mxfp8"}', np.uint8)
    with refused("no-fuse-rule", "MXFP8"):
        stored(tmp_path, {"x.weight": ("F8_E4M3", [32, 64]), "x.weight_scale": ("U8", [128, 4]), "x.comfy_quant": mark})


def test_layers_that_have_no_weight_are_known():
    keys = ["x.qweight", "x.wscales", "y.weight_packed", "y.weight_scale", "z.weight", "w.qweight", "w.qzeros"]
    assert layouts.foreign_modules(keys) == {
        "x": "quantised by SVDQuant (nunchaku)",
        "y": "packed by compressed-tensors",
        "w": "quantised by GPTQ or AWQ",
    }


@pytest.mark.parametrize(
    ("tensors", "there", "missing"),
    [
        ({"x.weight_scale": ("F32", [])}, "x.weight_scale", "x.weight is"),
        ({"x.weight": ("U8", [6, 24]), "x.weight_scale": ("F8_E4M3", [128, 4])}, "x.weight_scale", "x.weight_scale_2"),
        ({"x.weight": ("U8", [6, 24]), "x.weight_scale_2": ("F32", [])}, "x.weight_scale_2", "x.weight_scale is"),
        ({"x.weight": ("F8_E4M3", [6, 24]), "x.weight_scale_2": ("F32", [])}, "x.weight_scale_2", "x.weight_scale is"),
    ],
)
def test_one_companion_without_the_other(tmp_path, tensors, there, missing):
    with (
        Checkpoint.open(write(tmp_path / "b.safetensors", {"y.weight": ("BF16", [1]), **tensors})) as base,
        refused("companion-missing", "b.safetensors", there, missing),
    ):
        layouts.check_companions(base.tensors)


def test_companions_that_are_all_there(tmp_path):
    tensors = nvfp4(6, 48, [128, 4]) | {
        "y.weight": ("F8_E4M3", [2, 2]),
        "y.weight_scale": ("F32", []),
        "z.weight_packed": ("U8", [2, 2]),
        "z.weight_scale": ("F8_E4M3", [2, 2]),
        "w.weight": ("BF16", [2, 2]),
    }
    with Checkpoint.open(write(tmp_path / "b.safetensors", tensors)) as base:
        layouts.check_companions(base.tensors)
