"""Where a result may go is decided before any work."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from destinations import check, left_by_a_killed_run, old_result
from mounts import bound
from refusals import refused


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
def test_what_a_killed_run_left_is_not_removed_where_it_is_an_input(how: str, folder: bool, tmp_path: Path) -> None:
    part = left_by_a_killed_run(tmp_path / "out", folder="folder" in how)
    held = part / "half.safetensors" if "folder" in how else part
    source = tmp_path / "in.safetensors" if "link" in how else held
    if how == "hard link":
        source.hardlink_to(held)
    elif "link" in how:
        source.symlink_to(held)
    with refused("output-is-input", part.name, source.name):
        check(tmp_path / "out", inputs=[source], folder=folder)
    assert held.read_bytes() == b"12345"


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
    left_by_a_killed_run(tmp_path / "out", folder=True)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / "gone"]))
    check(tmp_path / "out", folder=True)


def test_room_that_a_file_system_does_not_tell_is_not_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(**facts: int):
        return lambda path: SimpleNamespace(**{"f_blocks": 9, "f_frsize": 4096, "f_bfree": 0, "f_bavail": 0, **facts})

    def unsupported(path: object) -> None:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(os, "statvfs", unsupported)
    check(tmp_path / "out")
    monkeypatch.setattr(os, "statvfs", statvfs(f_blocks=0))
    check(tmp_path / "out")
    monkeypatch.setattr(os, "statvfs", statvfs())
    with refused("no-room", "0 free"):
        check(tmp_path / "out")


@pytest.mark.parametrize("user", [0, 1000])
def test_what_is_reserved_for_root_is_roots(user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(f_blocks=9, f_frsize=4096, f_bfree=9, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if user:
        with refused("no-room", "0 free"):
            check(tmp_path / "out")
    else:
        check(tmp_path / "out")


def test_a_folder_is_found_as_the_system_finds_it(tmp_path: Path) -> None:
    """``here/link/../o`` lies beside what the link leads to, and not in ``here``."""
    far, here = tmp_path / "far" / "deep", tmp_path / "here"
    far.mkdir(parents=True)
    here.mkdir()
    (here / "link").symlink_to(far)
    (here / "o").write_bytes(b"not this")
    assert check(f"{here}/link/../o").path == tmp_path / "far" / "o"
    (tmp_path / "far" / "o").symlink_to(here / "o")
    assert check(f"{here}/link/../o", force=True).path == tmp_path / "far" / "o"
    with refused("output-folder-missing", "none"):
        check(f"{here}/none/../o")
    with refused("output-folder-missing", "loop"):
        (here / "loop").symlink_to(here / "loop")
        check(here / "loop" / "o")


@pytest.mark.parametrize("path", ["new/", "new/.", "./new//"])
def test_a_path_may_say_that_it_is_a_folders(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check(path, folder=True).path == tmp_path / "new"
    with refused("output-is-folder", "means a folder"):
        check(path)


@pytest.mark.parametrize("path", ["", "/", "//", "/..", "/../.."])
@pytest.mark.parametrize("folder", [False, True])
def test_a_path_without_a_name_is_refused(path: str, folder: bool) -> None:
    with refused("bad-path"):
        check(path, folder=folder, force=True)


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = old_result(tmp_path / "out")
    monkeypatch.chdir(out)
    assert check(".", folder=True, force=True).path == out
    with refused("output-folder-foreign", "out"):
        check("..", folder=True, force=True)


@pytest.mark.parametrize("below", ["snapshots/abc/out", "blobs/out", "snapshots/out", "snapshots/abc/transformer/out"])
def test_a_hubs_cache_is_never_written_to(below: str, tmp_path: Path) -> None:
    out = tmp_path / "hub" / "models--Lightricks--LTX-2" / below
    out.parent.mkdir(parents=True)
    (tmp_path / "mine").symlink_to(out.parent)
    for path in (out, tmp_path / "mine" / "out"):
        with refused("output-in-cache", "models--Lightricks--LTX-2"):
            check(path, force=True)
    check(tmp_path / "hub" / "models--Lightricks--LTX-2" / "out")
    (tmp_path / "snapshots").mkdir()
    check(tmp_path / "snapshots" / "out")


@pytest.mark.parametrize("target", ["/dev/null", "pipe", "folder"])
def test_a_link_to_what_is_no_file_is_not_replaced(target: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    out = tmp_path / "out"
    out.symlink_to(target)
    with refused("output-is-folder" if target == "folder" else "output-is-not-file", "links to"):
        check(out, force=True)
    out.unlink()
    out.symlink_to("nowhere")
    check(out, force=True)


def test_where_something_is_mounted_is_found_out_first(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"1")
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with bound(tmp_path / "other", out), refused("output-not-replaceable", "mounted"):
        check(out, force=True)
    check(out, force=True)


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
