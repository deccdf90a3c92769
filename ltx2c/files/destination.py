"""Where a result goes, checked before any work. What happens there then is in ``staging``."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ltx2c.errors import RefusedError, printable
from ltx2c.files import linux
from ltx2c.files.folder import Folder
from ltx2c.files.index import find_index, read_index
from ltx2c.files.leftovers import leftovers
from ltx2c.files.paths import means_folder, place
from ltx2c.files.url import AnyPath

# A hub's cache: its files are shared by all who load the model, and their names say what they hold.
_HUB_PREFIXES = ("models--", "datasets--", "spaces--")
_HUB_FOLDERS = ("snapshots", "blobs")


@dataclass(frozen=True)
class Destination:
    """A path that may be written. Get one from ``check``.

    Attributes:
        path: of the result: its folder as the system finds it, and its own name.
        folder: whether the result is a folder of shards rather than a file.
        force: whether a result that stands there is to be replaced.
        names: of a folder, what it will hold, such as ``vae/config.json``.
    """

    path: Path
    folder: bool
    force: bool
    names: frozenset[str] = frozenset()

    @classmethod
    def check(
        cls,
        path: str | os.PathLike[str],
        *,
        inputs: Iterable[AnyPath],
        needed_bytes: int,
        force: bool = False,
        folder: bool = False,
        names: Iterable[str] = (),
    ) -> Destination:
        """Make sure, without writing, that a result of ``needed_bytes`` can be put at ``path``.

        Args:
            inputs: every file and folder that is read: none of them may be the result, by whatever name; no URL is.
            folder: whether the result is a folder.
            names: what it will hold: such of it may be replaced that is called the same.

        Raises:
            OSError: as the system says.
            RefusedError: ``bad-path``, ``output-is-input``, ``output-folder-missing``, ``output-exists``,
                ``output-is-folder``, ``output-is-not-file``, ``output-is-not-folder``, ``output-folder-foreign``,
                ``output-in-cache``, ``output-not-replaceable``, ``output-no-rename``, ``no-room``.
        """
        destination = cls(_placed(path), folder, force, frozenset(names))
        if means_folder(path) and not folder:
            destination._refuse(f"{printable(path)} means a folder, and the result is a file", "output-is-folder")
        destination._check_cache()
        destination._check_inputs(inputs)
        destination._check_name()
        destination.check_existing()
        destination._check_place()
        destination._check_room(needed_bytes)
        return destination

    def _check_cache(self) -> None:
        parts = self.path.parts
        for repository, below in itertools.pairwise(parts):
            if repository.startswith(_HUB_PREFIXES) and below in _HUB_FOLDERS:
                problem = f"it lies in a hub's cache, below {printable(repository)}, which is not ours to change"
                self._refuse(problem, "output-in-cache")

    def _check_inputs(self, inputs: Iterable[AnyPath]) -> None:
        cleared = [self.path.with_name(name) for name, _ in self._leftovers()]
        for source in (one for one in inputs if isinstance(one, Path)):
            if _same(self.path, source):
                self._refuse(f"it is the input {printable(source)}", "output-is-input")
            if self.folder and _holds(self.path, source):
                self._refuse(f"it holds the input {printable(source)}", "output-is-input")
            for left in cleared:
                if _same(left, source) or _holds(left, source):
                    problem = f"its temporary {printable(left.name)}, left by a killed run, is the input"
                    self._refuse(f"{problem} {printable(source)}", "output-is-input")

    def _leftovers(self) -> list[tuple[str, os.stat_result]]:
        with Folder.open(self.path.parent) as folder:
            return list(leftovers(folder, self.path.name))

    def _check_name(self) -> None:
        if self.folder and self.path.name.endswith(".safetensors"):
            self._refuse("the result is a folder of shards, and its name is a file's", "output-is-not-folder")

    def check_existing(self) -> frozenset[str] | None:
        """Make sure that what stands at ``path`` may be replaced by the result.

        Returns:
            The names in a folder that may be removed with it, subfolders and what they hold too; of a file none; None
            where nothing stands there.

        Raises:
            OSError: as the system says.
            RefusedError: ``output-exists``, ``output-is-folder``, ``output-is-not-file``, ``output-is-not-folder``,
                ``output-folder-foreign``: it holds something that is no part of one checkpoint, and would be lost.
        """
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return None
        if self.folder and not stat.S_ISDIR(mode):
            self._refuse("it is no folder, and the result is one", "output-is-not-folder")
        if not self.folder:
            self._check_kind(mode)
        if not self.force:
            self._refuse("it exists; --force replaces it", "output-exists")
        return self._check_foreign() if self.folder else frozenset()

    def _check_kind(self, mode: int) -> None:
        what = "it"
        if stat.S_ISLNK(mode):
            what = "what it links to"
            with contextlib.suppress(OSError):  # a link that leads nowhere, or to itself
                mode = self.path.stat().st_mode
        if stat.S_ISDIR(mode):
            self._refuse(f"{what} is a folder, and the result is a file", "output-is-folder")
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            self._refuse(f"{what} is no file but a device, pipe or socket", "output-is-not-file")

    def _check_foreign(self) -> frozenset[str]:
        with Folder.open(self.path) as folder:
            tree = folder.tree()
        ours = self.names.union(*(self._checkpoint_names(folder) for folder in self._folders(tree)))
        for name, status in tree.items():
            if stat.S_ISDIR(status.st_mode):
                known = any(one.startswith(f"{name}/") for one in ours)
            else:
                known = name in ours and stat.S_ISREG(status.st_mode)
            if not known:
                problem = f"it holds {printable(name)}, which is no shard or index of it and would be lost"
                self._refuse(problem, "output-folder-foreign")
        return frozenset(tree)

    def _folders(self, tree: Mapping[str, os.stat_result]) -> Iterator[str]:
        """Where checkpoints may stand: at ``path``, and in subfolders that the result has as well."""
        if tree:
            yield ""
        for folder in {name.rpartition("/")[0] for name in self.names} - {""}:
            if folder in tree and stat.S_ISDIR(tree[folder].st_mode):
                yield folder

    def _checkpoint_names(self, folder: str) -> frozenset[str]:
        """The index in a folder at ``path``, and the shards that it names; none of them where there is no index.

        Not those in subfolders: a link in the place of one would lead to what is not the checkpoint's.
        """
        try:
            index = find_index(self.path / folder)
            shards = () if index is None else (index.name, *read_index(index).weight_map.values())
            return frozenset(f"{folder}/{name}".lstrip("/") for name in shards if "/" not in name)
        except RefusedError as error:
            self._refuse(f"it would be replaced, and holds no one checkpoint: {error}", "output-folder-foreign")

    def _check_place(self) -> None:
        with Folder.open(self.path.parent) as folder:
            if linux.is_mount_root(folder.descriptor, self.path.name):
                self._refuse("it is mounted there, and what is mounted has no other name", "output-not-replaceable")
            if linux.is_append_only(folder.descriptor):
                self._refuse("its folder is append-only: no file in it can be renamed", "output-no-rename")

    def _check_room(self, needed: int) -> None:
        room = _free_bytes(self.path.parent)
        if room is None:
            return
        room += sum(map(disk_bytes, (self.path.with_name(name) for name, _ in self._leftovers())))
        if needed > room:
            self._refuse(f"needs {needed} bytes, its file system has {room} free", "no-room")

    def _refuse(self, problem: str, code: str) -> NoReturn:
        raise cannot_write(self.path, problem, code)


def _placed(path: str | os.PathLike[str]) -> Path:
    try:
        placed = place(path)
        if placed.parent.is_dir():
            return placed
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    folder = Path(path).parent
    raise cannot_write(Path(path), f"its folder {printable(folder)} does not exist", "output-folder-missing")


def _free_bytes(folder: Path) -> int | None:
    """How much may be written there; None where the file system does not tell."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        return None
    if not status.f_blocks:
        return None
    return (status.f_bavail if os.geteuid() else status.f_bfree) * status.f_frsize


def cannot_write(path: AnyPath, problem: str, code: str) -> RefusedError:
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


def disk_bytes(path: Path) -> int:
    """What a file, or a folder's files, take on disk; 0 of what has gone, as another run's may at any moment."""
    try:
        files = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
        return sum(file.lstat().st_blocks * 512 for file in files)
    except (FileNotFoundError, PermissionError):
        return 0
