"""Results appear whole or not at all, in one step, and one run at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

import pytest
from destinations import check, fill, left_by_a_killed_run, old_result, temporaries
from refusals import refused

from ltx2c.files import leftovers
from ltx2c.files.destination import Destination
from ltx2c.files.staging import Staged, publish, rehearse, stage


def test_the_result_appears_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with stage(check(out)) as staged:
        fill(staged, "x", b"result")
        assert not out.exists()
        publish(staged)
    assert out.read_bytes() == b"result" and list(tmp_path.iterdir()) == [out]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stage(check(out, folder=True)) as staged:
        fill(staged, "a", b"1")
        fill(staged, "b", b"2")
        assert not out.exists()
        publish(staged)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"a": b"1", "b": b"2"}
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(folder: bool, error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), stage(check(tmp_path / "out", folder=folder)) as staged:
        fill(staged, "a", b"half")
        raise error
    assert not list(tmp_path.iterdir())


def test_what_stands_there_is_kept_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with refused("output-exists", out):
        check(out)
    with stage(check(out, force=True)) as staged:
        fill(staged, "x", b"new")
        assert out.read_bytes() == b"old"
        publish(staged)
    assert out.read_bytes() == b"new"


def test_a_forced_folder_is_exchanged_whole(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    with stage(check(out, folder=True, force=True)) as staged:
        fill(staged, "new.safetensors", b"new")
        publish(staged)
        assert staged.notes == ()
    assert [path.name for path in out.iterdir()] == ["new.safetensors"] and list(tmp_path.iterdir()) == [out]


def test_an_empty_folder_is_replaced_where_forced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with stage(check(tmp_path / "out", folder=True, force=True)) as staged:
        fill(staged, "new.safetensors")
        publish(staged)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new.safetensors"]


def test_what_was_replaced_and_cannot_be_removed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result's name is durable before anything of the old one goes."""
    out = old_result(tmp_path / "out")
    fsync, unlink = os.fsync, os.unlink
    events: list[str] = []

    def failing(path: str, *, dir_fd: int) -> None:
        if path == "old.safetensors":
            events.append("remove")
            raise PermissionError(errno.EPERM, "not permitted", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd)))
    monkeypatch.setattr(os, "unlink", failing)
    with stage(check(out, folder=True, force=True)) as staged:
        fill(staged, "new.safetensors")
        (part,) = temporaries(out)
        publish(staged)
    (note,) = staged.notes
    (kept,) = tmp_path.glob("out.kept-*")
    assert str(kept) in note and "not permitted" in note and (kept / "old.safetensors").read_bytes() == b"old"
    assert events == [part.name, tmp_path.name, "remove"] and {*tmp_path.iterdir()} == {out, kept}


