from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from fusing import small_model
from refusals import refused

import ltx2c
from ltx2c import cli
from ltx2c.engines import file as engine
from ltx2c.files import TensorFile


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("max_shard_bytes", [None, 20_000])
def test_digests_are_those_of_the_whole_files(
    max_shard_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", 10_000)
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out"
    report = ltx2c.fuse_checkpoint(base, adapters, out, sha256=True, max_shard_bytes=max_shard_bytes)
    outputs = [out] if max_shard_bytes is None else sorted(out.glob("*.safetensors"))
    assert report.sha256 == {str(path): sha256(path) for path in [base, *(path for path, _ in adapters), *outputs]}
    with TensorFile.open(outputs[0]) as file:
        listed = json.loads(file.metadata["ltx2c"])["adapters"]
    assert [entry["sha256"] for entry in listed] == [sha256(path) for path, _ in adapters]


def test_digests_are_not_taken_unasked(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out")
    with TensorFile.open(tmp_path / "out") as file:
        assert report.sha256 == {} and "sha256" not in json.loads(file.metadata["ltx2c"])["adapters"][0]


def test_the_expected_inputs_pass(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    digests = [sha256(path).upper() for path in (base, *(path for path, _ in adapters))]
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", expect_sha256=digests)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_an_input_that_is_not_the_expected_one_is_refused(wrong: int, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    paths = [base, *(path for path, _ in adapters)]
    digests = [sha256(path) for path in paths]
    digests[wrong] = "0" * 64
    before = set(tmp_path.iterdir())
    with refused("wrong-sha256", paths[wrong], sha256(paths[wrong]), "0" * 64):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", expect_sha256=digests)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("code", "digests"),
    [("bad-sha256", ["xyz"]), ("bad-sha256", ["0" * 63]), ("sha256-count", ["0" * 64] * 4)],
)
def test_what_are_no_digests_of_the_inputs_is_refused(code: str, digests: list[str], tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with refused(code):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", expect_sha256=digests)


def test_a_digest_for_a_checkpoint_of_shards_is_refused(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, [], tmp_path / "shards", max_shard_bytes=10_000)
    with refused("sha256-of-shards", tmp_path / "shards"):
        ltx2c.fuse_checkpoint(tmp_path / "shards", adapters, tmp_path / "out", expect_sha256=["0" * 64])


def test_the_command_reports_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    out = tmp_path / "out"
    assert cli.main(["fuse", str(base), "--lora", str(lora), "-o", str(out), "--sha256"]) == 0
    shown = capsys.readouterr().out
    for path in (base, lora, out):
        assert f"sha256 {sha256(path)}  {path}" in shown


def test_the_command_refuses_an_input_that_is_not_the_expected_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, ((lora, _), _), _ = small_model(tmp_path)
    words = ["fuse", str(base), "--lora", str(lora), "-o", str(tmp_path / "out"), "--expect-sha256"]
    assert cli.main([*words, sha256(base), "--expect-sha256", sha256(base)]) == 2
    assert str(lora) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
