"""Folders in, folders out: everything beside the weights comes along as it was, and the result is there at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from destinations import temporaries
from fusing import assert_same, load
from model_folders import CONNECTORS, STEM, component, fused, in_a_cache, make_adapter, pipeline, transformer, tree
from refusals import refused

import ltx2c
from ltx2c.cli import main
from ltx2c.files import siblings
from ltx2c.plan.cost import Rates


def is_weights(name: str, within: str) -> bool:
    return name.startswith(within) and ".safetensors" in name


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("variant", ["", "fp16"])
def test_a_pipeline_comes_out_whole(shards: int, variant: str, tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in", shards=shards, variant=variant)
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    before = tree(base)
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    assert report.tensors == 4 and report.tensors_fused == 2 and tree(base) == before
    after = tree(tmp_path / "out")
    assert after.keys() == before.keys()
    for name, content in before.items():
        assert after[name] == content or is_weights(name, "transformer/"), name
    assert_same({key: load(tmp_path / "out" / "transformer")[key] for key in transformer()}, fused(factors))
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert ltx2c.verify_checkpoint(tmp_path / "out", base, [(lora, 0.8)]).equal


def test_connectors_are_fused_where_the_adapter_has_keys_for_them(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, factors = make_adapter(tmp_path / "lora.safetensors", connectors=True)
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    assert report.tensors == 6 and report.tensors_fused == 3
    assert_same(load(tmp_path / "out" / "transformer"), fused(factors))
    assert_same(load(tmp_path / "out" / "connectors"), fused(factors, tensors=CONNECTORS))
    changed = {name for name, content in tree(base).items() if tree(tmp_path / "out")[name] != content}
    assert changed == {f"{part}/{STEM}.safetensors" for part in ("transformer", "connectors")}


def test_a_cache_of_links_is_read_and_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    in_a_cache(pipeline(tmp_path / "in", shards=2), tmp_path / "cache")
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    before = tree(tmp_path / "cache")
    assert main(["fuse", "hf://org/model", "--lora", str(lora), "0.8", "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert tree(tmp_path / "cache") == before
    after = tree(tmp_path / "out")
    assert after.keys() == tree(tmp_path / "in").keys()
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "out").rglob("*") if path.is_file())
    got = load(tmp_path / "out" / "transformer")
    assert_same({key: got[key] for key in transformer()}, fused(factors))


@pytest.mark.parametrize("shards", [1, 2])
def test_plain_and_variant_side_by_side_are_a_choice(shards: int, tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in", shards=shards, variant="fp16", plain_too=True)
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    with refused("several-variants", "fp16", f"{STEM}.safetensors"):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out", variant="fp16")
    names = {path.name for path in (tmp_path / "out" / "transformer").iterdir()}
    assert names == {"config.json"} | {path.name for path in (base / "transformer").glob("*fp16*")}
    got = load(tmp_path / "out" / "transformer")
    assert_same({key: got[key] for key in transformer()}, fused(factors))
    plan = ltx2c.Plan.from_json(ltx2c.plan_fuse(base, [(lora, 0.8)], variant="").to_json())
    ltx2c.execute(plan, tmp_path / "plain")
    got = load(tmp_path / "plain" / "transformer")
    assert_same({key: got[key] for key in transformer(5)}, fused(factors, tensors=transformer(5)))


def test_whatever_opens_a_base_takes_the_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = pipeline(tmp_path / "in", variant="fp16", plain_too=True) / "transformer"
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    recipe = ltx2c.Recipe.named("ti2vid_two_stages", distilled_lora=lora)
    takers = [
        lambda **how: ltx2c.plan_render(base, recipe, rates=Rates(1e9, 1e9), **how),
        lambda **how: ltx2c.ResidentCheckpoint.open(base, recipe, **how).close(),
        lambda **how: ltx2c.inspect(base, **how),
        lambda **how: ltx2c.inspect(lora, base, **how),
    ]
    for take in takers:
        with refused("several-variants", "fp16"):
            take()
        take(variant="fp16")
        take(variant="")
    for variant, weights in [("fp16", transformer()), ("", transformer(5))]:
        with ltx2c.ResidentCheckpoint.open(base, ltx2c.Recipe.named("ti2vid_one_stage"), variant=variant) as resident:
            assert_same({key: resident.tensors[key] for key in weights}, weights)
    for words in (["plan", "ti2vid_two_stages", base, "--distilled-lora", lora], ["inspect", base]):
        assert main([*map(str, words), "--variant", "fp16"]) == 0
        assert main([*map(str, words)]) == 2
        assert "--variant" in capsys.readouterr().err


def test_a_component_by_itself_and_a_transformers_folder_are_folders_out(tmp_path: Path) -> None:
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    base = component(tmp_path / "in", transformer())
    (base / f"{STEM}.bin").write_bytes(b"the same weights, not fused")
    (base / "tokenizer.model").write_bytes(b"no weights")
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    assert any(f"{STEM}.bin" in note for note in report.notes)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        f"{STEM}.safetensors",
        "tokenizer.model",
    }
    assert_same(load(tmp_path / "out"), fused(factors))


def test_shards_of_a_variant_are_named_as_diffusers_names_them(tmp_path: Path) -> None:
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    base = pipeline(tmp_path / "in", variant="fp16")
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out", max_shard_bytes=90_000)
    assert {path.name for path in (tmp_path / "out" / "transformer").iterdir()} == {
        "config.json",
        f"{STEM}.safetensors.index.fp16.json",
        f"{STEM}.fp16-00001-of-00002.safetensors",
        f"{STEM}.fp16-00002-of-00002.safetensors",
    }


def socket_in(folder: Path) -> Path:
    path = folder / "s"
    here = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/s")
    os.close(here)
    return path


def loop_in(folder: Path) -> Path:
    (folder / "again").symlink_to(folder.parent)
    return folder / "again"


def dangling_in(folder: Path) -> Path:
    (folder / "gone").symlink_to("nowhere")
    return folder / "gone"


def pipe_in(folder: Path) -> Path:
    os.mkfifo(folder / "p")
    return folder / "p"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (socket_in, "special-file"),
        (pipe_in, "special-file"),
        (loop_in, "link-loop"),
        (dangling_in, "dangling-link"),
    ],
)
def test_what_cannot_come_along_is_refused_by_name(make: object, code: str, tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    assert callable(make)
    path = make(base / "scheduler")
    with refused(code, path):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    assert not (tmp_path / "out").exists() and not temporaries(tmp_path / "out")


def test_room_is_counted_for_what_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    real = os.statvfs(tmp_path)
    free = (2 << 20) // real.f_frsize  # the tokenizer alone is 3 MB
    few = os.statvfs_result((*real[:3], free, free, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    with refused("no-room"):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")


def test_copies_without_help_of_the_system_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "one")

    def refuse(*words: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(siblings, "_STEP_BYTES", 100_000)
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_force_replaces_such_a_folder_and_nothing_that_is_not_of_it(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    out = tmp_path / "out"
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out)
    with refused("output-exists"):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], out)
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], out, force=True)
    assert_same(load(out / "transformer"), fused(factors))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "lora.safetensors", "out"]
    for name in ("mine.txt", "vae/mine.txt", "transformer/other.safetensors"):
        (out / name).write_text("x")
        with refused("output-folder-foreign", name):
            ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out, force=True)
        (out / name).unlink()
    (out / "vae" / "config.json").unlink()
    (out / "vae" / "config.json").symlink_to("/etc/hostname")
    with refused("output-folder-foreign", "vae/config.json"):
        ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out, force=True)


def test_a_failure_while_copying_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")

    def fail(*words: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "copy_file_range", fail)
    with pytest.raises(OSError, match="Input/output error"):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "lora.safetensors"]


def test_what_a_killed_run_left_of_such_a_folder_is_cleared(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    out = tmp_path / "out"
    if (child := os.fork()) == 0:
        siblings.os.fsync = lambda descriptor: os._exit(0)  # after the first file's bytes
        try:
            ltx2c.fuse_checkpoint(base, [(lora, 0.8)], out)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert temporaries(out) and not out.exists()
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], out)
    assert not temporaries(out) and tree(out).keys() == tree(base).keys()


def test_a_pipeline_without_a_transformer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    with refused("no-transformer", "transformer"):
        ltx2c.Checkpoint.open(tmp_path)


def test_the_result_is_not_copied_into_itself(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    before = tree(base).keys()
    for _ in range(2):
        ltx2c.fuse_checkpoint(base, [(lora, 0.8)], base / "out", force=True)
        assert tree(base / "out").keys() == before


def test_a_repository_of_a_cache_given_as_a_folder_is_refused_with_its_hub_name(tmp_path: Path) -> None:
    in_a_cache(pipeline(tmp_path / "in"), tmp_path / "cache", "org/some-model")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    repository = tmp_path / "cache" / "models--org--some-model"
    with refused("no-checkpoint", repository, "give hf://org/some-model, or one of its snapshots"):
        ltx2c.fuse_checkpoint(repository, [(lora, 0.8)], tmp_path / "out")
