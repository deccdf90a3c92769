"""Appending to a file around the page cache (O_DIRECT), or through it where the file system refuses that.

Direct output costs almost no processor time, which on few cores competes with the arithmetic, and leaves no dirty
pages behind to stall on. It wants whole pages, at page offsets, from page-aligned memory. Callers append pieces of any
size, so the bytes of a piece that do not fill a page are carried over and put in front of the next piece.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from ltx2c.files.buffers import new_buffer
from ltx2c.files.header import PAGE
from ltx2c.files.linux import finish_writeback, reserve, start_writeback
from ltx2c.files.naming import naming

WINDOW_BYTES = 64 << 20  # most that buffered output leaves dirty


class Digest(Protocol):
    """A hash of ``hashlib``."""

    def update(self, data: memoryview, /) -> None:
        """Take more bytes."""


class EmptyFile(NamedTuple):
    """A new file, open to be read and written. Whoever writes it closes it.

    Attributes:
        descriptor: of the file.
        path: of the file in the end, for messages: it may stand under another name until then.
    """

    descriptor: int
    path: Path


class OutputFile:
    """A file being written front to back, its whole size known and reserved from the start.

    The first page, where the header begins, is written last of all: what a killed run leaves has zeros there, and no
    reader can take it for a file.

    Attributes:
        position: bytes appended so far.
        patched: whether any of them were overwritten since, so that ``digest`` is not the file's.
    """

    def __init__(self, file: EmptyFile, size: int, digest: Digest | None = None) -> None:
        """Take over ``file``.

        Args:
            size: of the file in the end.
            digest: a hash to update with everything that is appended.

        Raises:
            OSError: as the system says, ENOSPC where ``size`` bytes do not fit.
        """
        self.position = 0
        self.patched = False
        self._descriptor, self._path = file
        self._size = size
        self._digest = digest
        self._carried = bytearray()
        self._first_page = new_buffer(PAGE)
        self._written = 0
        self._window = 0
        self._direct = False
        try:
            self._direct = _can_be_cut(self._descriptor) and _set_direct(self._descriptor, True)
            reserve(self._descriptor, size)
        except OSError as error:
            self.close()
            error.filename = str(self._path)
            raise

    def append(self, buffer: memoryview, size: int) -> None:
        """Append ``size`` bytes that lie in ``buffer`` from byte ``position % PAGE`` on.

        Args:
            buffer: page-aligned and at least ``PAGE`` longer than needed; the bytes around the data are overwritten.

        Raises:
            OSError: as the system says, naming the file.
        """
        if not size:
            return
        lead = self.position % PAGE
        buffer[:lead] = self._carried
        self.position += size
        end = lead + size
        if self._digest is not None:
            self._digest.update(buffer[lead:end])
        if self.position == self._size:
            whole = -(-end // PAGE) * PAGE if self._direct else end
            buffer[end:whole] = bytes(whole - end)
            self._carried = bytearray()
        else:
            whole = end // PAGE * PAGE
            self._carried = bytearray(buffer[whole:end])
        if whole and not self._written:
            self._first_page[:] = buffer[:PAGE]
            buffer[:PAGE] = bytes(PAGE)
        self._write(buffer[:whole], self._written)
        self._written += whole

    def append_copy(self, data: bytes | memoryview, buffer: memoryview) -> None:
        """Append bytes that lie anywhere, by way of ``buffer``: page-aligned, and longer than two pages.

        Raises:
            OSError: as the system says, naming the file.
        """
        room = len(buffer) - 2 * PAGE
        for at in range(0, len(data), room):
            chunk = data[at : at + room]
            lead = self.position % PAGE
            buffer[lead : lead + len(chunk)] = chunk
            self.append(buffer, len(chunk))

    def patch(self, offset: int, data: memoryview) -> None:
        """Overwrite bytes that were appended before, from byte ``offset`` of the file on.

        Raises:
            OSError: as the system says, naming the file.
        """
        end = offset + len(data)
        if end > self.position:
            raise ValueError(f"bytes {offset} to {end} of {self.position} appended ones")
        self.patched = True
        for begin, held in ((0, self._first_page), (self._written, memoryview(self._carried))):
            if begin == 0 and not self._written:  # all that was appended is still carried
                continue
            low, high = max(offset, begin), min(end, begin + len(held))
            if low < high:
                held[low - begin : high - begin] = data[low - offset : high - offset]
        low, high = max(offset, PAGE), min(end, self._written)
        if low < high:
            self._patch_written(data[low - offset : high - offset], low)

    def _patch_written(self, data: memoryview, offset: int) -> None:
        """Through the page cache: what is patched is small, and begins anywhere."""
        if self._direct:
            _set_direct(self._descriptor, False)
        with naming(self._path):
            while data:
                count = os.pwrite(self._descriptor, data, offset)
                data, offset = data[count:], offset + count
        if self._direct:
            _set_direct(self._descriptor, True)

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            try:
                count = os.pwritev(self._descriptor, [data], offset)
            except OSError as error:
                if self._direct and error.errno == errno.EINVAL:
                    self._go_buffered()
                    continue
                error.filename = str(self._path)
                raise
            data = data[count:]
            offset += count
            if self._direct and count % PAGE:
                self._go_buffered()
        if not self._direct:
            self._bound_dirty_pages(offset)

    def _go_buffered(self) -> None:
        """Some file systems accept O_DIRECT at open and refuse a write, or write part of a page when nearly full."""
        _set_direct(self._descriptor, False)
        self._direct = False

    def _bound_dirty_pages(self, end: int) -> None:
        if end - self._window >= WINDOW_BYTES // 2:
            start_writeback(self._descriptor, self._window, end)
            if self._window:
                finish_writeback(self._descriptor, max(0, self._window - WINDOW_BYTES // 2), self._window)
            self._window = end

    def finish(self, again: Digest | None = None) -> None:
        """Write the first page, cut the padding of the last, make the file durable, close it.

        Args:
            again: a hash to update with the whole file, read again: of one that was patched.
        """
        try:
            self._write(self._first_page if self._direct else self._first_page[: self._size], 0)
            if os.fstat(self._descriptor).st_size != self._size:
                os.ftruncate(self._descriptor, self._size)
            os.fsync(self._descriptor)
            if again is not None:
                self._read_again(again)
        except OSError as error:
            error.filename = str(self._path)
            raise
        finally:
            self.close()

    def _read_again(self, digest: Digest) -> None:
        if self._direct:
            _set_direct(self._descriptor, False)
        offset = 0
        while chunk := os.pread(self._descriptor, WINDOW_BYTES // 16, offset):
            digest.update(memoryview(chunk))
            offset += len(chunk)

    def close(self) -> None:
        """Let go of the file, whether it is finished or not."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def write_small_file(file: EmptyFile, content: bytes) -> None:
    """Fill a new file, durably, in one go."""
    with naming(file.path), open(file.descriptor, "wb") as output:  # noqa: PTH123
        output.write(content)
        output.flush()
        os.fsync(output.fileno())


def _can_be_cut(descriptor: int) -> bool:
    """Whether padding that is written behind a file's end can be cut off again: not on every network file system."""
    try:
        os.ftruncate(descriptor, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        return False
    return True


def _set_direct(descriptor: int, direct: bool) -> bool:
    """Have output go around the page cache, or through it; whether the file system does."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
