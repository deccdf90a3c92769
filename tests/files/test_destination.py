from __future__ import annotations

import os
from pathlib import Path

import pytest
from refusals import refused

from ltx2c.files import destination as module
from ltx2c.files.destination import Destination


def check(path: Path, **options: object) -> Destination:
    return Destination.check(path, **{"inputs": [], "needed_bytes": 10, **options})


def test_the_result_appears_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with check(out).stage() as staged:
        staged.file("x").write_bytes(b"result")
        assert not out.exists()
        staged.publish()
    assert out.read_bytes() == b"result" and list(tmp_path.iterdir()) == [out]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with check(out, folder=True).stage() as staged:
        staged.file("a").write_bytes(b"1")
        staged.file("b").write_bytes(b"2")
        assert not out.exists()
        staged.publish()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": b"1", "b": b"2"}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(folder: bool, error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), check(tmp_path / "out", folder=folder).stage() as staged:
        staged.file("a").write_bytes(b"half")
        raise error
    assert not list(tmp_path.iterdir())


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


def test_what_stands_there_is_kept_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with refused("output-exists", out):
        check(out)
    with check(out, force=True).stage() as staged:
        staged.file("x").write_bytes(b"new")
        assert out.read_bytes() == b"old"
        staged.publish()
    assert out.read_bytes() == b"new"


def test_a_dangling_link_stands_there_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "nowhere")
    with refused("output-exists", out):
        check(out)


def test_a_forced_folder_is_exchanged_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.safetensors").write_bytes(b"old")
    with check(out, folder=True, force=True).stage() as staged:
        staged.file("new.safetensors").write_bytes(b"new")
        staged.publish()
    assert [path.name for path in out.iterdir()] == ["new.safetensors"] and list(tmp_path.iterdir()) == [out]


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


@pytest.mark.parametrize("folder", [False, True])
def test_a_second_run_to_one_destination_is_refused(folder: bool, tmp_path: Path) -> None:
    one, two = (check(tmp_path / "out", folder=folder) for _ in range(2))
    with one.stage() as staged:
        with refused("output-busy", "out"), two.stage():
            pass
        staged.file("a").write_bytes(b"1")
        staged.publish()
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("stale_is_folder", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_run_left_is_recognised_and_cleared(stale_is_folder: bool, folder: bool, tmp_path: Path) -> None:
    destination = check(tmp_path / "out", folder=folder)
    if stale_is_folder:
        destination.part.mkdir()
        (destination.part / "shard").write_bytes(b"12345")
    else:
        destination.part.write_bytes(b"12345")
    with destination.stage() as staged:
        assert staged.stale_bytes == 5
        path = staged.file("a")
        assert path.read_bytes() == b"" and not (folder and (destination.part / "shard").exists())
        staged.publish()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_result_that_appears_meanwhile_is_not_overwritten(folder: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with refused("output-exists", "appeared"), check(out, folder=folder).stage() as staged:
        staged.file("a").write_bytes(b"ours")
        out.write_bytes(b"theirs")
        staged.publish()
    assert out.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
def test_without_the_system_call_for_it_neither(folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltx2c.files.linux._libc", object())
    out = tmp_path / "out"
    with refused("output-exists", "appeared"), check(out, folder=folder).stage() as staged:
        staged.file("a").write_bytes(b"ours")
        out.write_bytes(b"theirs")
        staged.publish()
    assert out.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [out]
    out.unlink()
    with check(out, folder=folder).stage() as staged:
        staged.file("a").write_bytes(b"ours")
        staged.publish()
    assert list(tmp_path.iterdir()) == [out] and (out / "a" if folder else out).read_bytes() == b"ours"


def test_a_result_is_made_durable_before_and_after_it_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's entry is synced once the name is there; of a folder also the entries within, before."""
    events: list[str] = []
    fsync, rename = os.fsync, module.rename_new
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(module, "rename_new", lambda *names: (events.append("rename"), rename(*names)))
    with check(tmp_path / "out", folder=True).stage() as staged:
        staged.file("a")
        staged.publish()
    assert events == [str(tmp_path / ".out.ltx2c-part"), "rename", str(tmp_path)]
