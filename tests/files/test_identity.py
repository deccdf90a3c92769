"""A file that changed since it was opened is noticed, one that did not is not; and open files stay where they are."""

from __future__ import annotations

import copy
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rawfiles import write_tensors
from refusals import refused
from tensor_files import pair, write

import ltx2c
from ltx2c.files import FileIdentity, TensorFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (4,), b"1234")})


def _times_put_back(path: Path, change: Callable[[], object]) -> None:
    before = path.stat()
    time.sleep(0.02)  # a status change is timed by the system's tick
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")


def _overwrite_and_put_the_time_back(path: Path) -> None:
    _times_put_back(path, lambda: _overwrite(path))


def _replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [_truncate, _overwrite, _overwrite_and_put_the_time_back, _replace, Path.unlink])
def test_a_file_changed_since_it_was_opened_is_noticed(change: Callable[[Path], object], path: Path) -> None:
    with TensorFile.open(path) as file:
        file.check_unchanged()
        time.sleep(0.02)
        change(path)
        with refused("file-changed", path):
            file.check_unchanged()


def _as_seen_by_a_file_system_without_lasting_numbers(patch: pytest.MonkeyPatch, *others: Path) -> None:
    """Every look at a path gives its inode another number, and ``others`` have the times and size of the first."""
    stat, like = Path.stat, others[0].stat() if others else None

    def renumbered(path: Path, **options: bool) -> os.stat_result:
        there = stat(path, **options)
        told = like if like and path in others else there
        exact = {name: getattr(told, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
        numbered = (there.st_mode, there.st_ino + 10**7, *there[2:6], told.st_size, *told[7:])
        return os.stat_result(numbered, exact)

    patch.setattr(Path, "stat", renumbered)


def test_an_inode_number_that_changes_by_itself_is_no_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TensorFile.open(path) as file:
        _as_seen_by_a_file_system_without_lasting_numbers(monkeypatch)
        assert path.stat().st_ino != file.identity.inode
        file.check_unchanged()
        _overwrite(path)
        with refused("file-changed"):
            file.check_unchanged()


def test_another_file_of_the_same_size_and_times_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin, link, here = path.with_name("twin"), path.with_name("link"), path.with_name("here")
    twin.write_bytes(path.read_bytes())
    for name in (link, here):
        name.symlink_to(path)
    with TensorFile.open(link) as linked, TensorFile.open(here) as held:
        link.unlink()
        link.symlink_to(twin)
        _as_seen_by_a_file_system_without_lasting_numbers(monkeypatch, here, link, path)
        held.check_unchanged()
        with refused("file-changed", twin):
            linked.check_unchanged()


def test_an_identity_goes_through_json(path: Path) -> None:
    with TensorFile.open(path) as file:
        identity = file.identity
    assert FileIdentity.from_json(json.loads(json.dumps(identity.as_json()))) == identity
    assert Path(identity.path) == path and identity.size == path.stat().st_size


@pytest.mark.parametrize("change", [{"size": "9"}, {"size": True}, {"path": None}, {"other": 1}])
def test_what_is_no_identity_is_refused(change: dict[str, object], path: Path) -> None:
    with TensorFile.open(path) as file:
        told = file.identity.as_json()
    for wrong in (told | change, [told], {}):
        with refused("identity-json"):
            FileIdentity.from_json(wrong)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_what_holds_open_files_is_not_copied(duplicate: Callable[[object], object], tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", pair("m", 4, 2, 4))
    with ltx2c.Checkpoint.open(path) as checkpoint, ltx2c.Adapter.open(path) as adapter:
        file = checkpoint.files[0]
        for holder in (file, next(iter(file.tensors.values())), checkpoint, adapter):
            with pytest.raises(TypeError, match=f"a {type(holder).__name__} cannot be pickled or copied: .* path"):
                duplicate(holder)
