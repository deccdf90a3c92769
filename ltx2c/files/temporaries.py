"""Temporary files and folders beside a result: made anew under names that nobody can foresee, never taken over.

Whoever may write to the folder could have put anything under a name known beforehand: a link to another's file, a file
that stays theirs to change. So a name has 128 random bits, and what stands under it is the run's own or the run fails.
What a killed run left is told by its name, its owner and a lock that nobody holds; it is removed, never used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

from ltx2c.files.folder import Folder, same_file

SUFFIX = ".ltx2c-part"
JOB_SUFFIX = ".ltx2c-job"  # of a folder in which a result is made in units
ASIDE = "-old"  # behind a temporary's name: what stood at the destination, for a moment between two renames

_TOKEN_BYTES = 16
_LONGEST_NAME = 255  # bytes, on every file system that is in use


def stem(name: str) -> str:
    """What the temporaries of a result called ``name`` begin with: its name, cut to leave room for the rest."""
    return f".{_cut(name, len(f'..{_token()}{SUFFIX}{ASIDE}'))}."


def kept_name(name: str) -> str:
    """A name, not a hidden one, for what stood under ``name`` and is not to be lost."""
    ending = f".kept-{_token()[:8]}"
    return _cut(name, len(ending)) + ending


def _token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def _cut(name: str, room: int) -> str:
    """``name``, or what of it leaves ``room`` bytes, and a hash of it all."""
    encoded = os.fsencode(name)
    left = _LONGEST_NAME - room
    if len(encoded) <= left:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    end = left - len(digest) - 1
    while end and encoded[end] & 0xC0 == 0x80:  # not within a character: some file systems want valid UTF-8
        end -= 1
    return f"{os.fsdecode(encoded[:end])}.{digest}"


def is_temporary(name: str, entry: str) -> bool:
    """Whether ``entry`` is called as a temporary of a result called ``name``."""
    return _is_called(name, entry, f"{re.escape(SUFFIX)}({re.escape(ASIDE)})?")


def job_name(name: str) -> str:
    """A new name for the folder in which a result called ``name`` is made in units."""
    return f"{stem(name)}{_token()}{JOB_SUFFIX}"


def is_job_name(name: str, entry: str) -> bool:
    """Whether ``entry`` is called so."""
    return _is_called(name, entry, re.escape(JOB_SUFFIX))


def _is_called(name: str, entry: str, ending: str) -> bool:
    return re.fullmatch(f"{re.escape(stem(name))}[0-9a-f]{{{2 * _TOKEN_BYTES}}}{ending}", entry, re.DOTALL) is not None


class Temporary:
    """An empty file or folder of the run's own, open and locked.

    Attributes:
        name: in its folder.
        descriptor: of the file, to read and write; of the folder, to list.
        mode: of a folder, what others may do with it in the end; until then its owner alone may.
        unlocked: why it could not be locked; None where it is.
    """

    def __init__(self, folder: Folder, out: str, *, is_folder: bool) -> None:
        """A temporary in ``folder`` of the result called ``out``, not made yet."""
        self.name = ""
        self.descriptor = -1
        self.mode = 0
        self.unlocked: OSError | None = None
        self.is_folder = is_folder
        self._folder = folder
        self._stem = stem(out)
        self._names: list[str] = []  # every name it may stand under, noted before the system is asked for it

    def fresh_name(self) -> str:
        """A name that it may be moved to, which nobody knows yet."""
        name = f"{self._stem}{_token()}{SUFFIX}"
        self._names.append(name)
        return name

    def share_names(self, other: Temporary) -> None:
        """Take note that either may come to stand where the other does."""
        self._names = other._names = self._names + other._names

    def swap_names(self, other: Temporary) -> None:
        """Take note that they stand where the other did."""
        self.name, other.name = other.name, self.name

    def make(self, mode: int) -> None:
        """Make and lock it, a file for others to use as ``mode`` says, less what the system masks.

        Raises:
            OSError: as the system says; nothing is left.
            BlockingIOError: another run takes it for a killed one's: make another.
        """
        self.name = self.fresh_name()
        here = self._folder.descriptor
        if self.is_folder:
            os.mkdir(self.name, dir_fd=here)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self.descriptor = os.open(self.name, flags, dir_fd=here)
            self.mode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)
            change_mode(self.descriptor, stat.S_IRWXU | self.mode & stat.S_ISGID)
        else:
            self.descriptor = self._folder.create(self.name, mode)
        self._lock()

    def adopt(self, made: Path) -> None:
        """Become another name of a file, in the place of the empty one. Raises OSError as the system says."""
        here, before = self._folder.descriptor, self.name
        name = self.fresh_name()
        os.link(made, name, dst_dir_fd=here, follow_symlinks=False)
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        self._folder.unlink(before)
        os.close(self.descriptor)
        self.name, self.descriptor = name, descriptor
        self._lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it may stand under."""
        return tuple(self._names)

    def _lock(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:  # better no protection against a second run than no run
            self.unlocked = error

    def status(self) -> os.stat_result:
        """Its status, whatever name it has."""
        return os.fstat(self.descriptor)

    def is_at(self, name: str) -> bool:
        """Whether it is what stands under ``name``. Raises ``OSError``."""
        found = self._folder.status(name)
        return found is not None and self._is(found)

    def _is(self, found: os.stat_result) -> bool:
        try:
            return same_file(found, self.status())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # a file that is gone, on some file systems
                raise
            return False

    def is_own(self) -> bool:
        """Whether it still stands under its name, and no other run has taken it for a killed one's."""
        if self.unlocked is None:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        return self.is_at(self.name)

    def discard(self) -> None:
        """Remove it where it stands under a name that it had, a folder with it only if it is empty; again does nothing.

        Raises:
            OSError: as the system says.
        """
        for name in self._names:
            found = self._folder.status(name)
            if found is None or (self.descriptor >= 0 and not self._is(found)):
                continue
            if stat.S_ISDIR(found.st_mode):
                self._folder.rmdir(name)
            else:
                self._folder.unlink(name)

    def close(self) -> None:
        """Let go of it and its lock; again does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        self._names = []
        if descriptor >= 0:
            os.close(descriptor)


def change_mode(descriptor: int, mode: int) -> None:
    """Say who may do what with a file, where its file system knows such a thing."""
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, mode)
