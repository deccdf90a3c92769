"""Objects of a storage, read in ranges: only ever the version that was opened."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ltx2c.errors import RefusedError, printable
from ltx2c.files.chunks import CHUNK_BYTES, chunks
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.identity import ObjectIdentity
from ltx2c.files.reading import WritableBuffer, bytes_of
from ltx2c.files.url import Found, Place, Url, about

# Most headers of adapters lie in it whole, with what tells that a file is of another kind.
_HEAD_BYTES = 128 << 10

_ATTEMPTS = 5
_PAUSE = 0.2  # seconds before the second attempt; twice as many before each further one


class ObjectReader(HoldsDescriptors):
    """An object that is open for reading.

    Attributes:
        size: bytes in all, when it was opened.
    """

    def __init__(self, url: Url) -> None:
        """Open an object.

        Raises:
            OSError: as the storage says, FileNotFoundError where there is none.
            RefusedError: ``not-a-file``, ``bad-url``, ``no-storage``, ``file-changed``.
        """
        self._url = url
        self._found = url.found()
        self.size = self._found.size
        self._ranges = _ranges(url)
        self._next = 0  # where a reader that goes from front to back reads next
        self._head = self._fetch(0, min(self.size, _HEAD_BYTES)) if self.size else b""

    def _fetch(self, begin: int, end: int) -> bytes:
        data = _tried(self._url, self._ranges, begin, end, self._found)
        if len(data) != end - begin:
            problem = f"bytes {begin} to {end} are {len(data)}: truncated meanwhile"
            raise RefusedError(f"{printable(self._url)}: {problem}", code="file-changed")
        return data

    def read_into(self, buffer: WritableBuffer, offset: int) -> None:
        """As ``Reader.read_into``."""
        memory = bytes_of(buffer)
        if offset + len(memory) > self.size:
            raise RefusedError(f"{printable(self._url)}: ends at byte {self.size}: truncated", code="file-changed")
        head = self._head[offset : offset + len(memory)]
        memory[: len(head)] = head
        if len(head) == len(memory):
            return
        goes_on = self._next <= offset < self._next + CHUNK_BYTES
        self._next = offset + len(memory)
        chunks().read(self._fetch, self.size, offset + len(head), memory[len(head) :], ahead=goes_on)

    def read_block(self, buffer: memoryview, at: int, nbytes: int, offset: int) -> None:
        """As ``Reader.read_block``."""
        self.read_into(buffer[at : at + nbytes], offset)

    def view(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """As ``Reader.view``: read now."""
        data = np.empty(end - begin, np.uint8)
        self.read_into(data, begin)
        data.flags.writeable = False
        return data

    def identity(self, header_sha256: str) -> ObjectIdentity:
        """As ``Reader.identity``."""
        return ObjectIdentity.of(self._url, self._found, header_sha256)

    def check_unchanged(self) -> None:
        """As ``Reader.check_unchanged``."""
        try:
            now = self._url.found()
        except FileNotFoundError:
            raise RefusedError(f"{printable(self._url)}: removed since it was opened", code="file-changed") from None
        change = self.identity("").change_in(now)
        if change:
            raise _changed(self._url, change)

    def close(self) -> None:
        """Let go of what was kept of it."""
        chunks().forget(self._fetch)


class _Ranges(Protocol):
    """How a storage gives ranges of an object."""

    def get(self, begin: int, end: int, found: Found) -> bytes:
        """Bytes ``begin`` to ``end``, only of the version that was found where the storage takes such a condition."""


class _AnyRanges:
    """By what every filesystem of fsspec has. That the version is still the same is asked before and after all reads,
    which is enough where versions never return."""

    def __init__(self, place: Place) -> None:
        self._storage, self._path = place

    def get(self, begin: int, end: int, found: Found) -> bytes:
        return bytes(self._storage.cat_file(self._path, start=begin, end=end))


class _S3Ranges:
    """By S3's own call, with the ETag as a condition of each: an ETag returns where the same content does."""

    def __init__(self, place: Place) -> None:
        self._storage = place.storage
        self._bucket, self._key, version = place.storage.split_path(place.path)
        self._version = {"VersionId": version} if version else {}

    def get(self, begin: int, end: int, found: Found) -> bytes:
        from fsspec.asyn import sync

        wanted = {"Range": f"bytes={begin}-{end - 1}", "IfMatch": found.version, **self._version}
        reply: Any = self._storage.call_s3("get_object", Bucket=self._bucket, Key=self._key, **wanted)
        return bytes(sync(self._storage.loop, reply["Body"].read))


def _ranges(url: Url) -> _Ranges:
    place = url.located()
    return _S3Ranges(place) if hasattr(place.storage, "call_s3") else _AnyRanges(place)


def _tried(url: Url, ranges: _Ranges, begin: int, end: int, found: Found) -> bytes:
    """A range of an object, asked for again where the connection fails on the way."""
    pause = _PAUSE
    for attempt in range(_ATTEMPTS):
        try:
            with about(url):
                return ranges.get(begin, end, found)
        except PermissionError:
            raise
        except FileNotFoundError:
            raise RefusedError(f"{printable(url)}: removed since it was opened", code="file-changed") from None
        except OSError as error:
            if status_of(error) == 412:
                raise _changed(url, f"version {found.version} is not there any more") from None
            if status_of(error) is not None or attempt == _ATTEMPTS - 1:  # an answer, which s3fs has tried to better
                raise
        time.sleep(pause)
        pause *= 2
    raise AssertionError


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that S3 answered with; None where an error is something else."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "ResponseMetadata" in response:
            status = response["ResponseMetadata"].get("HTTPStatusCode")
            return status if isinstance(status, int) else None
        error = error.__cause__
    return None


def _changed(url: Url, change: str) -> RefusedError:
    return RefusedError(f"{printable(url)}: changed since it was opened: {change}", code="file-changed")
