"""What went wrong in tools that people use, each report as a small file with the right answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from layout_cases import CASES, SHAPE, assert_holds, flat
from refusals import refused
from tensor_files import pair, weight, write

from ltx2c import Adapter, Checkpoint, fuse_checkpoint, plan_fuse, reference
from ltx2c.cli import main

Tensors = dict[str, np.ndarray]


def strengths(path: Path, given: float = 1.0) -> list[float]:
    with Adapter.open(path) as adapter:
        return [delta.effective_strength(given) for delta in adapter.deltas]


def fused(folder: Path, base: Tensors, lora: Tensors, strength: float = 1.0, **how: Any) -> Tensors:
    paths = write(folder / "base.safetensors", base), write(folder / "lora.safetensors", lora)
    fuse_checkpoint(paths[0], [(paths[1], strength)], folder / "out.safetensors", **how)
    with Checkpoint.open(folder / "out.safetensors") as out:
        return {key: tensor.read() for key, tensor in out.tensors.items()}


def test_alpha_8_at_rank_64_is_an_eighth(tmp_path: Path) -> None:
    """sglang#17086, FastVideo#870: alpha ignored."""
    lora = {**pair("x", 80, 64, 80), "x.alpha": np.full((), 8, ml_dtypes.bfloat16)}
    assert strengths(write(tmp_path / "a.safetensors", lora)) == [0.125]


def test_rslora_of_rank_16_and_alpha_16_is_4(tmp_path: Path) -> None:
    """aprender#2189: rsLoRA ignored."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 16, "use_rslora": True}))
    write(tmp_path / "adapter_model.safetensors", pair("base_model.model.x", 20, 16, 20))
    assert strengths(tmp_path) == [4.0]


def test_mixed_ranks_without_alpha_are_all_1(tmp_path: Path) -> None:
    """diffusers#14409: alpha from the first key for all; LightX2V: 1 / rank where there is none."""
    lora = {**pair("x", 80, 64, 80), **pair("y", 80, 16, 80)}
    assert strengths(write(tmp_path / "a.safetensors", lora)) == [1.0, 1.0]


def test_mixed_ranks_with_alphas_have_each_its_own(tmp_path: Path) -> None:
    """diffusers#14409."""
    alpha = np.full((), 32, np.float32)
    lora = {**pair("x", 80, 64, 80), "x.alpha": alpha, **pair("y", 80, 16, 80), "y.alpha": alpha}
    assert strengths(write(tmp_path / "a.safetensors", lora)) == [0.5, 2.0]


def test_an_f32_base_takes_a_bf16_adapter_and_keeps_its_dtype(tmp_path: Path) -> None:
    """llama.cpp#10049: dtype changed."""
    base, lora = {"x.weight": weight(6, 5, dtype=np.float32)}, pair("x", 6, 2, 5)
    values = fused(tmp_path, base, lora, 0.5)["x.weight"]
    terms = [(lora["x.lora_A.weight"], lora["x.lora_B.weight"], 0.5)]
    assert values.dtype == np.float32
    assert values.tobytes() == reference.fuse_tensor(base["x.weight"], terms).tobytes()


@pytest.mark.parametrize("shape", [(16, 16), (16, 12)])
@pytest.mark.parametrize("by_column", [False, True])
def test_dora_is_rescaled_along_the_axis_that_its_shape_says(
    tmp_path: Path, shape: tuple[int, int], by_column: bool
) -> None:
    """ComfyUI#12938: broadcast along the wrong axis on square weights."""
    length = shape[1] if by_column else shape[0]
    m = np.linspace(1, 2, length, dtype=np.float32).reshape((1, length) if by_column else (length, 1))
    lora = {**pair("x", shape[0], 2, shape[1]), "x.dora_scale": m}
    values = fused(tmp_path, {"x.weight": weight(*shape)}, lora)["x.weight"].astype(np.float64)
    norms = np.sqrt((values**2).sum(axis=0 if by_column else 1))
    assert np.allclose(norms, m.ravel(), rtol=1e-2)


@pytest.mark.parametrize("layout", ["fp8", "fp8-scaled", "fp8-block"])
def test_an_fp8_base_is_fused_by_its_scales_in_its_own_shape_and_moves(tmp_path: Path, layout: str) -> None:
    """LTX-2#172: without its scale, 770 times too large; #293: stored transposed; mflux#440: lost in integer codes."""
    case, lora = CASES[layout], pair("x", SHAPE[0], 3, SHAPE[1], dtype=np.float32)
    before = case.make(1)
    found = fused(tmp_path, flat({"x": before}), lora, 0.8)
    wanted = case.expected(before, [(lora["x.lora_A.weight"], lora["x.lora_B.weight"], 0.8)], "ltx")
    assert_holds(found, flat({"x": wanted}))
    assert (
        found["x.weight"].shape == SHAPE and (found["x.weight"].view(np.uint8) != before["weight"].view(np.uint8)).any()
    )


