from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rawfiles import write_tensors
from refusals import refused
from safetensors import safe_open

import ltx2c
from ltx2c.files import Checkpoint, TensorFile

E2E = Path(__file__).parent / "data" / "e2e"
ADAPTERS = [
    (E2E / "adapter0.safetensors", 0.5),
    (E2E / "adapter1.safetensors", 0.8),
    (E2E / "adapter2.safetensors", -0.3),
]


def assert_same_tensors(path: Path, expected: Path) -> None:
    with TensorFile.open(path) as ours, TensorFile.open(expected) as theirs:
        assert ours.tensors.keys() == theirs.tensors.keys()
        for key, tensor in ours.tensors.items():
            assert (tensor.dtype, tensor.shape) == (theirs.tensors[key].dtype, theirs.tensors[key].shape)
            assert tensor.read().tobytes() == theirs.tensors[key].read().tobytes(), key


def test_three_adapters_give_upstreams_own_bytes(tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    report = ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, out, unmatched="warn")
    assert_same_tensors(out, E2E / "expected_a0_a1_a2.safetensors")
    assert report.out == out and len(report.unmatched) == 2
    assert json.loads(json.dumps(report.as_json()))["out"] == str(out)
    assert list(tmp_path.iterdir()) == [out]


def test_one_adapter_gives_upstreams_own_bytes(tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS[:1], out)
    assert_same_tensors(out, E2E / "expected_a0.safetensors")


def test_a_key_without_a_home_is_refused_unless_asked_for(tmp_path: Path) -> None:
    with refused("unmatched-key", "adapter1"):
        ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, tmp_path / "fused.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_output_keeps_order_and_metadata_and_says_how_it_came_about(tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, out, unmatched="warn")
    with TensorFile.open(E2E / "base.safetensors") as base, TensorFile.open(out) as fused:
        assert list(fused.tensors) == list(base.tensors)
        assert base.metadata.items() <= fused.metadata.items()
        entry = json.loads(fused.metadata["ltx2c"])
        assert entry["version"] == 1
        listed = [(one["name"], one["strength"]) for one in entry["adapters"]]
        assert listed == [(path.name, strength) for path, strength in ADAPTERS]
        assert entry["base"] == {"name": "base.safetensors", "size": base.size, "header_sha256": base.header_sha256}
        with TensorFile.open(ADAPTERS[0][0]) as adapter:
            first = entry["adapters"][0]
            assert first["header_sha256"] == adapter.header_sha256 and first["size"] == adapter.size


def test_facts_of_the_base_that_fusing_makes_untrue_are_left_out(tmp_path: Path) -> None:
    stale = {"modelspec.hash_sha256": "0x1", "modelspec.date": "2026", "sshs_model_hash": "2", "sshs_legacy_hash": "3"}
    with TensorFile.open(E2E / "base.safetensors") as file:
        tensors = {key: (tensor.dtype, tensor.shape, tensor.read().tobytes()) for key, tensor in file.tensors.items()}
    base = write_tensors(tmp_path / "base.safetensors", tensors, {**stale, "modelspec.title": "kept"})
    for shard in (None, 1 << 30):
        out = tmp_path / f"out{shard}"
        ltx2c.fuse_checkpoint(base, ADAPTERS[:1], out, max_shard_bytes=shard)
        with Checkpoint.open(out) as fused:
            assert set(fused.metadata) == {"modelspec.title", "ltx2c"}


def test_execute_is_given_a_plan_and_opens_the_files_again(tmp_path: Path) -> None:
    plan = ltx2c.plan_fuse(E2E / "base.safetensors", ADAPTERS, unmatched="warn")
    ltx2c.execute(plan, tmp_path / "one")
    ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, tmp_path / "two", unmatched="warn")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_fused_file_opens_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, out, unmatched="warn")
    with TensorFile.open(out) as fused:
        keys = set(fused.tensors)
    with safe_open(out, "numpy") as file:
        assert set(file.keys()) == keys


def test_the_same_inputs_give_the_same_file(tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("two", 3)):
        ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS, tmp_path / name, unmatched="warn", threads=threads)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("strength", [0, -0.0])
def test_strength_zero_alone_gives_the_bases_bytes(strength: float, tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    report = ltx2c.fuse_checkpoint(E2E / "base.safetensors", [(ADAPTERS[0][0], strength)], out)
    assert report.tensors_fused == 0
    assert_same_tensors(out, E2E / "base.safetensors")


@pytest.mark.parametrize(
    "adapters", ["a.safetensors", ["ab"], [("a", 1.0, 2)], ("a", 0.5), [(1, 0.5)], [b"ab"], [None]]
)
def test_what_is_no_adapter_with_its_strength_is_refused(adapters: Any, tmp_path: Path) -> None:
    base = E2E / "base.safetensors"
    with refused("bad-adapter-argument", "an adapter is (path, strength), not "):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out")
    with refused("bad-adapter-argument", "an adapter is (path, strength), not "):
        ltx2c.verify_checkpoint(base, base, adapters)


def test_one_digest_is_no_sequence_of_them(tmp_path: Path) -> None:
    with refused("bad-sha256", "not one string", "0" * 64):
        ltx2c.fuse_checkpoint(E2E / "base.safetensors", ADAPTERS[:1], tmp_path / "out", expect_sha256="0" * 64)
    assert not list(tmp_path.iterdir())
