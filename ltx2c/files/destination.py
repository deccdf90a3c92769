"""Where a result goes, checked before any work. What happens there then is in ``staging``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ltx2c.errors import RefusedError, printable
from ltx2c.files.index import find_index, read_index
from ltx2c.files.paths import as_path

PART_SUFFIX = ".ltx2c-part"


@dataclass(frozen=True)
class Destination:
    """A path that may be written. Get one from ``check``.

    Attributes:
        path: of the result.
        folder: whether the result is a folder of shards rather than a file.
        force: whether a result that stands there is to be replaced.
    """

    path: Path
    folder: bool
    force: bool

    @classmethod
    def check(
        cls,
        path: str | os.PathLike[str],
        *,
        inputs: Iterable[Path],
        needed_bytes: int,
        force: bool = False,
        folder: bool = False,
    ) -> Destination:
        """Make sure, without writing, that a result of ``needed_bytes`` can be put at ``path``.

        Args:
            inputs: every file and folder that is read: none of them may be the result, by whatever name.
            folder: whether the result is a folder.

        Raises:
            OSError: as the system says.
            RefusedError: ``bad-path``, ``output-is-input``, ``output-folder-missing``, ``output-exists``,
                ``output-is-folder``, ``output-is-not-file``, ``output-is-not-folder``, ``output-folder-foreign``,
                ``no-room``.
        """
        destination = cls(Path(os.path.abspath(as_path(path))), folder, force)  # noqa: PTH100  (resolve() would follow OUT)
        destination._check_parent()
        destination._check_inputs(inputs)
        destination._check_name()
        destination._check_existing()
        destination._check_room(needed_bytes)
        return destination

    @property
    def part(self) -> Path:
        """The temporary name. It is the same for every run, so that a second run finds the first and a stale one."""
        return self.path.with_name(f".{self.path.name}{PART_SUFFIX}")

    def _check_parent(self) -> None:
        if not self.path.parent.is_dir():
            self._refuse(f"its folder {printable(self.path.parent)} does not exist", "output-folder-missing")

    def _check_inputs(self, inputs: Iterable[Path]) -> None:
        for source in inputs:
            if _same(self.path, source):
                self._refuse(f"it is the input {printable(source)}", "output-is-input")
            if self.folder and _holds(self.path, source):
                self._refuse(f"it holds the input {printable(source)}", "output-is-input")
            if _same(self.part, source) or _holds(self.part, source):  # emptied, whether it is a file or a folder
                problem = f"its temporary name {printable(self.part.name)} would take the input {printable(source)}"
                self._refuse(problem, "output-is-input")

    def _check_name(self) -> None:
        if self.folder and self.path.name.endswith(".safetensors"):
            self._refuse("the result is a folder of shards, and its name is a file's", "output-is-not-folder")

    def _check_existing(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode) and not self.folder:
            self._refuse("it is a folder, and the result is a file", "output-is-folder")
        if self.folder and not stat.S_ISDIR(mode):
            self._refuse("it is no folder, and the result is one", "output-is-not-folder")
        if not self.folder and not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            self._refuse("it is no file but a device, pipe or socket", "output-is-not-file")
        if not self.force:
            self._refuse("it exists; --force replaces it", "output-exists")
        if self.folder:
            self.check_replaceable()

    def check_replaceable(self) -> None:
        """Make sure that the folder at ``path`` holds one checkpoint, an index and its shards, or nothing.

        Raises:
            OSError: as the system says.
            RefusedError: ``output-folder-foreign``: it holds something else, which would be lost.
        """
        entries = sorted(self.path.iterdir())
        ours = self._checkpoint_names() if entries else frozenset()
        for entry in entries:
            if entry.name not in ours or not stat.S_ISREG(entry.lstat().st_mode):
                problem = f"it holds {printable(entry.name)}, which is no shard or index of it and would be lost"
                self._refuse(problem, "output-folder-foreign")

    def _checkpoint_names(self) -> frozenset[str]:
        """The index that stands at ``path``, and the shards that it names; none of them where there is no index."""
        try:
            index = find_index(self.path)
            return frozenset() if index is None else frozenset((index.name, *read_index(index).weight_map.values()))
        except RefusedError as error:
            self._refuse(f"it would be replaced, and holds no one checkpoint: {error}", "output-folder-foreign")

    def _check_room(self, needed: int) -> None:
        status = os.statvfs(self.path.parent)
        room = status.f_bavail * status.f_frsize + self._stale_bytes()
        if needed > room:
            self._refuse(f"needs {needed} bytes, its file system has {room} free", "no-room")

    def _stale_bytes(self) -> int:
        """What a killed run left and this one will remove."""
        part = self.part
        files = part.rglob("*") if part.is_dir() else (part,)
        return sum(map(_disk_bytes, files))

    def _refuse(self, problem: str, code: str) -> NoReturn:
        raise cannot_write(self.path, problem, code)


def cannot_write(path: Path, problem: str, code: str) -> RefusedError:
    """The refusal to put a result at ``path``."""
    return RefusedError(f"cannot write {printable(path)}: {problem}", code=code)


def _same(place: Path, source: Path) -> bool:
    try:
        return place.samefile(source)
    except FileNotFoundError:  # nothing stands there
        return False


def _holds(folder: Path, source: Path) -> bool:
    """Whether emptying ``folder`` would take ``source`` away: the name it is read by, or what that leads to."""
    return any(_same(folder, parent) for way in (source.absolute(), source.resolve()) for parent in way.parents)


def _disk_bytes(path: Path) -> int:
    """What a file takes on disk; 0 where it has gone, as another run's may at any moment."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
