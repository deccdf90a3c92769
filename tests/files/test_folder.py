"""Names that lead into subfolders follow no link: what stands elsewhere is neither seen, made nor removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ltx2c.files.folder import Folder


def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    for folder in (victim, victim / "inner", place):
        folder.mkdir()
    (victim / "precious").write_text("x")
    (place / "link").symlink_to(victim)
    with Folder.open(place) as folder:
        for attempt in (
            lambda: folder.unlink("link/precious"),
            lambda: folder.rmdir("link/inner"),
            lambda: folder.mkdir("link/new"),
            lambda: os.close(folder.create("link/new", 0o600)),
            lambda: folder.status("link/precious"),
            lambda: folder.inner("link"),
        ):
            with pytest.raises(NotADirectoryError):
                attempt()
        assert list(folder.tree()) == ["link"]
    assert sorted(path.name for path in victim.iterdir()) == ["inner", "precious"]


def test_a_tree_is_told_folders_first(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("a", "b/x", "b/c/y"):
        (tmp_path / name).write_text("")
    with Folder.open(tmp_path) as folder:
        assert list(folder.tree()) == ["a", "b", "b/c", "b/c/y", "b/x"]
