from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rawfiles import write_tensors
from refusals import refused
from tensor_files import write

from ltx2c.files import Checkpoint
from ltx2c.files.destination import Destination
from ltx2c.files.index import read_index


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
        (note,) = checkpoint.notes
        assert "two.safetensors: a is not there by the index" in note and "(2 such)" in note


@pytest.mark.parametrize(
    "name",
    [
        "../one.safetensors",
        "/etc/passwd",
        "/one.safetensors",
        "sub/../one.safetensors",
        "./one.safetensors",
        "sub//one.safetensors",
        "sub/.safetensors",
        "sub/",
        "s\\ub/one.safetensors",
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
        ("index-json", '{"metadata": [], "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": [1,]}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": [1 2]}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": [NaN]}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": {"a" 1}}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": ' + "[" * 33 + "]" * 33 + '}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": [' + "[]," * 140_000 + '1]}, "weight_map": {"a": "one.safetensors"}}'),
        ("duplicate-key", '{"metadata": {"m": {"a": 1, "a": 1}}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": 1e999}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"metadata": {"m": -1e999}, "weight_map": {"a": "one.safetensors"}}'),
        ("index-json", '{"weight_map": {"a": "one.safetensors"}, "other": }'),
        ("index-json", '{"weight_map": {"a": "one.safetensors" "b": "one.safetensors"}}'),
        ("duplicate-key", '{"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "a": "two.safetensors"}}'),
        ("shard-name", '{"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "../one.safetensors"}}'),
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


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"total_size": 3.0, "big": 10**20, "yes": True, "none": None, "s": "ä", "neg": -1.5e3}},
        {"metadata": {"dtypes": ["bf16", []], "quantization": {"bits": 8, "groups": [{"size": 64}]}}},
        {"metadata": {}, "dtype": "float16"},
        {"metadata": None, "others": [1, {"a": None}]},
    ],
    ids=["plain", "nested", "field", "null"],
)
def test_what_an_index_says_beside_its_map_is_kept(fields: dict[str, Any], sharded: Path) -> None:
    path = index(sharded, {"a": "one.safetensors"}, **fields)
    others = {name: value for name, value in fields.items() if name != "metadata"}
    for _ in range(2):
        read = read_index(path)
        assert read.metadata == (fields["metadata"] or {}) and read.others == others
        assert read.weight_map == {"a": "one.safetensors"}
        path.write_bytes(read.as_bytes())


def test_an_index_without_metadata_is_read(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text('{"weight_map":{"a":"one.safetensors"}}')
    with Checkpoint.open(sharded) as checkpoint:
        assert checkpoint.index is not None and checkpoint.index.metadata == {}


def test_a_variants_index_opens_its_shards(sharded: Path) -> None:
    plain = sharded / "model.safetensors.index.json"
    variant = plain.rename(sharded / "model.safetensors.index.fp16.json")
    for path in (sharded, variant):
        with Checkpoint.open(path) as checkpoint:
            assert list(checkpoint.tensors) == ["b", "a", "c"] and checkpoint.index_name == variant.name
    index(sharded, {"a": "one.safetensors"})
    with refused("several-variants", plain.name, variant.name):
        Checkpoint.open(sharded)
    for named, name, keys in (("", plain.name, ["a"]), ("fp16", variant.name, ["b", "a", "c"])):
        with Checkpoint.open(sharded, variant=named) as checkpoint:
            assert checkpoint.index_name == name and list(checkpoint.tensors) == keys
    plain.unlink()
    index(sharded, {"a": "one.safetensors"}, "model.safetensors.index.bf16.json")
    with refused("several-variants", "index.bf16.json", "index.fp16.json"):
        Checkpoint.open(sharded)
    with refused("no-variant", "fp8", "index.bf16.json", "index.fp16.json"):
        Checkpoint.open(sharded, variant="fp8")


def test_single_files_of_several_variants_are_told_apart_and_versions_are_none(tmp_path: Path) -> None:
    for name in ("diffusion_pytorch_model", "diffusion_pytorch_model.fp16"):
        write(tmp_path / f"{name}.safetensors", {name: ("F32", [1])})
    with refused("several-variants", "diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.safetensors"):
        Checkpoint.open(tmp_path)
    for variant, key in (("fp16", "diffusion_pytorch_model.fp16"), ("", "diffusion_pytorch_model")):
        with Checkpoint.open(tmp_path, variant=variant) as checkpoint:
            assert list(checkpoint.tensors) == [key]
    folder = tmp_path / "other"
    folder.mkdir()
    write(folder / "ltx-2.5.safetensors", {"a": ("F32", [1])})
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.components[0].variant == ""
    with refused("no-variant", "fp16", "ltx-2.5.safetensors"):
        Checkpoint.open(folder, variant="fp16")


def test_shards_may_lie_in_subfolders(tmp_path: Path) -> None:
    for folder in ("one", "two/three"):
        (tmp_path / folder).mkdir(parents=True)
        shard(tmp_path / folder, "x.safetensors", folder[:1], "unlisted")
    index(tmp_path, {"o": "one/x.safetensors", "t": "two/three/x.safetensors"})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert list(checkpoint.shards) == ["one/x.safetensors", "two/three/x.safetensors"]
        assert {key: tensor.read().tobytes() for key, tensor in checkpoint.tensors.items()} == {"o": b"o", "t": b"t"}


def test_a_subfolder_must_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "real", outside):
        folder.mkdir(parents=True)
        shard(folder, "x.safetensors", "a")
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to("real")
    index(inside, {"a": "link/x.safetensors"})
    with refused("shard-name", "link/x.safetensors", outside):
        Checkpoint.open(inside)
    index(inside, {"a": "loop/x.safetensors"})
    Checkpoint.open(inside).close()


def test_a_hubs_cache_of_links_is_read(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A snapshot is made of links to blobs outside of it, in subfolders too."""
    snapshot = tmp_path_factory.mktemp("hub") / "snapshots" / "1"
    (snapshot / "transformer").mkdir(parents=True)
    for name in ("model.safetensors.index.json", "one.safetensors", "two.safetensors"):
        (snapshot / "transformer" / name).symlink_to(sharded / name)
    folder = snapshot / "transformer"
    with Checkpoint.open(folder) as checkpoint:
        assert list(checkpoint.tensors) == ["b", "a", "c"]
    index(snapshot, {"a": "transformer/one.safetensors"})
    with Checkpoint.open(snapshot) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_what_macos_leaves_beside_files_is_ignored(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    side = bytes.fromhex("0005160700020000") + b"Mac OS X        " + bytes(4000)
    for name in ("model.safetensors.index.json", "one.safetensors", "two.safetensors"):
        (sharded / f"._{name}").write_bytes(side)
    with Checkpoint.open(sharded) as checkpoint:
        assert list(checkpoint.tensors) == ["b", "a", "c"] and checkpoint.notes == ()
    single = tmp_path_factory.mktemp("single")
    shard(single, "one.safetensors", "a")
    (single / "._one.safetensors").write_bytes(side)
    with Checkpoint.open(single) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]
    with refused("not-safetensors", "AppleDouble"):
        Checkpoint.open(single / "._one.safetensors")


def test_no_descriptor_is_left_open_by_a_refusal(sharded: Path) -> None:
    (sharded / "two.safetensors").write_bytes(b"")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with refused("empty"):
        Checkpoint.open(sharded)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