@pytest.mark.parametrize("unmatched", ["error", "warn"])
def test_no_key_matches_and_nothing_is_written(tmp_path: Path, unmatched: str) -> None:
    """LTX-Video#275, sd-scripts#1612, #1523: an unchanged model, with no warning."""
    with refused("no-pair-matches", "0 of 1 deltas matched"):
        fused(tmp_path, {"x.weight": weight(4, 4)}, pair("elsewhere", 4, 2, 4), unmatched=unmatched)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_part_matches_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LightX2V#1246, SimpleTuner#2349: the rest is dropped silently."""
    base = write(tmp_path / "base.safetensors", {"x.weight": weight(4, 4)})
    rest = [key for n in range(5) for key in pair(f"elsewhere.{n}", 4, 2, 4)]
    lora = write(tmp_path / "lora.safetensors", {**pair("x", 4, 2, 4), **dict.fromkeys(rest, weight(4, 4))})
    arguments = ["fuse", str(base), "--lora", str(lora), "-o", str(tmp_path / "out.safetensors"), "--json"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["keys"] == rest
    assert rest[0] in printed.err and "(10 keys)" in printed.err and rest[9] not in printed.err
    assert "1 of 6 deltas matched" in printed.err and printed.err.count("\n") == 1
    assert not (tmp_path / "out.safetensors").exists()


def test_the_base_is_not_changed(tmp_path: Path) -> None:
    """tt-metal#44543: the caller's base changed in place."""
    base = write(tmp_path / "base.safetensors", {"x.weight": weight(4, 4)})
    before = base.read_bytes()
    fuse_checkpoint(base, [(write(tmp_path / "a.safetensors", pair("x", 4, 2, 4)), 1.0)], tmp_path / "out.safetensors")
    assert base.read_bytes() == before


def test_metadata_and_other_tensors_stay(tmp_path: Path) -> None:
    """musubi-tuner fork#85, ComfyUI#11690: metadata and non-target tensors lost."""
    tensors = {"x.weight": weight(4, 4), "vae.x": weight(3, dtype=np.float32)}
    base = write(tmp_path / "base.safetensors", tensors, {"config": '{"a": 1}'})
    fuse_checkpoint(base, [(write(tmp_path / "a.safetensors", pair("x", 4, 2, 4)), 1.0)], tmp_path / "out.safetensors")
    with Checkpoint.open(tmp_path / "out.safetensors") as out:
        assert out.metadata["config"] == '{"a": 1}'
        assert out.tensors["vae.x"].read().tobytes() == tensors["vae.x"].tobytes()


@pytest.mark.parametrize(("shape", "code"), [((3, 4), "rank-mismatch"), ((2, 5), "shape-mismatch")])
def test_a_rank_or_shape_that_does_not_fit_is_refused(tmp_path: Path, shape: tuple[int, int], code: str) -> None:
    """kohya_ss#1970: asserts, then "Done"."""
    lora = {"x.lora_A.weight": weight(*shape), "x.lora_B.weight": weight(4, 2)}
    with refused(code, "x.lora_A.weight"):
        fused(tmp_path, {"x.weight": weight(4, 4)}, lora)
    assert not (tmp_path / "out.safetensors").exists()


def test_keys_of_diffusers_and_kohya_are_found_without_metadata(tmp_path: Path) -> None:
    """diffusers' own LTX-2 loader fails on .alpha and lora_down/up, and loads nothing for kohya's names."""
    base = {f"transformer_blocks.0.attn1.to_{part}.weight": weight(4, 4) for part in "qk"}
    lora = {
        **{key: value for key, value in pair("transformer_blocks.0.attn1.to_q", 4, 2, 4).items()},
        "lora_unet_transformer_blocks_0_attn1_to_k.lora_down.weight": weight(2, 4),
        "lora_unet_transformer_blocks_0_attn1_to_k.lora_up.weight": weight(4, 2),
        "lora_unet_transformer_blocks_0_attn1_to_k.alpha": np.ones((1,), np.int64),
    }
    path = write(tmp_path / "base.safetensors", base)
    plan = plan_fuse(path, [(write(tmp_path / "a.safetensors", lora), 1.0)])
    assert [one.effective_strength for deltas in plan.fusions.values() for one in deltas] == [1.0, 0.5]
