"""Synthesised files: the inventory's names and shapes, values like trained ones, whole files or none.

The model is the real one with its layers cut down to a few rows (the demo's tests write real shapes).
"""

from __future__ import annotations

import errno
import hashlib
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from safetensors import safe_open

from ltx2c import Checkpoint, fuse_checkpoint, inventory
from ltx2c.errors import RefusedError
from ltx2c.files import linux, staging
from ltx2c.files.temporaries import is_temporary
from ltx2c.layouts import detect
from ltx2c.progress import Progress
from ltx2c.synth import synth

REAL_SECTIONS = inventory._sections()


def cut_down(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    def small(section: dict[str, Any]) -> dict[str, Any]:
        tensors = [(key, dtype, [min(n, most) for n in shape]) for key, dtype, shape in section["tensors"]]
        return {**section, "tensors": tensors}

    sections = [small(section) for section in REAL_SECTIONS]
    monkeypatch.setattr(inventory, "_sections", lambda: sections)


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_down(monkeypatch, 96)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_hold_the_inventory(tmp_path: Path) -> None:
    report = synth(tmp_path / "made", blocks=6, rank=16)

    for path, expected in (
        (report.base, inventory.base_tensors(6)),
        (report.adapter, inventory.adapter_tensors(6, 16)),
    ):
        with safe_open(path, "numpy") as file:
            found = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            assert file.metadata()["model_version"] == "2.5.0"
            assert found == {tensor.key: tensor.shape for tensor in expected}
    assert report.bytes_written == report.base.stat().st_size + report.adapter.stat().st_size
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "base.safetensors",
        "distilled-lora.safetensors",
    ]


def test_values_are_like_trained_ones(tmp_path: Path) -> None:
    report = synth(tmp_path, blocks=1, rank=450)
    block = "model.diffusion_model.transformer_blocks.0."
    with safe_open(report.base, "numpy") as base, safe_open(report.adapter, "numpy") as adapter:
        weight = base.get_tensor(block + "attn1.to_q.weight").astype(np.float32)
        norm = base.get_tensor(block + "attn1.q_norm.weight").astype(np.float32)
        table = base.get_tensor(block + "scale_shift_table_a2v_ca_video")
        a = adapter.get_tensor("diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight").astype(np.float32)
        b = adapter.get_tensor("diffusion_model.transformer_blocks.0.attn1.to_q.lora_B.weight").astype(np.float32)

    assert weight.std() == pytest.approx(0.02, rel=0.05) and abs(weight.mean()) < 0.001
    assert norm.mean() == pytest.approx(1.0, abs=0.05)
    assert table.dtype == np.float32 and table.std() == pytest.approx(0.3, rel=0.2)
    assert 0 < (b @ a).std() < 0.1 * weight.std()
    assert len(np.unique(weight[0])) > 48


def test_a_seed_gives_the_same_bytes_on_any_machine(tmp_path: Path) -> None:
    first = synth(tmp_path / "1", blocks=2, rank=4, seed=7)
    again = synth(tmp_path / "2", blocks=2, rank=4, seed=7)
    other = synth(tmp_path / "3", blocks=2, rank=4, seed=8)

    assert (
        sha256(first.base) == sha256(again.base) == "9ee4a91803fbc2feafd19d707b9780cd621dc5a88e71b0d3d5530aa4165ff9ab"
    )
    assert (
        sha256(first.adapter)
        == sha256(again.adapter)
        == "6c884fc68ecf8fe8944af6806239b275b8b10c69ef63b1b5d11cb7f05d74436c"
    )
    assert sha256(other.base) != sha256(first.base)


LAYOUTS = {"fp8": "fp8", "fp8-scaled": "fp8-scaled", "fp8-row": "fp8-row", "fp8-block": "fp8-block"}


