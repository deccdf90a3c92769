"""How bytes come from a file on this machine: copied from the page cache, or read around it."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ltx2c.errors import RefusedError, printable
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.header import PAGE
from ltx2c.files.identity import FileIdentity, Identity
from ltx2c.files.page_cache import CountPages, page_counter, pages_between

WritableBuffer = bytearray | memoryview | mmap.mmap | npt.NDArray[Any]

# A block is copied from the page cache where this share of it is there. Measured on blocks of 16 MB, Linux 6.18, two
# Zen 4 cores, a disk of 2.5 GB/s: 4.2 ms if all is cached, 6.9 ms without the last eighth, 11.9 without the last half,
# 5.1 with 8 holes of 64 KB and 7.8 with 64, against 6.8 ms around the cache, which takes no processor time.
MOSTLY_CACHED = 7 / 8


class Reader(Protocol):
    """A file or an object that is open for reading, at any place and in any order.

    Attributes:
        size: bytes in all, when it was opened.
    """

    size: int

    def read_into(self, buffer: WritableBuffer, offset: int) -> None:
        """Fill ``buffer``, a contiguous array or a buffer of bytes, from byte ``offset`` on.

        Raises:
            OSError: reading failed.
            RefusedError: ``file-changed``, where it is seen not to be what was opened.
        """

    def read_block(self, buffer: memoryview, at: int, nbytes: int, offset: int) -> None:
        """Fill ``buffer[at : at + nbytes]`` from byte ``offset`` on. Raises as ``read_into`` does.

        Args:
            buffer: page-aligned; up to a page before and behind the part that is filled may be overwritten.
        """

    def view(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Bytes ``begin`` to ``end``, read-only; of a file mapped. Raises as ``read_into`` does."""

    def identity(self, header_sha256: str) -> Identity:
        """What was opened, which has a header of this digest."""

    def check_unchanged(self) -> None:
        """Make sure that what was opened is still there as it was; see ``ltx2c.files.identity``.

        Raises:
            OSError: that cannot be found out.
            RefusedError: ``file-changed``.
        """

    def close(self) -> None:
        """Let go of it. What ``view`` gave stays valid."""


