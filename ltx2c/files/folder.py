"""A folder held open. What is done in it goes by its descriptor, so that no swapped name on the way leads elsewhere."""

from __future__ import annotations

import contextlib
import os
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

    def status(self, name: str) -> os.stat_result | None:
        """Of what stands under ``name``, of a link itself; None where nothing does. Raises ``OSError``."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """What it holds, sorted. Raises ``OSError``: of a folder that may be written but not read, EACCES."""
        with self._readable() as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208  (a Path is no descriptor)

    def sync(self) -> None:
        """Make its entries durable. Raises ``OSError``: EINVAL where the file system has no such thing."""
        with self._readable() as descriptor:
            os.fsync(descriptor)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[int]:
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
        os.unlink(name, dir_fd=self.descriptor)

    def rmdir(self, name: str) -> None:
        """Remove an empty folder. Raises ``OSError``."""
        os.rmdir(name, dir_fd=self.descriptor)

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
    """Whether two states, taken at one time, one of them of an open file, are of one file.

    The inode says so, but where a file system numbers its files anew every few minutes, as some network ones do. There
    all else must agree: a file made by anybody else differs in its owner, one of another moment in its times.
    """
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) or unchanged(one, other)


def unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    """Whether two states are of one file that nobody has changed between. A new file may have an old one's inode."""
    return all(getattr(before, fact) == getattr(now, fact) for fact in _FACTS)