def test_what_others_put_into_a_replaced_folder_is_kept(tmp_path: Path) -> None:
    """Also a file that took the place of one that was looked at. The result is in place all the same."""
    out = old_result(tmp_path / "out")
    with stage(check(out, folder=True, force=True)) as staged:
        fill(staged, "new.safetensors")
        (out / "precious").write_bytes(b"theirs")
        (out / "newer").write_bytes(b"newer")
        (out / "newer").replace(out / "old.safetensors")
        publish(staged)
    (kept,) = tmp_path.glob("out.kept-*")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        "precious": b"theirs",
        "old.safetensors": b"newer",
    }
    assert [path.name for path in out.iterdir()] == ["new.safetensors"] and {*tmp_path.iterdir()} == {out, kept}
    assert str(kept) in staged.notes[-1]


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("folder", [False, True])
def test_what_appears_in_the_place_of_a_forced_result_is_kept(
    folder: bool, before: bytes | None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if before and folder:
        old_result(out)
    elif before:
        out.write_bytes(before)
    with stage(check(out, force=True, folder=folder)) as staged:
        fill(staged, "a", b"ours")
        if before:
            out.rename(tmp_path / "moved")
        out.write_bytes(b"theirs")
        publish(staged)
    (kept,) = tmp_path.glob("out.kept-*")
    assert kept.read_bytes() == b"theirs" and str(kept) in staged.notes[-1]
    assert (out / "a" if folder else out).read_bytes() == b"ours"


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("how", ["removed", "replaced", "another's lock"])
def test_only_the_runs_own_temporary_is_published(how: str, folder: bool, tmp_path: Path) -> None:
    """A cleaner removed it, and somebody else's stands there."""
    out = tmp_path / "out"
    with refused("output-lost", out), stage(check(out, folder=folder)) as staged:
        fill(staged, "a", b"ours")
        (part,) = temporaries(out)
        if how == "another's lock":
            fcntl.flock(staged._temporary.descriptor, fcntl.LOCK_UN)
            other = os.open(part, os.O_RDONLY)
            fcntl.flock(other, fcntl.LOCK_EX)
        else:
            part.rename(tmp_path / "elsewhere")
        if how == "replaced":
            (part.mkdir() if folder else part.write_bytes(b"theirs"))
        publish(staged)
    assert not out.exists()
    if how == "replaced":
        assert part.exists()  # not this run's to remove
    if how == "another's lock":
        os.close(other)


@pytest.mark.parametrize("how", ["added", "removed", "replaced", "linked"])
def test_only_files_that_this_run_wrote_are_published(how: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with refused("output-lost", out), stage(check(out, folder=True)) as staged:
        fill(staged, "a", b"ours")
        fill(staged, "b", b"ours")
        (part,) = temporaries(out)
        if how == "added":
            (part / "c").touch()
        else:
            (part / "a").unlink()
        if how == "replaced":
            (part / "a").write_bytes(b"them")
        if how == "linked":
            (part / "a").symlink_to("/etc/passwd")
        publish(staged)
    assert not out.exists()


def test_nothing_that_stands_in_a_temporary_folder_is_written_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with pytest.raises(FileExistsError), stage(check(tmp_path / "out", folder=True)) as staged:
        (temporaries(tmp_path / "out")[0] / "a").symlink_to(victim)
        staged.file("a")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524, 9, 22, 13, 5])
