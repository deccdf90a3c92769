"""A result in the making: under a temporary name beside its destination, put in place in one step or removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ltx2c.files.destination import Destination, cannot_write
from ltx2c.files.linux import exchange, rename_new

# What file systems without locks answer (NFS, FUSE). Better no protection against a second run than no run.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def stage(destination: Destination) -> Iterator[Staged]:
    """Take the temporary name for the length of the block, and remove what stands there unless it was published.

    Raises:
        OSError: as the system says.
        RefusedError: ``output-busy``, where another run is writing to this destination.
    """
    staged = Staged(destination, *_locked_part(destination))
    try:
        yield staged
    finally:
        staged.discard()


def _locked_part(destination: Destination) -> tuple[int, int]:
    """A lock on an empty temporary, and how many bytes a killed run had left in it."""
    part, stale = destination.part, 0
    while True:
        with contextlib.suppress(FileExistsError):
            part.mkdir() if destination.folder else part.touch(exist_ok=False)
        with contextlib.suppress(FileNotFoundError):  # the run that held it has ended since
            flags = os.O_RDONLY if part.is_dir() else os.O_RDWR
            lock = os.open(part, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(destination, lock)
                if _is_at(lock, part):
                    stale += _emptied(part)
                    if part.is_dir() == destination.folder:
                        return lock, stale
                    _remove(part)
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)


def _lock(destination: Destination, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise cannot_write(destination.path, "another run is writing to it", "output-busy") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            error.filename = str(destination.part)
            raise


class Staged:
    """A result in the making, under its temporary name.

    Attributes:
        stale_bytes: how much a run that was killed had left under that name; 0 where there was nothing.
        unremoved: once published, why the folder that was replaced could not be removed; None where it was.
    """

    def __init__(self, destination: Destination, lock: int, stale_bytes: int) -> None:
        self.stale_bytes = stale_bytes
        self.unremoved: OSError | None = None
        self._destination = destination
        self._lock = lock

    def file(self, name: str) -> Path:
        """The path of an empty file to write: the temporary itself, or ``name`` in it where it is a folder."""
        if not self._destination.folder:
            return self._destination.part
        path = self._destination.part / name
        path.touch()
        return path

    def publish(self) -> None:
        """Put the result in place, durably. Its files must have been made durable before.

        Raises:
            OSError: as the system says.
            RefusedError: ``output-exists``, where something has appeared there meanwhile; ``output-folder-foreign``,
                where it has in the folder that is to be replaced.
        """
        part, path = self._destination.part, self._destination.path
        replaced = False
        if self._destination.folder:
            _sync_folder(part)
        try:
            if not self._destination.force:
                rename_new(part, path)
            elif self._destination.folder and path.exists():
                self._destination.check_replaceable()  # again: what is lost is what stands there now
                exchange(part, path)
                replaced = True
            else:
                part.replace(path)
        except FileExistsError:
            raise cannot_write(path, "it appeared while the result was made", "output-exists") from None
        _sync_folder(path.parent)
        if replaced:
            self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Remove the folder that the result has changed places with. The result stands, whatever becomes of that."""
        try:
            shutil.rmtree(self._destination.part)
        except OSError as error:
            self.unremoved = error

    def discard(self) -> None:
        """Remove what was not published, and let go of the lock."""
        try:
            if _is_at(self._lock, self._destination.part):
                _remove(self._destination.part)
        finally:
            os.close(self._lock)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _emptied(path: Path) -> int:
    """Empty a file or folder; how many bytes it held."""
    if not path.is_dir():
        size = path.stat().st_size
        os.truncate(path, 0)
        return size
    size = sum(file.lstat().st_size for file in path.iterdir())
    for file in path.iterdir():
        _remove(file)
    return size


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)
