"""What stands where a result is to go, to be replaced: nothing of it is removed that was not looked at before."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable

from ltx2c.errors import printable
from ltx2c.files.folder import Folder, same_file, unchanged
from ltx2c.files.publishing import RENAME_CHECKED
from ltx2c.files.temporaries import kept_name

_ACL = "system.posix_acl_access"


class Standing:
    """A file, a link, or a folder of shards that a result is to replace.

    Attributes:
        mode: what others may do with it, and so with its successor at the most; of a folder, with its files.
        folder_mode: of a folder, what others may do with the folder itself.
        owner: its owner's number.
    """

    def __init__(self, folder: Folder, out: str, checked: Iterable[str]) -> None:
        """Look at what stands under ``out``, which is something.

        Args:
            checked: of a folder, what it holds that may be removed with it.

        Raises:
            OSError: as the system says.
        """
        self._within = folder
        self._out = out
        self._descriptor = os.open(out, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
        self._lock = -1
        self._folder = Folder(self._descriptor, folder.path / out)
        found = os.fstat(self._descriptor)
        self._is_folder = stat.S_ISDIR(found.st_mode)
        self._checked = {name: status for name in sorted(checked) if (status := self._folder.status(name)) is not None}
        self.owner = found.st_uid
        self.folder_mode = found.st_mode & 0o777
        self.mode = self._mode()

    def _mode(self) -> int:
        """Where a list of further users hides behind the group's bits, those bits do not say what the group may do."""
        if self._is_folder:
            files = [status for status in self._checked.values() if stat.S_ISREG(status.st_mode)]
            mode = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO if files else 0o666
            for file in files:
                mode &= file.st_mode
            return mode & 0o666
        path = f"/proc/self/fd/{self._within.descriptor}/{self._out}"
        try:
            mode = os.stat(self._out, dir_fd=self._within.descriptor).st_mode & 0o777
        except OSError:  # a link that leads nowhere
            return 0o666
        with contextlib.suppress(OSError):
            os.getxattr(path, _ACL)
            mode &= ~stat.S_IRWXG
        return mode

    def is_at(self, name: str) -> bool:
        """Whether it is what stands under ``name`` in the result's folder. Raises ``OSError``."""
        found = self._within.status(name)
        try:
            return found is not None and same_file(found, os.fstat(self._descriptor))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # a file that is gone, on some file systems
                raise
            return False

    def lock(self) -> None:
        """Keep other runs from taking it for what a killed one left, while it stands under a temporary name."""
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._lock = os.open(self._out, flags, dir_fd=self._within.descriptor)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self, name: str) -> str:
        """Remove what stands under a temporary's ``name`` now, as far as it is this and was looked at; keep the rest.

        Returns:
            What a person should know: what was kept, where and why; empty where nothing was.
        """
        try:
            if self._within.status(name) is None:
                return ""
            if not self.is_at(name):
                return self._keep(name, "it appeared at the last moment")
            if not self._is_folder:
                self._within.unlink(name)
                return ""
            for entry, status in self._checked.items():
                now = None if stat.S_ISDIR(status.st_mode) else self._folder.status(entry)
                if now is not None and unchanged(status, now):
                    self._folder.unlink(entry)
            for entry in reversed([one for one, status in self._checked.items() if stat.S_ISDIR(status.st_mode)]):
                self._folder.rmdir(entry)
            self._within.rmdir(name)
        except OSError as error:
            held = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            return self._keep(name, "something in it had appeared meanwhile" if held else _reason(error))
        return ""

    def _keep(self, name: str, why: str) -> str:
        kept = kept_name(self._out)
        try:
            RENAME_CHECKED.move(self._within, name, kept)
        except OSError:
            kept = name
        where = printable(self._within.path / kept)
        return f"the result is in place; what stood there before is left at {where}: {why}"

    def close(self) -> None:
        """Let go of it; again does nothing."""
        self._folder.close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def keep_aside(folder: Folder, out: str) -> str:
    """Move what stands at ``out`` and was not looked at to a name of its own.

    Returns:
        What a person should know.

    Raises:
        OSError: as the system says.
    """
    kept = kept_name(out)
    RENAME_CHECKED.move(folder, out, kept)
    return f"what had appeared there while the result was made is kept at {printable(folder.path / kept)}"


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
