"""The model card: what a result was made from, into a folder or beside a file, never over one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusing import small_model
from model_folders import component, in_a_cache, make_adapter, pipeline, transformer, tree

import ltx2c
from ltx2c.cli import main


def front(path: Path) -> list[str]:
    begin, *lines = path.read_text().splitlines()
    assert begin == "---"
    return lines[: lines.index("---")]


def test_a_card_names_what_the_hub_knows_and_the_licence_that_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    source = component(tmp_path / "in" / "transformer", transformer()).parent
    (source / "README.md").write_text("---\nlicense: other\nlicense_name: ltx-2\nlicense_link: LICENSE\n---\ntext\n")
    in_a_cache(source, tmp_path / "cache", "Org/Model-2")
    (tmp_path / "style").mkdir()
    lora, _ = make_adapter(tmp_path / "style" / "lora.safetensors")
    in_a_cache(tmp_path / "style", tmp_path / "cache", "me/style")
    adapters = [("hf://me/style", 0.8)]
    ltx2c.fuse_checkpoint("hf://Org/Model-2/transformer", adapters, tmp_path / "out", card=True)
    assert front(tmp_path / "out" / "README.md") == [
        "base_model:",
        '- "Org/Model-2"',
        '- "me/style"',
        "base_model_relation: merge",
        "license: other",
        "license_name: ltx-2",
        "license_link: LICENSE",
        "tags:",
        "- lora",
        "- merge",
    ]
    assert "at strength 0.8" in (tmp_path / "out" / "README.md").read_text()
    ltx2c.fuse_checkpoint(source / "transformer", [(lora, 0.8)], tmp_path / "local", card=True)
    assert front(tmp_path / "local" / "README.md")[0] == "base_model_relation: merge"
    assert "license" not in (tmp_path / "local" / "README.md").read_text()


def test_beside_a_file_and_never_over_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    base, adapters, _ = small_model(tmp_path)
    out = tmp_path / "out" / "fused.safetensors"
    words = ["fuse", str(base), "--lora", str(adapters[0][0]), "-o", str(out), "--card"]
    assert main(words) == 0
    card = tmp_path / "out" / "README.md"
    assert front(card) and sorted(path.name for path in out.parent.iterdir()) == ["README.md", "fused.safetensors"]
    card.write_text("mine")
    assert main([*words, "--force"]) == 0
    told = capsys.readouterr().out
    assert f"no card is written: {card} stands there" in told and "--force" not in told and card.read_text() == "mine"


def test_the_bases_own_card_comes_along_and_stays(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out", card=True)
    assert tree(tmp_path / "out")["README.md"] == tree(base)["README.md"]
    assert any("no card" in note for note in report.notes)


def test_a_card_is_no_part_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = component(tmp_path / "in", transformer())
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    for card in (True, False):
        report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "out", card=card, reuse=True)
    assert report.reused and (tmp_path / "out" / "README.md").exists()


def test_where_the_result_is_reused_no_card_is_added_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, adapters, _ = small_model(tmp_path)
    folder = component(tmp_path / "in", transformer())
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    (tmp_path / "to").mkdir()
    for given in ((base, adapters, tmp_path / "to" / "out.safetensors"), (folder, [(lora, 0.8)], tmp_path / "out")):
        ltx2c.fuse_checkpoint(*given, reuse=True)
        (note,) = (one for one in ltx2c.fuse_checkpoint(*given, reuse=True, card=True).notes if "card" in one)
        assert note == "no card is written: the result is reused as it is"
        ((given[2] if given[2].is_dir() else given[2].parent) / "README.md").write_text("a card")
        assert not any("card" in one for one in ltx2c.fuse_checkpoint(*given, reuse=True, card=True).notes)
