"""A file of a known size that is written in any order, again, and by several processes at once.

Pages that are written as a whole go around the page cache where the file system does that. What shares a page with
other bytes goes through it, so that two writers who meet within one do not undo each other's part. Bytes that are
written twice are the same both times.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

import numpy as np

from ltx2c.files.direct import WINDOW_BYTES
from ltx2c.files.header import PAGE
from ltx2c.files.linux import finish_writeback, reserve
from ltx2c.files.naming import naming


class PositionalFile:
    """A file that is open to be written at any place; also a context manager. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        """Open a file that ``create`` made. Raises ``OSError`` as the system says."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._dirty = 0
        try:
            self._direct = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                self.close()
                raise
            self._direct = -1

    @classmethod
    def create(cls, path: Path, size: int) -> None:
        """Make a file of ``size`` zeros, its room reserved.

        Raises:
            OSError: as the system says: EEXIST, or ENOSPC where it does not fit.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            with naming(path):
                reserve(descriptor, size)
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def write(self, offset: int, data: memoryview) -> None:
        """Write ``data`` at ``offset``. Of data that lie in memory as in the file modulo a page, whole pages directly.

        Raises:
            OSError: as the system says, naming the file.
        """
        end = offset + len(data)
        first, last = -(-offset // PAGE) * PAGE, end // PAGE * PAGE
        address = np.frombuffer(data, np.uint8).ctypes.data if data else 0
        with naming(self.path):
            if self._direct < 0 or first >= last or address % PAGE != offset % PAGE:
                self._write(data, offset)
                return
            self._write(data[: first - offset], offset)
            reached = self._write_pages(data[first - offset : last - offset], first)
            self._write(data[reached - offset :], reached)

    def _write_pages(self, data: memoryview, offset: int) -> int:
        """Up to where whole pages were written; some file systems take none, or part of them when nearly full."""
        while data:
            try:
                count = os.pwrite(self._direct, data, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return offset
            data, offset = data[count:], offset + count
            if count % PAGE:
                return offset
        return offset

    def _write(self, data: memoryview, offset: int) -> None:
        begin = offset
        while data:
            count = os.pwrite(self._descriptor, data, offset)
            data, offset = data[count:], offset + count
        self._dirty += offset - begin
        if self._dirty >= WINDOW_BYTES:  # a file system without direct output: leave no more than a window dirty
            finish_writeback(self._descriptor, 0, 0)
            self._dirty = 0

    def sync(self) -> None:
        """Make what was written durable. Raises ``OSError``."""
        with naming(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of it; again does nothing."""
        for name in ("_descriptor", "_direct"):
            descriptor = getattr(self, name, -1)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> PositionalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
