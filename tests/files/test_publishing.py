"""Asking whether what stands at a result's place may be replaced changes nothing there, whatever that is by now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ltx2c.files.folder import Folder, same_file
from ltx2c.files.publishing import check_replaceable
from ltx2c.files.temporaries import Temporary


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as opened:
        yield opened


def ask(folder: Folder, *, opposite_is_folder: bool) -> None:
    opposite = Temporary(folder, "out", is_folder=opposite_is_folder)
    opposite.make(0o600)
    try:
        check_replaceable(folder, "out", opposite)
    finally:
        opposite.discard()
        opposite.close()


def test_a_file_where_a_folder_was_checked_stays(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"another run's")
    was = (tmp_path / "out").stat().st_ino
    ask(folder, opposite_is_folder=False)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"another run's")]
    assert (tmp_path / "out").stat().st_ino == was


def test_an_empty_folder_where_a_file_was_checked_stays(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    was = (tmp_path / "out").stat().st_ino
    ask(folder, opposite_is_folder=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").stat().st_ino == was


@pytest.mark.parametrize("opposite_is_folder", [False, True])
def test_what_has_gone_is_not_made_for_a_moment(
    opposite_is_folder: bool, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed in that moment would leave it there."""
    stood: list[bool] = []

    def rename(self: Folder, source: str, target: str) -> None:
        try:
            os.rename(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        finally:
            stood.append((tmp_path / "out").exists())

    monkeypatch.setattr(Folder, "rename", rename)
    ask(folder, opposite_is_folder=opposite_is_folder)
    assert stood == [False]
    assert list(tmp_path.iterdir()) == []


def test_what_appears_again_at_once_keeps_its_name_and_the_other_gets_one(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_bytes(b"first")

    def rename(self: Folder, source: str, target: str) -> None:
        os.rename(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        if source == "out":
            (tmp_path / "out").write_bytes(b"second")

    monkeypatch.setattr(Folder, "rename", rename)
    ask(folder, opposite_is_folder=False)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found.pop("out") == b"second"
    ((name, content),) = found.items()
    assert name.startswith("out.kept-")
    assert content == b"first"


@pytest.mark.parametrize(("device", "same"), [(os.makedev(8, 1), False), (os.makedev(0, 52), True)])
def test_only_off_block_devices_may_a_file_have_two_numbers(device: int, same: bool) -> None:
    def status(inode: int) -> Any:
        facts = dict.fromkeys(("st_mode", "st_uid", "st_gid", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns"), 1)
        return SimpleNamespace(**facts, st_dev=device, st_ino=inode)

    assert same_file(status(7), status(8)) is same
    assert same_file(status(7), status(7))
