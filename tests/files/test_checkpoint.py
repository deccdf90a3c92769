from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rawfiles import write_tensors
from refusals import refused

from ltx2c.files import Checkpoint
from ltx2c.files.destination import Destination


def shard(folder: Path, name: str, *keys: str, metadata: dict[str, str] | None = None) -> None:
    write_tensors(folder / name, {key: ("U8", (1,), key[:1].encode()) for key in keys}, metadata)


def index(folder: Path, weight_map: Any, name: str = "model.safetensors.index.json", **fields: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 3}, "weight_map": weight_map, **fields}))
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    shard(tmp_path, "one.safetensors", "b", "a", metadata={"k": "1", "x": "x"})
    shard(tmp_path, "two.safetensors", "c", metadata={"k": "2"})
    index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    return tmp_path


def test_a_folder_or_its_index_opens_all_shards(sharded: Path) -> None:
    for path in (sharded, sharded / "model.safetensors.index.json"):
        with Checkpoint.open(path) as checkpoint:
            assert [file.path.name for file in checkpoint.files] == ["one.safetensors", "two.safetensors"]
            assert {key: tensor.read().tobytes() for key, tensor in checkpoint.tensors.items()} == {
                "b": b"b",
                "a": b"a",
                "c": b"c",
            }
            assert list(checkpoint.tensors) == ["b", "a", "c"]
            assert checkpoint.metadata == {"k": "1", "x": "x"}
            assert checkpoint.notes == ()


def test_a_folder_of_one_file_needs_no_index(tmp_path: Path) -> None:
    shard(tmp_path, "only.safetensors", "a")
    with Checkpoint.open(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a"] and checkpoint.index is None


def test_stray_shards_are_named_and_ignored(sharded: Path) -> None:
    shard(sharded, "old-00001.safetensors", "a", "z")
    with Checkpoint.open(sharded) as checkpoint:
        assert "z" not in checkpoint.tensors
        (note,) = checkpoint.notes
        assert "old-00001.safetensors" in note


def test_a_key_in_a_shard_that_the_index_does_not_give_for_it_is_named_and_left_out(sharded: Path) -> None:
    shard(sharded, "two.safetensors", "c", "a", "unlisted")
    with Checkpoint.open(sharded) as checkpoint:
        assert list(checkpoint.tensors) == ["b", "a", "c"]
        assert checkpoint.tensors["a"].file.path.name == "one.safetensors"
        assert [note.split(": ")[1].split()[0] for note in checkpoint.notes] == ["a", "unlisted"]


@pytest.mark.parametrize(
    "name",
    [
        "../one.safetensors",
        "/etc/passwd",
        "/one.safetensors",
        "sub/one.safetensors",
        "..",
        "",
        "one.bin",
        "a\\b.safetensors",
        "\0.safetensors",
    ],
)
def test_a_shard_name_that_could_lead_elsewhere_is_refused(name: str, sharded: Path) -> None:
    index(sharded, {"a": name})
    with refused("shard-name", "index.json"):
        Checkpoint.open(sharded)


def test_a_missing_shard_is_refused(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with refused("shard-missing", "two.safetensors"):
        Checkpoint.open(sharded)


def test_a_key_that_its_shard_lacks_is_refused(sharded: Path) -> None:
    index(sharded, {"a": "one.safetensors", "b": "one.safetensors", "zz": "two.safetensors"})
    with refused("shard-key-missing", "zz", "two.safetensors"):
        Checkpoint.open(sharded)


@pytest.mark.parametrize("name", ["a\0b.safetensors", "a\0b", "\ud800.safetensors"])
def test_a_name_that_no_file_can_have_is_refused(name: str, tmp_path: Path) -> None:
    shown = name.encode("unicode_escape").decode()
    with refused("bad-path", shown):
        Checkpoint.open(tmp_path / name)
    with refused("bad-path", shown):
        Destination.check(tmp_path / name, inputs=(), needed_bytes=1)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with refused("no-checkpoint"):
        Checkpoint.open(tmp_path)
    shard(tmp_path, "one.safetensors", "a")
    shard(tmp_path, "two.safetensors", "b")
    with refused("no-index", "one.safetensors", "two.safetensors"):
        Checkpoint.open(tmp_path)
    first = index(tmp_path, {"a": "one.safetensors"}, "one.safetensors.index.json")
    index(tmp_path, {"b": "two.safetensors"}, "two.safetensors.index.json")
    with refused("several-indexes", "one.safetensors.index.json", "two.safetensors.index.json"):
        Checkpoint.open(tmp_path)
    with Checkpoint.open(first) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("index-json", ""),
        ("index-json", "[]"),
        ("index-json", "{}"),
        ("index-json", '{"weight_map": {}}'),
        ("index-json", '{"weight_map": []}'),
        ("index-json", '{"weight_map": {"a": 1}}'),
        ("index-json", '{"weight_map": {"a": "one.safetensors"}} x'),
        ("index-json", '{"metadata": 1, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": [[]]}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": 1e999}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": -1e999}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"weight_map": {"a": "one.safetensors"}, "other": 1}'),
        ("index-json", '{"metadata": ' + "[" * 100_000),
        ("index-utf8", '{"weight_map": {"\\ud800": "one.safetensors"}}'),
        ("duplicate-key", '{"weight_map": {"a": "one.safetensors", "\\u0061": "two.safetensors"}}'),
        ("duplicate-key", '{"weight_map": {"a": "one.safetensors"}, "weight_map": {"a": "one.safetensors"}}'),
    ],
)
def test_a_malformed_index_is_refused(code: str, text: str, sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with refused(code, "index.json"):
        Checkpoint.open(sharded)


def test_plain_metadata_of_an_index_is_kept(sharded: Path) -> None:
    fields = {"total_size": 3.0, "big": 10**20, "yes": True, "none": None, "s": "ä", "neg": -1.5e3}
    index(sharded, {"a": "one.safetensors"}, metadata=fields)
    with Checkpoint.open(sharded) as checkpoint:
        assert checkpoint.index is not None and checkpoint.index.metadata == fields


def test_no_descriptor_is_left_open_by_a_refusal(sharded: Path) -> None:
    (sharded / "two.safetensors").write_bytes(b"")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with refused("empty"):
        Checkpoint.open(sharded)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
