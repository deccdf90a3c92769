"""A folder held open. What is done in it goes by its descriptor, so that no swapped name on the way leads elsewhere.

Names may lead into its subfolders, ``vae/config.json``: no link on the way is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType


class Folder:
    """An open folder; also a context manager.

    Attributes:
        path: for messages.
        descriptor: for calls that take a ``dir_fd``.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take over ``descriptor``."""
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open a folder that need not be readable. Raises ``OSError`` as the system says."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def is_at_its_path(self) -> bool:
        """Whether the path still leads here."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return False

    def status(self, name: str) -> os.stat_result | None:
        """Of what stands under ``name``, of a link itself; None where nothing does. Raises ``OSError``."""
        try:
            with self._within(name) as (descriptor, last):
                return os.stat(last, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def tree(self) -> dict[str, os.stat_result]:
        """Everything below it by name, a subfolder before what it holds; no link is followed. Raises ``OSError``."""
        found = {}
        for name in self.names():
            status = self.status(name)
            if status is None:
                continue
            found[name] = status
            if stat.S_ISDIR(status.st_mode):
                with self.inner(name) as folder:
                    found.update({f"{name}/{entry}": below for entry, below in folder.tree().items()})
        return found

    def inner(self, name: str) -> Folder:
        """A subfolder, open; a link to one is none. Raises ``OSError``."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._within(name) as (descriptor, last):
            return Folder(os.open(last, flags, dir_fd=descriptor), self.path / name)

    def create(self, name: str, mode: int) -> int:
        """A descriptor of a new, empty file, to read and write.

        Raises:
            OSError: as the system says: EEXIST where anything stands there, a link that leads nowhere too.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._within(name) as (descriptor, last):
            return os.open(last, flags, mode, dir_fd=descriptor)

    def adopt(self, name: str, made: Path) -> int:
        """Give a file that lies elsewhere on the file system a second name here; a descriptor of it. Raises OSError."""
        with self._within(name) as (descriptor, last):
            os.link(made, last, dst_dir_fd=descriptor, follow_symlinks=False)
            return os.open(last, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)

    def mkdir(self, name: str) -> None:
        """Make a subfolder. Raises ``OSError``: EEXIST where anything stands there."""
        with self._within(name) as (descriptor, last):
            os.mkdir(last, dir_fd=descriptor)

    @contextlib.contextmanager
    def _within(self, name: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds ``name``, and the last part of it."""
        *folders, last = name.split("/")
        with contextlib.ExitStack() as opened:
            descriptor = self.descriptor
            for folder in folders:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(folder, flags, dir_fd=descriptor)
                opened.callback(os.close, descriptor)
            yield descriptor, last

    def names(self) -> list[str]:
        """What it holds, sorted. Raises ``OSError``: of a folder that may be written but not read, EACCES."""
        with self.readable() as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208  (a Path is no descriptor)

    def sync(self) -> None:
        """Make its entries durable. Raises ``OSError``: EINVAL where the file system has no such thing."""
        with self.readable() as descriptor:
            os.fsync(descriptor)

    @contextlib.contextmanager
    def readable(self) -> Iterator[int]:
        """Another descriptor of it, to list and sync: its own may be one that only leads to names."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename within the folder, replacing ``target`` where it exists. Raises ``OSError``."""
        os.rename(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises ``OSError``: EEXIST where ``target`` exists."""
        os.link(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Remove a name that is no folder's. Raises ``OSError``."""
        with self._within(name) as (descriptor, last):
            os.unlink(last, dir_fd=descriptor)

    def rmdir(self, name: str) -> None:
        """Remove an empty folder. Raises ``OSError``."""
        with self._within(name) as (descriptor, last):
            os.rmdir(last, dir_fd=descriptor)

    def close(self) -> None:
        """Let go of it; again does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_FACTS = ("st_dev", "st_mode", "st_uid", "st_gid", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns")


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two statuses, taken at one time, one of them of an open file, are of one file.

    The inode says so, but where a file system numbers its files anew every few minutes, as some network ones do. There
    all else must agree: a file made by anybody else differs in its owner, one of another moment in its times. None that
    lies on a block device does that, and where times are coarse two of its files may agree in all else.
    """
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    return os.major(one.st_dev) == 0 and unchanged(one, other)


def unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    """Whether two statuses are of one file that nobody has changed between. A new file may have an old one's inode."""
    return all(getattr(before, fact) == getattr(now, fact) for fact in _FACTS)
