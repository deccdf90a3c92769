"""sha256 of a whole file, taken from what is being read anyway."""

from __future__ import annotations

import hashlib

from ltx2c.files.tensorfile import TensorFile

_CHUNK_BYTES = 4 << 20


class FileDigest:
    """The digest of one file, fed with parts as they are read. What is not fed in order is read here."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._position = 0

    def feed(self, offset: int, data: memoryview) -> None:
        """Take the file's bytes from ``offset`` on. Raises as ``TensorFile.read_into`` does."""
        self._catch_up(offset)
        fresh = data[self._position - offset :] if self._position < offset + len(data) else data[:0]
        self._digest.update(fresh)
        self._position += len(fresh)

    def finish(self) -> str:
        """The hex digest of the whole file. Raises as ``TensorFile.read_into`` does."""
        self._catch_up(self._file.size)
        return self._digest.hexdigest()

    def _catch_up(self, offset: int) -> None:
        while self._position < offset:
            chunk = bytearray(min(_CHUNK_BYTES, offset - self._position))
            self._file.read_into(chunk, self._position)
            self._digest.update(chunk)
            self._position += len(chunk)
