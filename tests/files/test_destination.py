"""Where a result may go is decided before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from destinations import check, old_result
from refusals import refused

from ltx2c.files.destination import PART_SUFFIX


def test_the_output_may_not_be_an_input_by_any_name(tmp_path: Path) -> None:
    source = tmp_path / "in.safetensors"
    source.write_bytes(b"1")
    hard, soft = tmp_path / "hard", tmp_path / "soft"
    hard.hardlink_to(source)
    soft.symlink_to(source)
    other = tmp_path / "sub" / ".." / "in.safetensors"
    other.parent.parent.mkdir()
    for out in (source, hard, soft, other):
        with refused("output-is-input", "in.safetensors"):
            check(out, inputs=[source], force=True)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("how", ["file", "hard link", "in a folder", "link into a folder"])
def test_an_input_may_not_bear_the_outputs_temporary_name(tmp_path: Path, how: str, folder: bool) -> None:
    part = tmp_path / f".out{PART_SUFFIX}"
    if "folder" in how:
        part.mkdir()
    held = part / "in.safetensors" if "folder" in how else part
    held.write_bytes(b"1")
    source = tmp_path / "in.safetensors" if "link" in how else held
    if how == "hard link":
        source.hardlink_to(held)
    elif "link" in how:
        source.symlink_to(held)
    with refused("output-is-input", part.name, source.name):
        check(tmp_path / "out", inputs=[source], folder=folder)
    assert held.read_bytes() == b"1"


def test_a_dangling_link_stands_there_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "nowhere")
    with refused("output-exists", out):
        check(out)


def test_a_folder_with_more_than_one_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    (out / "other.safetensors.index.json").write_text("{}")
    with refused("output-folder-foreign", "several indexes"):
        check(out, folder=True, force=True)
    (out / "model.safetensors.index.json").unlink()
    with refused("output-folder-foreign", "other.safetensors.index.json"):
        check(out, folder=True, force=True)
    (out / "other.safetensors.index.json").unlink()
    with refused("output-folder-foreign", "old.safetensors"):
        check(out, folder=True, force=True)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_a_folder_with_anything_but_plain_files_is_never_replaced(make, tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    (out / "old.safetensors").unlink()
    make(out / "old.safetensors")
    with refused("output-folder-foreign", "old.safetensors"):
        check(out, folder=True, force=True)


def test_a_folder_that_an_input_lies_in_is_never_replaced(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    link, inner = tmp_path / "link", old_result(out / "sub") / "old.safetensors"
    link.symlink_to(out / "old.safetensors")
    for source in (out / "old.safetensors", link, inner, inner.parent):
        with refused("output-is-input", source.name):
            check(out, inputs=[source], folder=True, force=True)


def test_room_is_counted_also_where_another_runs_files_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = check(tmp_path / "out", folder=True)
    destination.part.mkdir()
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: iter([self / "gone"]))
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    check(tmp_path / "out", folder=True)


def test_a_folder_that_holds_other_things_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    with refused("output-folder-foreign", "tokenizer.json"):
        check(tmp_path / "out", folder=True, force=True)


def test_places_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with refused("output-folder-missing", "none"):
        check(tmp_path / "none" / "out")
    with refused("output-folder-missing", "file"):
        check(tmp_path / "file" / "out")
    with refused("output-is-folder", "folder"):
        check(tmp_path / "folder", force=True)
    with refused("output-is-not-folder", "file"):
        check(tmp_path / "file", folder=True, force=True)
    with refused("output-is-not-folder", "x.safetensors"):
        check(tmp_path / "x.safetensors", folder=True)
    with refused("no-room", "free"):
        check(tmp_path / "out", needed_bytes=1 << 60)
    os.mkfifo(tmp_path / "pipe")
    with refused("output-is-not-file", "pipe"):
        check(tmp_path / "pipe", force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "pipe"}
