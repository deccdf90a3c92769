"""Where a result goes: checked before any work, built under a temporary name beside it, put in place in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ltx2c.errors import RefusedError, printable
from ltx2c.files.index import find_index, read_index
from ltx2c.files.linux import exchange, rename_new
from ltx2c.files.paths import as_path

PART_SUFFIX = ".ltx2c-part"

# What file systems without locks answer (NFS, FUSE). Better no protection against a second run than no run.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
        raise RefusedError(f"cannot write {printable(self.path)}: {problem}", code=code)

    @contextlib.contextmanager
    def stage(self) -> Iterator[Staged]:
        """Take the temporary name for the length of the block, and remove what stands there unless it was published.

        Raises:
            OSError: as the system says.
            RefusedError: ``output-busy``, where another run is writing to this destination.
        """
        staged = Staged(self, *self._locked_part())
        try:
            yield staged
        finally:
            staged.discard()

    def _locked_part(self) -> tuple[int, int]:
        """A lock on an empty temporary, and how many bytes a killed run had left in it."""
        stale = 0
        while True:
            with contextlib.suppress(FileExistsError):
                self.part.mkdir() if self.folder else self.part.touch(exist_ok=False)
            with contextlib.suppress(FileNotFoundError):  # the run that held it has ended since
                flags = os.O_RDONLY if self.part.is_dir() else os.O_RDWR
                lock = os.open(self.part, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    self._lock(lock)
                    if _is_at(lock, self.part):
                        stale += _emptied(self.part)
                        if self.part.is_dir() == self.folder:
                            return lock, stale
                        _remove(self.part)
                except BaseException:
                    os.close(lock)
                    raise
                os.close(lock)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._refuse("another run is writing to it", "output-busy")
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                error.filename = str(self.part)
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
            raise RefusedError(
                f"cannot write {printable(path)}: it appeared while the result was made", code="output-exists"
            ) from None
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
