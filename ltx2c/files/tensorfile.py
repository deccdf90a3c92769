"""One safetensors file, open for reading: its tensors by name, and their bytes when asked for."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.files.header import PAGE, PREFIX_BYTES, Header, header_bytes, parse_header
from ltx2c.files.looks_like import HEAD_BYTES, looks_like

WritableBuffer = bytearray | memoryview | mmap.mmap | npt.NDArray[Any]

_CACHE_LINE = 64
_WIDEST = 8  # bytes that any dtype is aligned to


class Identity(NamedTuple):
    """What tells one file from another, and from itself after a change."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity that ``os.stat`` tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in a file. Nothing is read until one of the methods is called.

    Attributes:
        key: its name in the file.
        dtype: the header's name of the element type, such as ``"BF16"``.
        shape: extents, slowest first; ``()`` for a scalar.
        file: where it lies.
        begin, end: byte offsets from the start of the file.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: TensorFile = field(repr=False)
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return self.end - self.begin

    def read(self) -> npt.NDArray[Any]:
        """A fresh array of the tensor; for F4 and F6 kinds its raw bytes, ``uint8 [nbytes]``.

        Raises:
            OSError: reading failed.
            RefusedError: ``file-changed``, where the file ends before the tensor does.
        """
        data = _empty(self.nbytes, self.begin)
        self.read_into(data)
        return self._shaped(data)

    def read_into(self, buffer: WritableBuffer, start: int = 0) -> None:
        """Fill ``buffer`` with the tensor's bytes from its byte ``start`` on. Raises as ``read`` does."""
        self.file.read_into(buffer, self.begin + start)

    def view(self) -> npt.NDArray[Any]:
        """A read-only array on a mapping of the file, shaped as by ``read``; perhaps not aligned for its dtype.

        A file that another process truncates makes reading the array raise SIGBUS: engines use ``read_into``.
        """
        return self._shaped(self.file.mapped()[self.begin : self.end])

    def _shaped(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        dtype = DTYPES[self.dtype].numpy
        return data if dtype is None else data.view(dtype).reshape(self.shape)


def _empty(size: int, begin: int) -> npt.NDArray[np.uint8]:
    """``size`` bytes to be read from ``begin``, placed as they lie in the file modulo a cache line.

    The system copies that twice as fast or more. Where the file's offset suits no dtype, on a line's start.
    """
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    lead = begin % _CACHE_LINE if begin % _WIDEST == 0 else 0
    start = (lead - memory.ctypes.data) % _CACHE_LINE
    return memory[start : start + size]


class TensorFile:
    """A safetensors file whose header has been read and checked; also a context manager.

    Attributes:
        path: as given.
        size: bytes in all.
        tensors: by key, in the header's order.
        metadata: the header's ``__metadata__``.
        header_sha256: hex digest of the header: the length and the JSON, padding included.
        data_start: byte offset of the first tensor's data.
        identity: of the file when it was opened.
    """

    def __init__(self, path: Path, descriptor: int, status: os.stat_result) -> None:
        self.path = path
        self.identity = Identity.of(status)
        self.size = status.st_size
        self._absolute = path.absolute()  # where it is, also after the process has changed its working folder
        self._descriptor = descriptor
        self._direct: int | None = None  # the same file, opened for direct reads; -1 where that is refused
        self._mapping: npt.NDArray[np.uint8] | None = None
        header = self._read_header()
        self.metadata = header.metadata
        self.tensors = {
            key: StoredTensor(
                key, info.dtype, info.shape, self, self.data_start + info.begin, self.data_start + info.end
            )
            for key, info in header.tensors.items()
        }
        self._open = [descriptor]
        self._close = weakref.finalize(self, _close_all, self._open)  # at the latest when nothing refers to it

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TensorFile:
        """Open ``path`` and read its header; no tensor byte is read.

        Raises:
            OSError: the file is missing or cannot be read.
            RefusedError: ``not-a-file``, ``empty``, ``not-safetensors``, or any code of ``header_bytes``
                and ``parse_header``.
        """
        path = Path(path)
        # Without O_NONBLOCK the open itself would wait for a pipe's writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError("not a regular file", code="not-a-file")
            return cls(path, descriptor, status)
        except RefusedError as error:
            os.close(descriptor)
            raise RefusedError(f"{printable(path)}: {error}", code=error.code) from None
        except BaseException:
            os.close(descriptor)
            raise

    def _read_header(self) -> Header:
        if self.size == 0:
            raise RefusedError("the file is empty", code="empty")
        head = bytearray(min(self.size, HEAD_BYTES))
        self.read_into(head, 0)
        try:
            length = header_bytes(bytes(head), self.size)
            if head[PREFIX_BYTES] != ord("{"):
                raise RefusedError("no safetensors header: it would begin with '{'", code="header-json")
        except RefusedError:
            kind = looks_like(bytes(head))
            if kind is None:
                raise
            raise RefusedError(f"not a safetensors file: it looks like {kind}", code="not-safetensors") from None
        text = bytearray(length)
        self.read_into(text, PREFIX_BYTES)
        digest = hashlib.sha256(head[:PREFIX_BYTES])
        digest.update(text)
        self.header_sha256 = digest.hexdigest()
        self.data_start = PREFIX_BYTES + length
        return parse_header(text, self.size - self.data_start)

    def read_into(self, buffer: WritableBuffer, offset: int) -> None:
        """Fill ``buffer``, a contiguous array or a buffer of bytes, from byte ``offset`` of the file.

        Raises:
            OSError: reading failed.
            RefusedError: ``file-changed``, where the file ends before the buffer is full.
        """
        left = _bytes_of(buffer)
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
        done = self._read_cached(buffer[at : at + nbytes], offset)
        if done < nbytes and at % PAGE == offset % PAGE:
            lead = (at + done) % PAGE
            end = -(-(at + nbytes) // PAGE) * PAGE
            done += max(0, self._read_direct(buffer[at + done - lead : end], offset + done - lead) - lead)
        if done < nbytes:
            self.read_into(buffer[at + done : at + nbytes], offset + done)

    def _read_cached(self, buffer: memoryview, offset: int) -> int:
        """Copy as many bytes as are in memory; how many those were."""
        try:
            return os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except OSError:  # nothing is cached, or the file system cannot tell
            return 0

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

    def mapped(self) -> npt.NDArray[np.uint8]:
        """The whole file as a read-only mapping, made at the first call."""
        if self._mapping is None:
            mapping = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)
            self._mapping = np.frombuffer(mapping, np.uint8)
        return self._mapping

    def check_unchanged(self) -> None:
        """Make sure that the path still leads to the file that was opened, unchanged in size and time.

        Raises:
            RefusedError: ``file-changed``.
        """
        try:
            there = self._absolute.stat()
        except FileNotFoundError:
            raise RefusedError(f"{printable(self.path)}: removed since it was opened", code="file-changed") from None
        for now in (Identity.of(os.fstat(self._descriptor)), Identity.of(there)):
            for what, was, is_now in zip(Identity._fields, self.identity, now, strict=True):
                if was != is_now:
                    message = f"{printable(self.path)}: changed since it was opened: {what} was {was}, is {is_now}"
                    raise RefusedError(message, code="file-changed")

    def close(self) -> None:
        """Close the file. Arrays from ``view`` stay valid: they hold the mapping."""
        self._close()
        self._descriptor = self._direct = -1

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _bytes_of(buffer: WritableBuffer) -> memoryview:
    if not isinstance(buffer, np.ndarray):
        return memoryview(buffer)
    assert buffer.flags.c_contiguous
    return buffer.reshape(-1).view(np.uint8).data  # ml_dtypes' arrays offer no memoryview of themselves