class FileReader(HoldsDescriptors):
    """A file that is open for reading.

    Attributes:
        path: as given.
        size: bytes in all, when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``.

        Raises:
            OSError: the file is missing or cannot be read.
            RefusedError: ``not-a-file``.
        """
        self.path = path
        self._absolute = path.absolute()  # where it is, also after the process has changed its working folder
        self._resolved = os.path.realpath(path)
        # Without O_NONBLOCK the open itself would wait for a pipe's writer.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._open = [self._descriptor]
        self._close = weakref.finalize(self, _close_all, self._open)  # at the latest when nothing refers to it
        self._direct: int | None = None  # the same file, opened for direct reads; -1 where that is refused
        self._count_pages: CountPages | None = None
        self._mapping: npt.NDArray[np.uint8] | None = None
        self._opened = os.fstat(self._descriptor)
        self.size = self._opened.st_size
        if not stat.S_ISREG(self._opened.st_mode):
            self.close()
            raise RefusedError(f"{printable(path)}: not a regular file", code="not-a-file")

    def identity(self, header_sha256: str) -> FileIdentity:
        """As ``Reader.identity``."""
        return FileIdentity.of(self.path, self._opened, header_sha256)

    def read_into(self, buffer: WritableBuffer, offset: int) -> None:
        """As ``Reader.read_into``; refused where the file ends before the buffer is full."""
        left = bytes_of(buffer)
        while left:
            try:
                count = os.preadv(self._descriptor, [left], offset)
            except OSError as error:
                error.filename = str(self.path)
                raise
            if count == 0:
                raise RefusedError(
                    f"{printable(self.path)}: ends at byte {offset}: truncated meanwhile", code="file-changed"
                )
            left, offset = left[count:], offset + count

    def read_block(self, buffer: memoryview, at: int, nbytes: int, offset: int) -> None:
        """Fill ``buffer[at : at + nbytes]`` from byte ``offset`` of the file, around the page cache where it is cold.

        What the system holds in memory is copied from there. What it does not is read directly, which spares the copy
        and leaves other files cached, where file and buffer agree modulo the page size.

        Args:
            buffer: page-aligned; up to a page before and behind the part that is filled may be overwritten.

        Raises as ``read_into`` does.
        """
        done = 0
        if at % PAGE == offset % PAGE and nbytes and not self._is_cached(offset, offset + nbytes):
            lead = at % PAGE
            end = -(-(at + nbytes) // PAGE) * PAGE
            done = max(0, self._read_direct(buffer[at - lead : end], offset - lead) - lead)
        if done < nbytes:
            self.read_into(buffer[at + done : at + nbytes], offset + done)

    def _is_cached(self, begin: int, end: int) -> bool:
        """Whether copying from the page cache is the faster way; so it is where nobody knows."""
        if self._count_pages is None:
            self._count_pages = page_counter(self._descriptor, self._mapped)
        cached = self._count_pages(begin, end)
        return cached is None or cached >= MOSTLY_CACHED * pages_between(begin, end)

    def _read_direct(self, buffer: memoryview, offset: int) -> int:
        """Read whole pages around the cache; how many bytes came, 0 where the file system does not do that."""
        if self._direct is None:
            try:
                self._direct = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                self._open.append(self._direct)
            except OSError:
                self._direct = -1
        if self._direct < 0:
            return 0
        try:
            return os.preadv(self._direct, [buffer], offset)
        except OSError:  # reading again the ordinary way tells whether the disk has failed
            return 0

    def view(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """As ``Reader.view``."""
        return self._mapped()[begin:end]

    def _mapped(self) -> npt.NDArray[np.uint8]:
        """The whole file as a read-only mapping, made at the first call; arrays on it outlive ``close``."""
        if self._mapping is None:
            mapping = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)
            self._mapping = np.frombuffer(mapping, np.uint8)
        return self._mapping

    def check_unchanged(self) -> None:
        """As ``Reader.check_unchanged``: the path still leads to the file, and that is as it was."""
        held = os.fstat(self._descriptor)
        try:
            there = self._absolute.stat()
        except FileNotFoundError:
            raise RefusedError(f"{printable(self.path)}: removed since it was opened", code="file-changed") from None
        was = self.identity("")
        change = was.change_in(held) or was.change_in(there) or self._replacement(held, there)
        if change:
            raise RefusedError(f"{printable(self.path)}: changed since it was opened: {change}", code="file-changed")

    def _replacement(self, held: os.stat_result, there: os.stat_result) -> str | None:
        """What shows that ``there``, of the same size and times, is another file than the one ``held``, or None.

        An inode number alone says nothing: rclone and others give a file a new one while it is open. Another file in
        its place takes a link from it, or a link on the way to it that leads elsewhere.
        """
        was = self._opened
        if there.st_dev != was.st_dev:
            return f"device was {was.st_dev}, is {there.st_dev}"
        if there.st_ino == was.st_ino:
            return None
        if held.st_nlink != was.st_nlink:
            return f"replaced by another file, inode {there.st_ino} in the place of {was.st_ino}"
        if (resolved := os.path.realpath(self._absolute)) != self._resolved:
            return f"it led to {printable(self._resolved)}, leads to {printable(resolved)}"
        return None

    def close(self) -> None:
        """Close the file."""
        self._close()
        self._descriptor = self._direct = -1


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def bytes_of(buffer: WritableBuffer) -> memoryview:
    """The bytes of a buffer, writable."""
    if not isinstance(buffer, np.ndarray):
        return memoryview(buffer)
    assert buffer.flags.c_contiguous
    return buffer.reshape(-1).view(np.uint8).data  # ml_dtypes' arrays offer no memoryview of themselves
