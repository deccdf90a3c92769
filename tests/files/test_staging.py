"""Results appear whole or not at all, in one step, and one run at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from destinations import check, old_result
from refusals import refused

from ltx2c.files import staging
from ltx2c.files.destination import PART_SUFFIX
from ltx2c.files.staging import stage


def test_the_result_appears_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with stage(check(out)) as staged:
        staged.file("x").write_bytes(b"result")
        assert not out.exists()
        staged.publish()
    assert out.read_bytes() == b"result" and list(tmp_path.iterdir()) == [out]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stage(check(out, folder=True)) as staged:
        staged.file("a").write_bytes(b"1")
        staged.file("b").write_bytes(b"2")
        assert not out.exists()
        staged.publish()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": b"1", "b": b"2"}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(folder: bool, error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), stage(check(tmp_path / "out", folder=folder)) as staged:
        staged.file("a").write_bytes(b"half")
        raise error
    assert not list(tmp_path.iterdir())


def test_what_stands_there_is_kept_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with refused("output-exists", out):
        check(out)
    with stage(check(out, force=True)) as staged:
        staged.file("x").write_bytes(b"new")
        assert out.read_bytes() == b"old"
        staged.publish()
    assert out.read_bytes() == b"new"


def test_a_forced_folder_is_exchanged_whole(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    with stage(check(out, folder=True, force=True)) as staged:
        staged.file("new.safetensors").write_bytes(b"new")
        staged.publish()
        assert staged.unremoved is None
    assert [path.name for path in out.iterdir()] == ["new.safetensors"] and list(tmp_path.iterdir()) == [out]


def test_an_empty_folder_is_replaced_where_forced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with stage(check(tmp_path / "out", folder=True, force=True)) as staged:
        staged.file("new.safetensors")
        staged.publish()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new.safetensors"]


def unsupported(*names: object) -> None:
    raise OSError(errno.EINVAL, "no such flag")


def test_where_names_cannot_be_exchanged_the_folder_is_replaced_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltx2c.files.linux._renameat2", unsupported)
    test_a_forced_folder_is_exchanged_whole(tmp_path)


def test_a_step_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltx2c.files.linux._renameat2", unsupported)
    out = old_result(tmp_path / "out")
    rename = Path.rename

    def failing(self: Path, target: Path) -> None:
        if self.name.endswith(PART_SUFFIX):
            raise OSError(errno.EIO, "the disk failed")
        rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="the disk failed"), stage(check(out, folder=True, force=True)) as staged:
        staged.publish()
    assert (out / "old.safetensors").read_bytes() == b"old" and list(tmp_path.iterdir()) == [out]


def test_what_was_replaced_and_cannot_be_removed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result's name is durable before anything of the old one goes."""
    out = old_result(tmp_path / "out")
    events: list[str] = []
    sync = staging._sync_folder

    def failing(path: Path) -> None:
        events.append("remove")
        raise PermissionError(errno.EPERM, "not permitted", str(path))

    monkeypatch.setattr(staging, "_sync_folder", lambda path: (events.append(path.name), sync(path)))
    monkeypatch.setattr(staging.shutil, "rmtree", failing)
    destination = check(out, folder=True, force=True)
    with stage(destination) as staged:
        staged.file("new.safetensors")
        staged.publish()
        assert staged.unremoved is not None and staged.unremoved.filename == str(destination.part)
    assert [path.name for path in out.iterdir()] == ["new.safetensors"]
    assert events == [destination.part.name, tmp_path.name, "remove"]
    monkeypatch.undo()
    with stage(destination) as staged:  # the next run takes it for what a killed one left
        assert staged.stale_bytes


def test_a_folder_that_others_put_something_into_meanwhile_is_kept(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    with (
        refused("output-folder-foreign", "precious.safetensors"),
        stage(check(out, folder=True, force=True)) as staged,
    ):
        (out / "precious.safetensors").touch()
        staged.publish()
    assert len(list(out.iterdir())) == 3 and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_written_to_without(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(staging.fcntl, "flock", flock)
    destination = check(tmp_path / "out")
    if code == errno.EIO:
        with pytest.raises(OSError, match="ltx2c-part"), stage(destination):
            pass
        return
    with stage(destination) as staged:
        staged.publish()
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", [False, True])
def test_a_second_run_to_one_destination_is_refused(folder: bool, tmp_path: Path) -> None:
    one, two = (check(tmp_path / "out", folder=folder) for _ in range(2))
    with stage(one) as staged:
        with refused("output-busy", "out"), stage(two):
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
    with stage(destination) as staged:
        assert staged.stale_bytes == 5
        path = staged.file("a")
        assert path.read_bytes() == b"" and not (folder and (destination.part / "shard").exists())
        staged.publish()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_result_that_appears_meanwhile_is_not_overwritten(folder: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with refused("output-exists", "appeared"), stage(check(out, folder=folder)) as staged:
        staged.file("a").write_bytes(b"ours")
        out.write_bytes(b"theirs")
        staged.publish()
    assert out.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
def test_without_the_system_call_for_it_neither(folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltx2c.files.linux._libc", object())
    test_a_result_that_appears_meanwhile_is_not_overwritten(folder, tmp_path)
    out = tmp_path / "out"
    out.unlink()
    with stage(check(out, folder=folder)) as staged:
        staged.file("a").write_bytes(b"ours")
        staged.publish()
    assert list(tmp_path.iterdir()) == [out] and (out / "a" if folder else out).read_bytes() == b"ours"


def test_a_result_is_made_durable_before_and_after_it_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's entry is synced once the name is there; of a folder also the entries within, before."""
    events: list[str] = []
    fsync, rename = os.fsync, staging.rename_new
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(staging, "rename_new", lambda *names: (events.append("rename"), rename(*names)))
    with stage(check(tmp_path / "out", folder=True)) as staged:
        staged.file("a")
        staged.publish()
    assert events == [str(tmp_path / ".out.ltx2c-part"), "rename", str(tmp_path)]
