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
from ltx2c.files.looks_like import HEAD_BYTES, looks_like
from ltx2c.files.objects import ObjectReader
from ltx2c.files.reading import FileReader, Reader, WritableBuffer
from ltx2c.files.url import AnyPath, Url, as_url, is_url

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
        """A read-only array, shaped as by ``read``; of a file on a mapping of it, perhaps not aligned for its dtype.

        A file that another process truncates makes reading the array raise SIGBUS: engines use ``read_into``.
        """
        return self._shaped(self.file.view(self.begin, self.end))

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
        path: as given: a path or a URL.
        size: bytes in all.
        tensors: by key, in the header's order.
        metadata: the header's ``__metadata__``.
        header_sha256: hex digest of the header: the length and the JSON, padding included.
        data_start: byte offset of the first tensor's data.
        identity: of the file when it was opened.

    Cannot be pickled or copied.
    """

    def __init__(self, path: AnyPath, reader: Reader) -> None:
        self.path = path
        self.size = reader.size
        self._reader = reader
        header = self._read_header()
        self.identity = reader.identity(self.header_sha256)
        self.metadata = header.metadata
        start = self.data_start
        self.tensors = {
            key: StoredTensor(key, dtype, shape, self, start + begin, start + end)
            for key, (dtype, shape, begin, end) in header.tensors.items()
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TensorFile:
        """Open ``path``, a URL too, and read its header; no tensor byte is read.

        Raises:
            OSError: the file is missing or cannot be read.
            RefusedError: ``not-a-file``, ``empty``, ``not-safetensors``, or any code of ``header_bytes``
                and ``parse_header``; of a URL ``bad-url``, ``no-storage``.
        """
        place = as_url(path) if is_url(path) else Path(path)
        reader = ObjectReader(place) if isinstance(place, Url) else FileReader(place)
        try:
            return cls(place, reader)
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

    def view(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Its bytes from ``begin`` to ``end``, read-only, on a mapping of the file; of an object read here."""
        return self._reader.view(begin, end)

    def check_unchanged(self) -> None:
        """Make sure that the path still leads to what was opened, as it was; see ``ltx2c.files.identity``.

        Raises:
            OSError: that cannot be found out.
            RefusedError: ``file-changed``.
        """
        self._reader.check_unchanged()

    def close(self) -> None:
        """Close the file. Arrays from ``view`` stay valid: they hold the mapping."""
        self._reader.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