@pytest.mark.parametrize(("layout", "found"), [*LAYOUTS.items(), ("nvfp4", "nvfp4-swizzled")])
def test_layouts_hold_the_values_of_the_bf16_base(
    layout: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_down(monkeypatch, 144)  # more than one block of 128, and two of 16 to a ragged tile
    plain = synth(tmp_path / "bf16", blocks=1, rank=2)
    report = synth(tmp_path / layout, blocks=1, rank=2, layout=layout)
    with Checkpoint.open(plain.base) as wanted, Checkpoint.open(report.base) as base:
        weights = [key for key, tensor in base.tensors.items() if tensor.dtype != wanted.tensors.get(key, tensor).dtype]
        assert len(weights) > 30
        if layout == "fp8-block":  # one scale for a whole weight is that of fp8-scaled
            weights = [key for key in weights if max(wanted.tensors[key].shape) > 128]
            assert weights
        assert not [key for key in weights if "norm" in key or not key.endswith("weight")]
        for key in weights:
            stored = detect(base.tensors, key, metadata=base.metadata)
            assert stored.layout.name == found and stored.shape == wanted.tensors[key].shape
            decoded = np.empty(stored.shape, np.float32)
            companions = {role: base.tensors[spec.key].read() for role, spec in stored.companions.items()}
            stored.layout.decode(base.tensors[key].read(), companions, slice(0, len(decoded)), decoded, 1)
            values = wanted.tensors[key].read().astype(np.float32)
            step = 0.3 if layout == "nvfp4" else 0.07
            assert np.abs(decoded - values).max() <= step * np.abs(values).max()
        for key, tensor in base.tensors.items():
            if key in wanted.tensors and tensor.dtype == wanted.tensors[key].dtype:
                assert tensor.read().tobytes() == wanted.tensors[key].read().tobytes()
    assert fuse_checkpoint(report.base, [(report.adapter, 1.0)], tmp_path / "fused").tensors_fused > 30


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ({"layout": "int8"}, "bad-choice", "int8"),
        ({"kind": "glora"}, "bad-choice", "glora"),
        ({"blocks": 0}, "out-of-range", "0"),
        ({"blocks": 49}, "out-of-range", "49"),
        ({"rank": 0}, "out-of-range", "0"),
        ({"seed": -1}, "out-of-range", "-1"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, arguments: dict[str, int], code: str, named: str) -> None:
    with refused(code, named):
        synth(tmp_path / "made", **arguments)
    assert not (tmp_path / "made").exists()


def test_a_file_in_the_way_is_refused_unless_forced(tmp_path: Path) -> None:
    adapter = tmp_path / "distilled-lora.safetensors"
    adapter.write_text("mine")

    with pytest.raises(RefusedError, match=r"distilled-lora\.safetensors"):
        synth(tmp_path, blocks=1)
    assert adapter.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [adapter]

    report = synth(tmp_path, blocks=1, force=True)
    assert report.adapter.stat().st_size > 4


def test_too_little_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "statvfs", lambda folder: types.SimpleNamespace(f_bavail=1, f_bfree=1, f_blocks=9, f_frsize=1000)
    )

    with pytest.raises(RefusedError, match="1000 free"):
        synth(tmp_path, blocks=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, fault: BaseException) -> None:
    def stop_late(now: Progress) -> None:
        if now.bytes_done > 0.9 * now.bytes_total:
            raise fault

    with pytest.raises(type(fault)) as raised:
        synth(tmp_path, blocks=1, progress=stop_late)
    assert list(tmp_path.iterdir()) == []
    if isinstance(raised.value, OSError):
        assert "distilled-lora" in raised.value.filename


def test_files_are_durable_before_they_get_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["base.safetensors", "distilled-lora.safetensors"]
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, linux.rename_new

    def known(name: str) -> str:
        return next((out for out in names if is_temporary(out, name)), name)

    def sync(descriptor: int) -> None:
        events.append(("sync", known(Path(f"/proc/self/fd/{descriptor}").readlink().name)))
        fsync(descriptor)

    def move(folder: int, source: str, target: str) -> None:
        if target in names:  # and not one that is only tried
            events.append(("rename", target))
        rename(folder, source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(linux, "rename_new", move)
    synth(tmp_path, blocks=1, rank=1)
    assert events[:4] == [("sync", names[0]), ("sync", names[1]), ("rename", names[0]), ("rename", names[1])]


@pytest.mark.parametrize("force", [False, True])
def test_where_the_second_file_cannot_be_put_in_place_the_first_is_taken_back(
    force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = tmp_path / "base.safetensors", tmp_path / "distilled-lora.safetensors"
    if force:
        base.write_text("old")

    def appear(now: Progress) -> None:
        if now.bytes_done == now.bytes_total:
            adapter.mkdir()
            monkeypatch.setattr(staging, "keep_aside", refuse)

    def refuse(*words: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises((OSError, RefusedError), match=r"denied|appeared"):
        synth(tmp_path, blocks=1, rank=1, progress=appear, force=force)
    assert {*tmp_path.iterdir()} == ({base, adapter} if force else {adapter})
    assert not force or base.read_text() == "old"


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = synth(tmp_path, blocks=1, rank=2, progress=seen.append)

    assert seen[-1] == (report.bytes_written, report.bytes_written, 0, 0)
    assert seen == sorted(seen)
