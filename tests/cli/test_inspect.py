"""``inspect`` tells what a file is without being told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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
    (unmatched,) = facts["against"]["unmatched"]
    assert unmatched["key"] == "diffusion_model.not_there.lora_A.weight"
    assert unmatched["nearest"].endswith(".weight")
    assert "not_there" in facts["against"]["refusal"]


def test_an_adapter_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect(capsys, E2E / "adapter0.safetensors", "--against", E2E / "base.safetensors")

    assert facts["against"]["unmatched"] == []
    assert facts["against"]["refusal"] is None


def test_a_key_that_is_not_read_is_unmatched_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factors = load_file(E2E / "adapter0.safetensors")
    save_file(factors | {"lora_unet_x.lora_down.weight": np.zeros((2, 3), np.float32)}, tmp_path / "odd.safetensors")

    match = inspect(capsys, tmp_path / "odd.safetensors", "--against", E2E / "base.safetensors")["against"]
    assert [entry["key"] for entry in match["unmatched"]] == ["lora_unet_x.lora_down.weight"]
    assert "lora_unet_x" in match["refusal"] and match["unmatched"][0]["nearest"]


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
    assert [entry["nearest"] is None for entry in match["unmatched"]] == [False] * 12 + [True] * 3


def test_a_person_reads_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(E2E / "adapter1.safetensors"), "--against", str(E2E / "base.safetensors")]) == 0
    text = capsys.readouterr().out

    for fact in ("an adapter of 16 pairs", "4 x 13, 2 x 3", "none x 16", "downscale 2", "15 of 16", "would be refused"):
        assert fact in text
    assert "more (--json has them all)" in text


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
