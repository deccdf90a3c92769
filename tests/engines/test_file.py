from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fusing import adapter, assert_same, load, save, small_model, values
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

import ltx2c
from ltx2c import cli, kernels
from ltx2c.dtypes import DTYPES, FUSIBLE
from ltx2c.engines import file as engine
from ltx2c.engines import rows
from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files.folder import Folder
from ltx2c.progress import Progress


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block_bytes", [1, 100, 4096, 10_000, 16 << 20])
def test_the_output_is_what_the_reference_gives_however_it_is_cut(
    block_bytes: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", block_bytes)
    base, adapters, wanted = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out.safetensors", threads=threads)
    assert_same(load(tmp_path / "out.safetensors"), wanted)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from([dtype.numpy for dtype in FUSIBLE.values()]), min_size=6, max_size=6),
    block_bytes=st.integers(64, 4000),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_small_model(shapes, dtypes, block_bytes, seed, tmp_path_factory: pytest.TempPathFactory) -> None:
    from fusing import expected

    folder = tmp_path_factory.mktemp("any")
    base = {f"m{at}.weight": values(seed + at, out, into, dtype=dtypes[at]) for at, (out, into, _) in enumerate(shapes)}
    factors = adapter({f"m{at}": (out, rank, into) for at, (out, into, rank) in enumerate(shapes)}, seed)
    lora = save(folder / "lora.safetensors", factors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "BLOCK_BYTES", block_bytes)
        ltx2c.fuse_checkpoint(save(folder / "base", base), [(lora, 0.7)], folder / "out")
    assert_same(load(folder / "out"), expected(base, [(factors, 0.7)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_format_passes_untouched(dtype: str, tmp_path: Path) -> None:
    from rawfiles import write_tensors

    weight = values(1, 8, 8)
    odd = os.urandom(DTYPES[dtype].bits * 5)
    tensors = {
        "odd": (dtype, (2, 4, 5), odd),
        "m.weight": ("BF16", (8, 8), weight.tobytes()),
        "none": (dtype, (0,), b""),
    }
    base = write_tensors(tmp_path / "base", tensors)
    lora = save(tmp_path / "lora", adapter({"m": (8, 2, 8)}, 3))
    ltx2c.fuse_checkpoint(base, [(lora, 1.0)], tmp_path / "out")
    with TensorFile.open(tmp_path / "out") as out:
        assert out.tensors["odd"].dtype == dtype and out.tensors["odd"].shape == (2, 4, 5)
        assert bytes(out.view(out.tensors["odd"].begin, out.tensors["odd"].end)) == odd
        assert out.tensors["m.weight"].read().tobytes() != weight.tobytes()


def test_names_of_any_kind_pass_untouched(tmp_path: Path) -> None:
    names = [
        "",
        " ",
        "\0\x1b[31m\n",
        "\"\\/'",
        "ключ",
        "\u2028\u202e",
        "\U0001f600",
        "x" * 100_000,
        "../../etc",
        "m.bias",
    ]
    base = {name: values(at, 3) for at, name in enumerate(names)} | {"m.weight": values(50, 8, 8)}
    lora = save(tmp_path / "lora", adapter({"m": (8, 2, 8)}, 3))
    ltx2c.fuse_checkpoint(
        save(tmp_path / "base", base, {name: name for name in names}), [(lora, 1.0)], tmp_path / "out"
    )
    fused = load(tmp_path / "out")
    assert list(fused) == list(base)
    assert all(fused[name].tobytes() == base[name].tobytes() for name in names)
    with TensorFile.open(tmp_path / "out") as file:
        assert {name: file.metadata[name] for name in names} == {name: name for name in names}


def test_ten_thousand_keys_are_read_and_written_in_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {f"blocks.{at}.weight": values(at, 4, 4) for at in range(10_000)}
    lora = save(tmp_path / "lora", adapter({f"blocks.{at}": (4, 1, 4) for at in range(0, 10_000, 100)}, 3))
    base_path = save(tmp_path / "base", base)
    calls = counted_calls(monkeypatch, "preadv", "pwrite", "pwritev")
    report = ltx2c.fuse_checkpoint(base_path, [(lora, 1.0)], tmp_path / "out")
    assert report.tensors == 10_000
    assert calls["preadv"] < 300, "the base's in a few, each factor's in one"
    assert 0 < calls["pwrite"] + calls["pwritev"] < 20


def counted_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """How often each of these functions of ``os`` is called from now on."""
    calls = Counter[str]()

    def counted(name: str, call: Callable[..., int]) -> Callable[..., int]:
        def count(*given: object) -> int:
            calls[name] += 1
            return call(*given)

        return count

    for name in names:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return calls


def test_progress_ends_complete_and_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", 4096)
    base, adapters, _ = small_model(tmp_path)
    seen: list[Progress] = []
    report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", progress=seen.append)
    assert len(seen) > 5 and seen == sorted(seen)
    assert seen[-1] == (report.bytes_written, report.bytes_written, report.macs, report.macs)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), KeyboardInterrupt(), RuntimeError("bug")])
