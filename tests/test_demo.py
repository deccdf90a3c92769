"""The demo runs the real shapes end to end, and its check finds a single wrong byte."""

from __future__ import annotations

import json
import os
import types
from pathlib import Path

import pytest
from refusals import refused

from ltx2c import demo, synth
from ltx2c.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def test_the_real_layers_are_fused_and_found_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(folder), "--rank", "8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert facts["fuse"]["tensors"] == 145
    assert facts["fuse"]["tensors_fused"] == 62
    assert facts["untouched_checked"] == 145 - 62
    assert facts["weights_checked"] > 10 and facts["rows_checked"] >= 16 * facts["weights_checked"] - 32
    assert facts["kept"] and sorted(path.name for path in folder.iterdir()) == [
        "base.safetensors",
        "distilled-lora.safetensors",
        "fused.safetensors",
    ]


def test_one_wrong_byte_is_found(folder: Path) -> None:
    """Uses what the test before left: in a fused weight's first row, then in a tensor no pair touches."""
    made = synth.SynthReport(folder / "base.safetensors", folder / "distilled-lora.safetensors", 145, 124, 0)
    fused = folder / "fused.safetensors"
    demo._check(made, fused)
    with fused.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
    for key in ("proj_out.weight", "transformer_blocks.0.attn1.q_norm.weight"):
        position = start + header[f"model.diffusion_model.{key}"]["data_offsets"][0]
        with fused.open("r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 1]))
            file.flush()
            with pytest.raises(demo.MismatchError, match=key):
                demo._check(made, fused)
            file.seek(position)
            file.write(bytes([byte]))


def test_a_folder_that_holds_one_is_refused(folder: Path) -> None:
    with refused("output-exists", "fused.safetensors"):
        demo.demo(folder)


def test_too_little_room_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = types.SimpleNamespace(f_bavail=3_000_000, f_bfree=3_000_000, f_blocks=9_000_000, f_frsize=1000)
    monkeypatch.setattr(os, "statvfs", lambda folder: free)
    with refused("no-room", "fused.safetensors"):
        demo.demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_number_out_of_range_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    with refused("out-of-range", "99"):
        demo.demo(tmp_path / "made", blocks=99)
    assert not (tmp_path / "made").exists()
