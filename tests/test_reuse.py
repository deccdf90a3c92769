"""Reuse: the same request finds what it made and writes nothing; any other is refused, or replaces it with force."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fusing import save, small_model, values
from model_folders import make_adapter, pipeline, tree
from refusals import refused

import ltx2c
from ltx2c.api import outline_fuse
from ltx2c.cli import main
from ltx2c.files import remembered


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SETTLED_NS", -1)
    return tmp_path / "cache" / "ltx2c" / "sha256"


def states(path: Path) -> dict[str, tuple[int, int]]:
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return {str(one): (one.stat().st_ino, one.stat().st_mtime_ns) for one in files}


def fuse(*given: Any, **options: Any) -> ltx2c.api.FuseReport:
    return ltx2c.fuse_checkpoint(*given, reuse=True, **options)


def test_the_same_request_is_reused_by_content_and_nothing_is_written(tmp_path: Path, cache: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    assert not fuse(base, adapters, out).reused
    before = states(out)
    again = fuse(base, adapters, out)
    assert again.reused and again.out == out and states(out) == before
    renamed = tmp_path / "renamed.safetensors"
    renamed.write_bytes(base.read_bytes())
    assert fuse(renamed, adapters, out, unmatched="warn").reused and states(out) == before
    assert outline_fuse(base, adapters, out, reuse=True).reused
    assert len(list(cache.iterdir())) == 4  # base, its copy, two adapters


CHANGES: dict[str, dict[str, Any]] = {
    "strength": {"strengths": (0.8, -0.25)},
    "order": {"swap": True},
    "arithmetic": {"arithmetic": "f32"},
    "block weights": {"block_weights": [("*c", 0.5)]},
    "fewer adapters": {"drop": True},
    "a byte of the base": {"byte": "base.safetensors"},
    "a byte of an adapter": {"byte": "lora1.safetensors"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_request_is_refused_and_replaces_by_force(change: str, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    fuse(base, adapters, out)
    before = out.read_bytes()
    asked = dict(CHANGES[change])
    given = list(adapters)
    if "strengths" in asked:
        given = [(path, strength) for (path, _), strength in zip(given, asked.pop("strengths"), strict=True)]
    if asked.pop("swap", False):
        given.reverse()
    if asked.pop("drop", False):
        given.pop()
    if name := asked.pop("byte", None):
        path = tmp_path / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        status = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with refused("output-other-request", out, "another request", "--force"):
        fuse(base, given, out, **asked)
    assert out.read_bytes() == before
    assert not fuse(base, given, out, force=True, **asked).reused
    assert fuse(base, given, out, force=True, **asked).reused
    assert out.read_bytes() != before


def test_another_layout_of_the_output_is_another_request(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    fuse(base, adapters, tmp_path / "out", max_shard_bytes=30_000)
    assert fuse(base, adapters, tmp_path / "out", max_shard_bytes=30_000).reused
    with refused("output-other-request"):
        fuse(base, adapters, tmp_path / "out", max_shard_bytes=20_000)
    with refused("output-other-request", "folder"):
        fuse(base, adapters, tmp_path / "out")


@pytest.mark.parametrize("damage", ["truncated", "empty", "not ours", "no digest"])
def test_what_is_not_whole_or_not_ours_is_refused(damage: str, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    fuse(base, adapters, out)
    whole = out.read_bytes()
    if damage == "truncated":
        out.write_bytes(whole[:-1])
    elif damage == "empty":
        out.write_bytes(b"")
    elif damage == "not ours":
        save(out, {"x": values(1, 3)}, {"ltx2c": "[1"})
    else:
        ltx2c.fuse_checkpoint(base, adapters, out, force=True)
    before = out.read_bytes()
    with refused("output-other-request", out):
        fuse(base, adapters, out)
    assert out.read_bytes() == before
    fuse(base, adapters, out, force=True)
    assert out.read_bytes() == whole


def test_a_folder_is_reused_only_whole(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in", shards=2)
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    out = tmp_path / "out"
    fuse(base, [(lora, 0.8)], out)
    before = states(out)
    assert fuse(base, [(lora, 0.8)], out).reused and states(out) == before
    for name in tree(out):
        content = (out / name).read_bytes()
        (out / name).unlink()
        with refused("output-other-request", name):
            fuse(base, [(lora, 0.8)], out)
        (out / name).write_bytes(content)
    (out / "vae" / "config.json").write_text((base / "vae" / "config.json").read_text().replace("vae", "vea"))
    with refused("output-other-request", "vae/config.json"):
        fuse(base, [(lora, 0.8)], out)
    fuse(base, [(lora, 0.8)], out, force=True)
    (base / "vae" / "config.json").write_text("{}")
    with refused("output-other-request", "another request"):
        fuse(base, [(lora, 0.8)], out)


def test_the_memory_may_be_deleted_damaged_or_forbidden(tmp_path: Path, cache: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    fuse(base, adapters, out)
    for content in (b"", b"{", b"[]", b'{"sha256": 1}', b'{"sha256": "' + b"0" * 64 + b'"}', b"[" * 100_000):
        for entry in cache.iterdir():
            entry.write_bytes(content)
        assert fuse(base, adapters, out).reused
    for entry in cache.iterdir():
        entry.unlink()
    cache.rmdir()
    cache.write_text("a file in its place")
    assert fuse(base, adapters, out).reused


def test_content_is_read_once_and_again_when_it_may_have_changed(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    first = remembered.remembered_sha256(path)
    (entry,) = cache.iterdir()
    entry.write_text(entry.read_text().replace(first, "0" * 64))
    assert remembered.remembered_sha256(path) == "0" * 64  # by memory alone
    status = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered.remembered_sha256(path) == hashlib.sha256(b"two").hexdigest()


def test_nothing_is_remembered_of_a_file_that_has_just_changed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "SETTLED_NS", 2_000_000_000)
    path = tmp_path / "x"
    path.write_bytes(b"one")
    remembered.remembered_sha256(path)
    assert not cache.exists()


def test_expected_digests_are_held_against_what_is_remembered(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    report = fuse(base, adapters, out, sha256=True)
    again = fuse(base, adapters, out, sha256=True)
    assert again.reused and again.sha256 == report.sha256
    with refused("wrong-sha256", base):
        fuse(base, adapters, out, expect_sha256=["0" * 64])


def test_the_command_says_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, _ = small_model(tmp_path)
    words = ["fuse", str(base), "-o", str(tmp_path / "out.safetensors"), "--reuse"]
    for path, strength in adapters:
        words += ["--lora", str(path), str(strength)]
    assert main(words) == 0 and ": reused" not in capsys.readouterr().out
    assert main([*words, "--dry-run"]) == 0 and "reused" in capsys.readouterr().out
    assert main(words) == 0 and "out.safetensors: reused" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0 and json.loads(capsys.readouterr().out)["reused"] is True


def test_alpha_in_a_configuration_beside_the_adapter_is_part_of_the_request(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    folder = tmp_path / "peft"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(adapters[0][0].read_bytes())
    for alpha in (8, 16):
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 7, "lora_alpha": alpha}))
        if alpha == 16:
            with refused("output-other-request"):
                fuse(base, [(folder, 1.0)], tmp_path / "out.safetensors")
        fuse(base, [(folder, 1.0)], tmp_path / "out.safetensors", force=True)


def test_progress_tells_of_digests_too_and_may_end_them(tmp_path: Path, cache: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out.safetensors"
    before = set(tmp_path.iterdir())

    def stop(now: ltx2c.progress.Progress) -> None:
        assert now.bytes_done == 0
        raise InterruptedError

    with pytest.raises(InterruptedError):
        fuse(base, adapters, out, progress=stop)
    assert set(tmp_path.iterdir()) == before
    told: list[Any] = []
    fuse(base, adapters, out, progress=told.append)
    assert told[0].bytes_done == 0 < told[0].bytes_total and told[-1].bytes_done == told[-1].bytes_total
    told.clear()
    assert fuse(base, adapters, out, progress=told.append).reused
    assert [one.bytes_done == one.bytes_total for one in told] == [True] and told[-1].macs_done == told[-1].macs_total
