"""``inspect`` tells what a file is without being told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tensor_files import pair, weight, write

from ltx2c import Checkpoint
from ltx2c.cli import main

E2E = Path(__file__).parents[1] / "data" / "e2e"


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_a_base(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect(capsys, E2E / "base.safetensors")

    assert facts["kind"] == "checkpoint"
    assert (facts["tensors"], facts["parameters"]) == (88, 91_724)
    assert facts["dtypes"] == {"BF16": 85, "F32": 3}
    assert facts["metadata"]["model_version"] == "2.5.0"
    assert sum(entry["count"] for entry in facts["keys"]) == 88
    pattern = "model.diffusion_model.transformer_blocks.*.attn1.to_q.weight"
    assert {"pattern": pattern, "dtype": "BF16", "shape": [48, 48], "count": 2} in facts["keys"]


def test_an_adapter_against_its_base(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect(capsys, E2E / "adapter1.safetensors", "--against", E2E / "base.safetensors")

    assert facts["kind"] == "adapter"
    assert (facts["pairs"], facts["alphas"], facts["ranks"]) == (16, {"none": 16}, {"4": 13, "2": 3})
    assert facts["reference_downscale_factor"] == 2
    assert facts["against"]["matched"] == 15
    unmatched, _ = facts["against"]["unmatched"]
    assert unmatched["key"] == "diffusion_model.not_there.lora_A.weight"
    assert unmatched["nearest"].endswith(".weight")
    assert "not_there" in facts["against"]["refusal"]


def test_an_adapter_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect(capsys, E2E / "adapter0.safetensors", "--against", E2E / "base.safetensors")

    assert facts["against"]["unmatched"] == []
    assert facts["against"]["refusal"] is None


def test_a_key_that_is_not_read_is_unmatched_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factors = load_file(E2E / "adapter0.safetensors")
    save_file(factors | {"lora_te_x.something": np.zeros((2, 3), np.float32)}, tmp_path / "odd.safetensors")

    match = inspect(capsys, tmp_path / "odd.safetensors", "--against", E2E / "base.safetensors")["against"]
    assert [entry["key"] for entry in match["unmatched"]] == ["lora_te_x.something"]
    assert "lora_te_x" in match["refusal"] and match["unmatched"][0]["nearest"]


def test_only_the_first_dozen_of_a_foreign_adapter_are_given_a_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {"A": (2, 3), "B": (3, 2)}
    factors = {
        f"m{n:02}.lora_{f}.weight": np.zeros(shape, np.float32) for n in range(15) for f, shape in shapes.items()
    }
    save_file(factors, tmp_path / "foreign.safetensors")

    match = inspect(capsys, tmp_path / "foreign.safetensors", "--against", E2E / "base.safetensors")["against"]
    assert match["matched"] == 0
    assert [entry["nearest"] is None for entry in match["unmatched"]] == [False] * 12 + [True] * 18


def test_a_person_reads_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(E2E / "adapter1.safetensors"), "--against", str(E2E / "base.safetensors")]) == 0
    text = capsys.readouterr().out

    for fact in (
        "an adapter of 16 deltas",
        "4 x 13, 2 x 3",
        "none x 16",
        "downscale 2",
        "15 of 16",
        "would be refused",
    ):
        assert fact in text
    assert "more (--json has them all)" in text
    assert "writer    Lightricks' trainer" in text and "its names are LTX-2's" in text


def test_factors_that_make_no_adapter_are_described_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half.safetensors"
    save_file({"x.lora_A.weight": np.zeros((2, 3), np.float32)}, half)

    facts = inspect(capsys, half)
    assert facts["kind"] == "checkpoint"
    assert any("has no B" in note for note in facts["notes"])


def test_a_base_is_not_held_against_a_base(capsys: pytest.CaptureFixture[str]) -> None:
    base = str(E2E / "base.safetensors")
    assert main(["inspect", base, "--against", base]) == 2
    assert "no pair" in capsys.readouterr().err


def test_a_hostile_name_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / "hostile.safetensors"
    save_file({"a\x1b[2J\nb": np.zeros(1, np.float32)}, hostile, metadata={"m\x1b": "v\n"})

    assert main(["inspect", str(hostile)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b" in out


def test_every_delta_with_its_effective_strength(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factors = {
        "lycoris_x.hada_w1_a": weight(4, 2),
        "lycoris_x.hada_w1_b": weight(2, 4),
        "lycoris_x.hada_w2_a": weight(4, 2),
        "lycoris_x.hada_w2_b": weight(2, 4),
        "lycoris_x.alpha": np.full((), 1, np.float32),
        "lycoris_y.lora_down.weight": weight(2, 4),
        "lycoris_y.lora_up.weight": weight(4, 2),
        "lycoris_y.dora_scale": weight(4, 1),
    }
    facts = inspect(capsys, write(tmp_path / "l.safetensors", factors))
    assert (facts["writer"], facts["kinds"]) == ("LyCORIS", {"loha": 1, "lora+dora": 1})
    assert [(one["module"], one["alpha"], one["effective_strength"]) for one in facts["deltas"]] == [
        ("x", 1.0, 0.5),
        ("y", None, 1.0),
    ]


class TestNorms:
    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        names = [f"transformer_blocks.{block}.attn1.to_{part}" for block in range(3) for part in "qk"]
        base = {f"{name}.weight": weight(40, 30, seed=n) for n, name in enumerate([*names, "proj_out"])}
        lora = {key: value for name in [*names, "proj_out"] for key, value in pair(name, 40, 4, 30).items()}
        lora["transformer_blocks.1.attn1.to_q.diff"] = weight(40, 30, seed=50)
        del lora["transformer_blocks.1.attn1.to_q.lora_A.weight"], lora["transformer_blocks.1.attn1.to_q.lora_B.weight"]
        return write(tmp_path / "lora.safetensors", lora), write(tmp_path / "base.safetensors", base)

    def test_are_the_deltas_over_the_weights(
        self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        lora, base = files
        facts = inspect(capsys, lora, "--against", base, "--norms")
        factors, weights = load_file_bf16(lora), load_file_bf16(base)
        assert [norm["key"] for norm in facts["norms"]] == list(weights)
        for norm in facts["norms"]:
            name = norm["key"].removesuffix(".weight")
            delta = factors.get(f"{name}.diff")
            if delta is None:
                delta = factors[f"{name}.lora_B.weight"] @ factors[f"{name}.lora_A.weight"]
            expected = np.linalg.norm(delta) / np.linalg.norm(weights[norm["key"]])
            assert norm["relative"] == pytest.approx(expected, rel=1e-4)

    def test_are_read_by_a_person(self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(files[0]), "--against", str(files[1]), "--norms"]) == 0
        text = capsys.readouterr().out
        assert "transformer_blocks.*.attn1.to_q.weight" in text and "by block" in text and "proj_out" in text

    def test_need_a_base(self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(files[0]), "--norms"]) == 2
        assert "a base" in capsys.readouterr().err

    def test_are_drawn(self, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
        picture = tmp_path / "norms.png"
        assert main(["inspect", str(files[0]), "--against", str(files[1]), "--plot", str(picture)]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert main(["inspect", str(files[0]), "--against", str(files[1]), "--plot", str(tmp_path / "x.odd")]) == 2


def load_file_bf16(path: Path) -> dict[str, np.ndarray]:
    with Checkpoint.open(path) as checkpoint:
        return {key: tensor.read().astype(np.float32) for key, tensor in checkpoint.tensors.items()}


def test_how_weights_in_codes_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {
        "a.weight": ("F8_E4M3", [200, 130]),
        "a.weight_scale": ("F32", [2, 2]),
        "b.weight": ("F8_E4M3", [6, 5]),
        "b.bias": ("F8_E4M3", [6]),
        "c.weight": ("U8", [16, 8]),
        "c.weight_scale": ("F8_E4M3", [128, 4]),
        "c.weight_scale_2": ("F32", []),
        "d.weight": ("I8", [6, 5]),
        "e.qweight": np.zeros((6, 5), np.int32),
        "f.weight": weight(6, 5),
        "scaled_fp8": ("F8_E4M3", [0]),
    }
    path = write(tmp_path / "base.safetensors", tensors)
    assert inspect(capsys, path)["layouts"] == {
        "fp8": 2,
        "fp8-block": 1,
        "nvfp4, its scales in an order that it does not say": 1,
        "no rule": 1,
        "packed integers": 1,
    }
    assert main(["inspect", str(path)]) == 0
    assert "\n  layouts   fp8 x 2, fp8-block x 1, nvfp4" in capsys.readouterr().out
    assert inspect(capsys, write(path, {"f.weight": weight(6, 5)}))["layouts"] == {}