@pytest.mark.parametrize("folder", [False, True])
def test_a_file_system_without_locks_is_written_to_without(
    folder: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    one, two = (check(tmp_path / "out", folder=folder) for _ in range(2))
    with stage(one) as first:
        fill(first, "a", b"first")
        with stage(two) as second:
            assert "no locks" in second.notes[0] and os.strerror(code) in second.notes[0]
            fill(second, "a", b"second")
            publish(second)
        with refused("output-exists", "appeared"):
            publish(first)
    out = tmp_path / "out"
    assert (out / "a" if folder else out).read_bytes() == b"second" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("folder", [False, True])
def test_a_second_run_to_one_destination_is_refused(folder: bool, tmp_path: Path) -> None:
    one, two = (check(tmp_path / "out", folder=folder) for _ in range(2))
    with stage(one) as staged:
        for attempt in (stage(two).__enter__, lambda: rehearse(two)):
            with refused("output-busy", "out"):
                attempt()
        fill(staged, "a", b"1")
        publish(staged)
    assert (tmp_path / "out").exists()


def test_runs_that_only_try_do_not_stop_others(tmp_path: Path) -> None:
    """Many at once, each gone in a moment."""
    destination = check(tmp_path / "out")
    children = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            try:
                for _ in range(5):
                    rehearse(destination)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    assert sum(end == 0 for end in ends) >= 4 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stale_is_folder", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_run_left_is_recognised_and_cleared(stale_is_folder: bool, folder: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    left = left_by_a_killed_run(out, folder=stale_is_folder)
    with stage(check(out, folder=folder)) as staged:
        assert "removed 5 bytes" in staged.notes[0] and not left.exists()
        fill(staged, "a", b"")
        publish(staged)
    assert list(tmp_path.iterdir()) == [out]


def plant(part: Path, what: str, victim: Path) -> None:
    """Something under a temporary's name that no run of this user left."""
    if what == "a link":
        part.symlink_to(victim)
    elif what == "a hard link":
        part.hardlink_to(victim)
    elif what == "a pipe":
        os.mkfifo(part)
    elif what == "another's file":
        part.write_bytes(b"planted")
        os.chown(part, 12345, 12345)
    else:
        part.mkdir()
        inner = part / "a.safetensors"
        if what == "a folder with a link":
            inner.symlink_to(victim)
        elif what == "a folder with a folder":
            inner.mkdir()
        elif what == "another's folder":
            os.chown(part, 12345, 12345)


@pytest.mark.parametrize(
    "what",
    [
        "a link",
        "a hard link",
        "a pipe",
        "another's file",
        "a folder with a link",
        "a folder with a folder",
        "another's folder",
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_what_is_planted_under_a_temporary_name_is_neither_used_nor_removed(
    folder: bool, what: str, tmp_path: Path
) -> None:
    if "another's" in what and os.geteuid():
        pytest.skip("NOT TESTED: only root may give a file to another")
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_bytes(b"precious")
    part = left_by_a_killed_run(out)
    part.unlink()
    plant(part, what, victim)
    before = part.lstat()
    with stage(check(out, folder=folder)) as staged:
        fill(staged, "a", b"ours")
        publish(staged)
    after = part.lstat()
    assert (before.st_ino, before.st_uid, before.st_mode) == (after.st_ino, after.st_uid, after.st_mode)
    assert victim.read_bytes() == b"precious"
    assert (out / "a" if folder else out).read_bytes() == b"ours" and out.stat().st_uid == os.geteuid()


def test_a_leftover_of_another_result_stays(tmp_path: Path) -> None:
    left = left_by_a_killed_run(tmp_path / "out.safetensors")
    with stage(check(tmp_path / "out")) as staged:
        publish(staged)
    assert left.exists()


def test_a_leftover_that_cannot_be_removed_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by_a_killed_run(tmp_path / "out")

    def forbidden(*words: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(leftovers.Folder, "unlink", forbidden)
    with stage(check(tmp_path / "out")) as staged:
        publish(staged)


def test_names_as_long_as_the_system_has_them(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127, "x" + "é" * 127, "y" * 230, os.fsdecode(b"\xff" * 250)):
        out = tmp_path / name
        left = left_by_a_killed_run(out)
        assert len(os.fsencode(left.name)) <= 255
        with stage(check(out)) as staged:
            assert "removed" in staged.notes[0]
            publish(staged)
        assert list(tmp_path.iterdir()) == [out]
        out.unlink()


@pytest.mark.parametrize("folder", [False, True])
def test_a_result_that_appears_meanwhile_is_not_overwritten(folder: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with refused("output-exists", "appeared"), stage(check(out, folder=folder)) as staged:
        fill(staged, "a", b"ours")
        out.write_bytes(b"theirs")
        publish(staged)
    assert out.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [out]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_mask")
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o644, 0o664, 0o666, 0o400])
def test_a_forced_file_is_as_private_as_the_one_it_replaces(kept: int, tmp_path: Path) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    for target in (out, link):
        out.write_bytes(b"old")
        out.chmod(kept)
        link.unlink(missing_ok=True)
        link.symlink_to(out)
        with stage(check(target, force=True)) as staged:
            fill(staged, "x")
            (part,) = temporaries(target)
            assert mode(part) == kept & 0o644  # never more open, and to be written by whom the mask says
            publish(staged)
        assert target.read_bytes() == b"new" and mode(target) == kept & 0o644 and not target.is_symlink()


def test_a_forced_file_is_read_by_whom_it_was_read_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        out = tmp_path / "out"
        out.write_bytes(b"old")
        out.chmod(0o664)
        with stage(check(out, force=True)) as staged:
            publish(staged)
        assert mode(out) == 0o644
    finally:
        os.umask(before)


@pytest.mark.usefixtures("usual_mask")
def test_a_forced_folder_is_as_private_as_the_one_it_replaces(tmp_path: Path) -> None:
    out = old_result(tmp_path / "out")
    (out / "old.safetensors").chmod(0o640)
    out.chmod(0o750)
    with stage(check(out, force=True, folder=True)) as staged:
        fill(staged, "new.safetensors")
        assert mode(temporaries(out)[0]) == 0o700
        publish(staged)
    assert mode(out) == 0o750 and mode(out / "new.safetensors") == 0o640


@pytest.mark.usefixtures("usual_mask")
def test_what_is_new_has_the_usual_mode_and_the_folders_group(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("NOT TESTED: only root may give a folder to any group")
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o2775)
    for folder in (False, True):
        out = tmp_path / f"out{folder}"
        with stage(check(out, folder=folder)) as staged:
            fill(staged, "x")
            publish(staged)
        assert mode(out) == (0o2755 if folder else 0o644) and out.stat().st_gid == 12345
    assert mode(out / "x") == 0o644 and (out / "x").stat().st_gid == 12345


def test_a_file_of_another_gives_its_successor_to_nobody(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("NOT TESTED: only root may give a file to another")
    out = tmp_path / "out"
    out.write_bytes(b"theirs")
    out.chmod(0o666)
    os.chown(out, 12345, 12345)
    with stage(check(out, force=True)) as staged:
        fill(staged, "x")
        publish(staged)
    assert mode(out) == 0o644 and out.stat().st_uid == 0


class Interrupting:
    """``KeyboardInterrupt`` once, behind the call of ``function`` with this number: as Ctrl-C between two steps."""

    def __init__(self, patch: pytest.MonkeyPatch, function: str, number: int) -> None:
        self._whole = getattr(os, function)
        self._left = number
        patch.setattr(os, function, self)

    def __call__(self, *words: object, **named: object) -> object:
        result = self._whole(*words, **named)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return result

    @property
    def struck(self) -> bool:
        return self._left <= 0


def run(destination: Destination) -> None:
    with stage(destination) as staged:
        fill(staged, "new.safetensors")
        publish(staged)


@pytest.mark.parametrize("function", ["open", "mkdir", "rename", "unlink", "rmdir", "stat", "fstat", "fsync", "dup"])
@pytest.mark.parametrize("exchanging", [True, False])
@pytest.mark.parametrize("folder", [False, True])
def test_an_interrupt_behind_any_call_leaves_nothing(
    folder: bool, exchanging: bool, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old or new stands there, whole, and nothing else; also where names cannot be exchanged in one step."""
    if not exchanging:
        monkeypatch.setattr("ltx2c.files.linux._renameat2", unsupported)
    out = tmp_path / "out"
    for number in range(1, 200):
        old_result(out) if folder else out.write_bytes(b"old")
        destination = check(out, folder=folder, force=True)
        with monkeypatch.context() as patch:
            interrupting = Interrupting(patch, function, number)
            with contextlib.suppress(KeyboardInterrupt):
                run(destination)
        assert list(tmp_path.iterdir()) == [out], number
        if folder:
            names = sorted(path.name for path in out.iterdir())
            assert names in (["model.safetensors.index.json", "old.safetensors"], ["new.safetensors"]), number
        else:
            assert out.read_bytes() in (b"old", b"new"), number
        for path in [*out.iterdir(), out] if folder else [out]:
            path.rmdir() if path.is_dir() else path.unlink()
        if not interrupting.struck:
            break
    else:
        pytest.fail("too many calls")


def unsupported(*names: object) -> None:
    raise OSError(errno.EINVAL, "no such flag")


def test_of_two_results_both_appear_or_neither(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    old = tmp_path / "old"
    old.write_bytes(b"old")

    def fail(**options: object) -> None:
        with stage(check(one, **options)) as first, stage(check(two)) as second:
            fill(first, "x")
            fill(second, "x")
            two.write_bytes(b"theirs")
            with refused("output-exists", two):
                publish(first, second)
        two.unlink()

    fail()
    assert [*tmp_path.iterdir()] == [old]
    old.rename(one)
    fail(force=True)
    assert [*tmp_path.iterdir()] == [one] and one.read_bytes() == b"old"


@pytest.mark.parametrize("instead", ["nothing", "folder", "link"])
def test_a_result_in_a_folder_that_was_moved_meanwhile_says_so(instead: str, tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    with stage(check(home / "out")) as staged:
        fill(staged, "out")
        home.rename(tmp_path / "moved")
        if instead == "folder":
            home.mkdir()
        elif instead == "link":
            home.symlink_to(other)
        publish(staged)
    assert (tmp_path / "moved" / "out").exists() and not list(other.iterdir())
    assert any(str(home) in note and "moved" in note for note in staged.notes)


def test_the_staged_notes_of_a_usual_run_are_none(tmp_path: Path) -> None:
    with stage(check(tmp_path / "out")) as staged:
        assert isinstance(staged, Staged) and staged.notes == ()
        publish(staged)
    assert staged.notes == ()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_whose_run_was_killed_between_two_renames_gets_its_name_back(
    force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltx2c.files.linux._renameat2", unsupported)
    out = old_result(tmp_path / "out")
    if (child := os.fork()) == 0:
        rename = os.rename

        def killed(source: str, target: str, **folders: int) -> None:
            rename(source, target, **folders)
            if source == "out":
                os._exit(0)

        os.rename = killed
        run(check(out, folder=True, force=True))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and not out.exists() and len(list(tmp_path.iterdir())) == 2
    destination = check(out, folder=True, force=force)
    if force:
        run(destination)
        assert [path.name for path in out.iterdir()] == ["new.safetensors"]
    else:
        with refused("output-exists", out):
            run(destination)
        assert (out / "old.safetensors").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("usual_mask")
def test_a_list_of_further_users_gives_the_group_nothing(tmp_path: Path) -> None:
    """Where such a list is, the group's bits of the mode are its mask, and not what the group may do."""
    out = tmp_path / "out"
    out.write_bytes(b"old")
    owner, user, group, mask, others = (0x01, 6, -1), (0x02, 6, 12345), (0x04, 0, -1), (0x10, 6, -1), (0x20, 0, -1)
    entries = b"".join(struct.pack("<HHi", *entry) for entry in (owner, user, group, mask, others))
    try:
        os.setxattr(out, "system.posix_acl_access", struct.pack("<I", 2) + entries)
    except OSError as error:
        pytest.skip(f"NOT TESTED: no access control lists here: {error}")
    assert mode(out) == 0o660
    with stage(check(out, force=True)) as staged:
        publish(staged)
    assert mode(out) == 0o600


def test_a_link_planted_for_a_shard_in_a_subfolder_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of what is replaced may name shards in subfolders; who writes there could make one of them a link."""
    out, victim = tmp_path / "out", tmp_path / "victim" / "x.safetensors"
    for folder in (out, victim.parent):
        folder.mkdir()
    victim.write_bytes(b"precious")
    (out / "model.safetensors.index.json").write_text('{"weight_map": {"x": "sub/x.safetensors"}}')
    destination = check(out, folder=True, force=True)
    look = Destination.check_existing

    def then_plant(self: Destination) -> object:
        found = look(self)
        (out / "sub").symlink_to(victim.parent)
        return found

    monkeypatch.setattr(Destination, "check_existing", then_plant)
    with stage(destination) as staged:
        fill(staged, "a.safetensors", b"new")
        publish(staged)
    assert victim.read_bytes() == b"precious"


def test_a_killed_runs_folder_with_a_variants_index_is_removed(tmp_path: Path) -> None:
    left = left_by_a_killed_run(tmp_path / "out", folder=True)
    (left / "model.safetensors.index.fp16.json").write_text("{}")
    with stage(check(tmp_path / "out", folder=True)):
        assert not left.exists()