def test_an_error_in_the_progress_callback_ends_the_run_cleanly(error: BaseException, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    before = set(tmp_path.iterdir())

    def progress(_: Progress) -> None:
        raise error

    with pytest.raises(type(error)):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", progress=progress)
    assert set(tmp_path.iterdir()) == before


@pytest.fixture
def overflowing(tmp_path: Path) -> tuple[Path, Path]:
    base = {"a.weight": values(1, 8, 8), "b.weight": values(2, 600, 8), "c.weight": values(3, 8, 8)}
    base["b.weight"][0, 0] = np.nan  # not counted: the base is not finite there
    factors = adapter({name: (len(base[f"{name}.weight"]), 2, 8) for name in "abc"}, 5)
    factors["diffusion_model.b.lora_B.weight"][:2] = factors["diffusion_model.b.lora_B.weight"][500] = 3e38
    factors["diffusion_model.b.lora_A.weight"][:] = 3e38
    return save(tmp_path / "base", base), save(tmp_path / "lora", factors)


def test_a_result_that_overflows_is_refused_by_key_and_whole_count(
    overflowing: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", 1000)  # the weight's three bad rows lie in different blocks
    base, lora = overflowing
    with refused("nonfinite", "b.weight", "has 23 "):
        ltx2c.fuse_checkpoint(base, [(lora, 1.0)], tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "lora"}


def test_a_result_that_overflows_is_kept_where_asked_for(overflowing: tuple[Path, Path], tmp_path: Path) -> None:
    base, lora = overflowing
    report = ltx2c.fuse_checkpoint(base, [(lora, 1.0)], tmp_path / "out", allow_nonfinite=True)
    assert report.nonfinite == {"b.weight": 23} and (tmp_path / "out").exists()


def test_fusing_into_a_fused_file_adds_to_its_history(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters[:1], tmp_path / "one")
    ltx2c.fuse_checkpoint(tmp_path / "one", adapters[1:], tmp_path / "two")
    with TensorFile.open(tmp_path / "two") as file:
        entry = json.loads(file.metadata["ltx2c"])
    assert [adapter["name"] for adapter in entry["adapters"]] == ["lora1.safetensors"]
    assert entry["base"]["name"] == "one"
    assert [adapter["name"] for adapter in entry["base"]["ltx2c"]["adapters"]] == ["lora0.safetensors"]


@pytest.mark.parametrize("history", ["not json", "[" * 100_000, "{}", "null"])
def test_a_foreign_history_is_no_obstacle(history: str, tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    save(base, load(base), {"ltx2c": history})
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out")
    assert_same(load(tmp_path / "out"), wanted)


def test_an_output_on_tmpfs(tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    out = Path(f"/dev/shm/ltx2c-test-{os.getpid()}")
    try:
        ltx2c.fuse_checkpoint(base, adapters, out)
        assert_same(load(out), wanted)
    finally:
        out.unlink()


def test_shards_come_out_as_they_went_in(tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    folder = tmp_path / "sharded"
    folder.mkdir()
    tensors = load(base)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {key: names[at % 2] for at, key in enumerate(tensors)}
    for at, name in enumerate(names):
        save(folder / name, {key: tensors[key] for key in tensors if weight_map[key] == name}, {"shard": str(at)})
    index = {"metadata": {"total_size": 1, "note": "x"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    report = ltx2c.fuse_checkpoint(folder, adapters, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [*names, "model.safetensors.index.json"]
    )
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert list(written["weight_map"].items()) == list(weight_map.items())
    assert written["metadata"] == {"total_size": report.bytes_written, "note": "x"}
    with Checkpoint.open(tmp_path / "out") as out, Checkpoint.open(folder) as source:
        assert [file.metadata["shard"] for file in out.files] == ["0", "1"]
        assert "ltx2c" in out.files[1].metadata
        assert list(out.tensors) == list(source.tensors)
        for key, tensor in out.tensors.items():
            assert tensor.read().tobytes() == wanted[key].tobytes()


@pytest.mark.parametrize("limit", [1, 5000, 40_000, 1 << 30])
def test_sharding_anew(limit: int, tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", max_shard_bytes=limit)
    assert_same(load(tmp_path / "out"), wanted)
    with Checkpoint.open(tmp_path / "out") as out:
        count = len(out.files)
        for at, file in enumerate(out.files, 1):
            assert file.path.name == f"base-{at:05}-of-{count:05}.safetensors"
            assert sum(tensor.nbytes for tensor in file.tensors.values()) <= limit or len(file.tensors) == 1
            assert file.metadata["config"]
    again = ltx2c.fuse_checkpoint(tmp_path / "out", adapters[:1], tmp_path / "again", max_shard_bytes=20_000)
    assert again.out.is_dir()


@pytest.mark.parametrize("name", [b"a\\b.safetensors", b"\xff.safetensors", b".safetensors"])
def test_a_base_whose_name_no_index_can_hold_gives_shards_another(name: bytes, tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    base = base.rename(tmp_path / os.fsdecode(name))
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", max_shard_bytes=1 << 30)
    assert_same(load(tmp_path / "out"), wanted)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    }


def test_an_adapter_given_as_the_working_folder_is_recorded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    folder = tmp_path / "style"
    (folder / "sub").mkdir(parents=True)
    shutil.copy(adapters[0][0], folder)
    for working, name in ((folder, "."), (folder / "sub", "..")):
        monkeypatch.chdir(working)
        out = tmp_path / f"out{name}"
        ltx2c.fuse_checkpoint(base, [(name, 1.0)], out)
        with Checkpoint.open(out) as fused:
            assert json.loads(fused.metadata["ltx2c"])["adapters"][0]["name"] == "style"


def test_a_shard_size_below_a_byte_is_refused(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with refused("max-shard-size", "0"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", max_shard_bytes=0)


def test_sharded_adapters(tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    folder = tmp_path / "lora"
    folder.mkdir()
    factors = load(adapters[0][0])
    weight_map = {key: f"{at % 3}.safetensors" for at, key in enumerate(factors)}
    for name in set(weight_map.values()):
        save(folder / name, {key: factors[key] for key in factors if weight_map[key] == name})
    (folder / "x.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ltx2c.fuse_checkpoint(base, [(folder, adapters[0][1]), adapters[1]], tmp_path / "out")
    assert_same(load(tmp_path / "out"), wanted)


@pytest.mark.parametrize(
    ("text", "limit"), [("20000", 20_000), ("20KB", 20_000), ("19.5kib", 19_968), ("0.02M", 20_000), ("1 GB", 10**9)]
)
def test_the_command_takes_sizes_in_any_unit(text: str, limit: int, tmp_path: Path) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    words = ["fuse", str(base), "--lora", str(lora), "--quiet"]
    assert cli.main([*words, "-o", str(tmp_path / "one"), "--max-shard-size", text]) == 0
    ltx2c.fuse_checkpoint(base, [(lora, 1.0)], tmp_path / "two", max_shard_bytes=limit)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("text", ["", "5XB", "-1", "1e9", "GB"])
def test_the_command_refuses_what_is_no_size(text: str, tmp_path: Path) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    words = ["fuse", str(base), "--lora", str(lora), "-o", str(tmp_path / "out")]
    assert cli.main([*words, f"--max-shard-size={text}"]) == 2


def sharded(folder: Path, base: Path) -> Path:
    """A folder of two shards that hold what the file ``base`` does."""
    folder.mkdir()
    tensors = load(base)
    weight_map = {key: f"model-{at % 2}.safetensors" for at, key in enumerate(tensors)}
    for name in set(weight_map.values()):
        save(folder / name, {key: tensors[key] for key in tensors if weight_map[key] == name})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def forced(base: Path, lora: Path, out: Path) -> int:
    return cli.main(["fuse", str(base), "--lora", str(lora), "-o", str(out), "--force", "--quiet"])


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("out", ["base", "loras", ".", "collection", "old"])
def test_a_forced_folder_takes_neither_inputs_nor_other_models_away(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    index = sharded(tmp_path / "base", base) / "model.safetensors.index.json"
    (tmp_path / "loras").mkdir()
    adapter_file = Path(shutil.copy(lora, tmp_path / "loras" / "ad.safetensors"))
    sharded(tmp_path / "collection", base)
    (tmp_path / "collection" / "other-model").mkdir()
    shutil.copy(lora, sharded(tmp_path / "old", base) / "stray.safetensors")
    before = everything(tmp_path)
    assert forced(index, adapter_file, tmp_path / out) == 2
    assert capsys.readouterr().err.count("\n") == 1 and everything(tmp_path) == before


def test_a_forced_folder_replaces_an_earlier_result(tmp_path: Path) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    folder = sharded(tmp_path / "base", base)
    assert forced(folder, lora, tmp_path / "out") == forced(folder, lora, tmp_path / "out") == 0
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_replaced_folder_that_cannot_be_removed_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapters, _ = small_model(tmp_path)
    folder = sharded(tmp_path / "base", base)
    ltx2c.fuse_checkpoint(folder, adapters, tmp_path / "out")

    def failing(self: Folder, name: str) -> None:
        raise PermissionError(errno.EPERM, "not permitted", name)

    monkeypatch.setattr(Folder, "rmdir", failing)
    report = ltx2c.fuse_checkpoint(folder, adapters, tmp_path / "out", force=True)
    (kept,) = tmp_path.glob("out.kept-*")
    assert "the result is in place" in report.notes[-1] and kept.name in report.notes[-1]


def test_blocks_are_fused_with_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    fuse_jobs = rows.fuse_jobs

    def watched(jobs, *, threads: int) -> list[int]:
        used.add(threads)
        return fuse_jobs(jobs, threads=threads)

    monkeypatch.setattr(rows, "fuse_jobs", watched)
    monkeypatch.setattr(engine, "BLOCK_BYTES", 4096)
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", threads=5)
    assert used == {2, 3}


def test_a_kernel_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        assert not list(tmp_path.glob(".*"))
        raise RefusedError("no such kernel", code="unknown-kernel")

    base, adapters, _ = small_model(tmp_path)
    monkeypatch.setattr(kernels, "selected", unknown)
    with refused("unknown-kernel"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out")


@pytest.mark.parametrize("given", ["folder", "index"])
def test_an_adapters_index_is_an_input_too(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    folder = sharded(tmp_path / "lora", lora)
    index = folder / "model.safetensors.index.json"
    before = everything(tmp_path)
    assert forced(base, folder if given == "folder" else index, index) == 2
    assert "is the input" in capsys.readouterr().err and everything(tmp_path) == before


def test_an_index_of_the_base_is_an_input_too(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    folder = sharded(tmp_path / "base", base)
    with refused("output-is-input", "index.json"):
        ltx2c.fuse_checkpoint(folder, adapters, folder / "model.safetensors.index.json", force=True)
