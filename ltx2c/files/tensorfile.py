"""One safetensors file, open for reading: its tensors by name, and their bytes when asked for."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.header import PREFIX_BYTES, Header, header_bytes, parse_header
from ltx2c.files.identity import FileIdentity
from ltx2c.files.looks_like import HEAD_BYTES, looks_like
from ltx2c.files.reading import FileReader, WritableBuffer

_CACHE_LINE = 64
_WIDEST = 8  # bytes that any dtype is aligned to


@dataclass(frozen=True, slots=True)
class StoredTensor(HoldsDescriptors):
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


class TensorFile(HoldsDescriptors):
    """A safetensors file whose header has been read and checked; also a context manager.

    Attributes:
        path: as given.
        size: bytes in all.
        tensors: by key, in the header's order.
        metadata: the header's ``__metadata__``.
        header_sha256: hex digest of the header: the length and the JSON, padding included.
        data_start: byte offset of the first tensor's data.
        identity: of the file when it was opened.

    Cannot be pickled or copied.
    """

    def __init__(self, reader: FileReader) -> None:
        self.path = reader.path
        self.size = reader.opened.st_size
        self._absolute = self.path.absolute()  # where it is, also after the process has changed its working folder
        self._resolved = os.path.realpath(self.path)
        self._reader = reader
        header = self._read_header()
        self.identity = FileIdentity.of(self.path, reader.opened, self.header_sha256)
        self.metadata = header.metadata
        start = self.data_start
        self.tensors = {
            key: StoredTensor(key, dtype, shape, self, start + begin, start + end)
            for key, (dtype, shape, begin, end) in header.tensors.items()
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TensorFile:
        """Open ``path`` and read its header; no tensor byte is read.

        Raises:
            OSError: the file is missing or cannot be read.
            RefusedError: ``not-a-file``, ``empty``, ``not-safetensors``, or any code of ``header_bytes``
                and ``parse_header``.
        """
        reader = FileReader(Path(path))
        try:
            return cls(reader)
        except RefusedError as error:
            reader.close()
            raise RefusedError(f"{printable(path)}: {error}", code=error.code) from None
        except BaseException:
            reader.close()
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
        """Fill ``buffer`` from byte ``offset`` of the file, as ``FileReader.read_into`` does."""
        self._reader.read_into(buffer, offset)

    def read_block(self, buffer: memoryview, at: int, nbytes: int, offset: int) -> None:
        """As ``FileReader.read_block``: around the page cache where the file is not in it."""
        self._reader.read_block(buffer, at, nbytes, offset)

    def mapped(self) -> npt.NDArray[np.uint8]:
        """The whole file as a read-only mapping, made at the first call."""
        return self._reader.mapped()

    def check_unchanged(self) -> None:
        """Make sure that the path still leads to the file that was opened, as it was; see ``ltx2c.files.identity``.

        Raises:
            RefusedError: ``file-changed``.
        """
        held = self._reader.status()
        try:
            there = self._absolute.stat()
        except FileNotFoundError:
            raise RefusedError(f"{printable(self.path)}: removed since it was opened", code="file-changed") from None
        change = self.identity.change_in(held) or self.identity.change_in(there) or self._replacement(held, there)
        if change:
            raise RefusedError(f"{printable(self.path)}: changed since it was opened: {change}", code="file-changed")

    def _replacement(self, held: os.stat_result, there: os.stat_result) -> str | None:
        """What shows that ``there``, of the same size and times, is another file than the one ``held``, or None.

        An inode number alone says nothing: rclone and others give a file a new one while it is open. Another file in
        its place takes a link from it, or a link on the way to it that leads elsewhere.
        """
        if there.st_dev != self.identity.device:
            return f"device was {self.identity.device}, is {there.st_dev}"
        if there.st_ino == self.identity.inode:
            return None
        if held.st_nlink != self._reader.opened.st_nlink:
            return f"replaced by another file, inode {there.st_ino} in the place of {self.identity.inode}"
        if (resolved := os.path.realpath(self._absolute)) != self._resolved:
            return f"it led to {printable(self._resolved)}, leads to {printable(resolved)}"
        return None

    def close(self) -> None:
        """Close the file. Arrays from ``view`` stay valid: they hold the mapping."""
        self._reader.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
