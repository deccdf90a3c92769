"""A file that is being uploaded to S3 in parts, front to back, several parts under way at once."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from ltx2c.crew import Crew
from ltx2c.files.bucket import Bucket
from ltx2c.files.direct import Digest
from ltx2c.files.header import PAGE

PART_BYTES = 16 << 20
SMALLEST_PART_BYTES = 5 << 20  # S3's own limits; the last part may be smaller
MOST_PARTS = 10_000
IN_FLIGHT = 4  # parts, of each result

Owed = Callable[[int, int], bool]
"""Whether bytes between two offsets of a file are still to be patched."""


def part_bytes(size: int) -> int:
    """How large the parts of an object of ``size`` bytes are, in whole pages."""
    least = -(-size // MOST_PARTS)
    return max(PART_BYTES, -(-least // PAGE) * PAGE)


class Upload:
    """A multipart upload of one object.

    Attributes:
        key: where the object will be.
        completed: whether it is there.
    """

    def __init__(self, bucket: Bucket, key: str, size: int, token: str, crew: Crew) -> None:
        """Begin it. Raises ``OSError``."""
        self.key = key
        self.completed = False
        self._bucket = bucket
        self._size = size
        self._token = token
        self._crew = crew
        self._parts: dict[int, str] = {}
        self._pending: deque[tuple[int, Future[str]]] = deque()
        self._id = bucket.begin(key, token)

    def put(self, number: int, data: bytes) -> None:
        """Have a part uploaded, by and by; waits while too many are. Raises ``OSError``, of an earlier part too."""
        while len(self._pending) >= IN_FLIGHT:
            self._wait()
        self._pending.append((number, self._crew.submit(self._bucket.put, self.key, self._id, number, data)))

    def wait(self) -> None:
        """Wait until all parts are there. Raises ``OSError``."""
        while self._pending:
            self._wait()

    def _wait(self) -> None:
        number, future = self._pending[0]
        self._parts[number] = future.result()
        self._pending.popleft()

    def complete(self, *, replace: bool) -> None:
        """Make the object of the parts, in one step.

        A reply that is lost, or that answers an earlier request of ours, is no failure: the object says who made it.

        Raises:
            OSError: as the storage says; FileExistsError where another stands there.
        """
        try:
            self._bucket.complete(self.key, self._id, self._parts, replace=replace)
        except OSError:
            found = self._bucket.standing(self.key)
            if found is None or (found.token != self._token and replace):
                raise
            if found.token != self._token:
                raise FileExistsError from None
            if found.size != self._size:
                raise
        self.completed = True

    def is_there(self) -> bool:
        """Whether the object that stands there is this upload's. Raises ``OSError``."""
        found = self._bucket.standing(self.key)
        return found is not None and found.token == self._token

    def abort(self) -> None:
        """Give it up, unless it is completed; again does nothing. Parts must not be under way. Raises ``OSError``."""
        if not self.completed and self._id:
            self._bucket.abort(self.key, self._id)
            self._id = ""


class UploadedFile:
    """An output that goes into an upload: as ``OutputFile``, and nothing of it stays on this disk.

    A part with bytes that are known late is held back in an unnamed temporary file until they are.

    Attributes:
        position: bytes appended so far.
        patched: False: patches come before a part is sent.
    """

    patched = False

    def __init__(
        self,
        upload: Upload,
        size: int,
        digest: Digest | None = None,
        owed: Owed = lambda begin, end: False,
    ) -> None:
        """``size``: of the object in the end. ``digest``: as for ``OutputFile``, of one that is not patched."""
        self.position = 0
        self._upload = upload
        self._size = size
        self._digest = digest
        self._owed = owed
        self._part_bytes = part_bytes(size)
        self._part = bytearray()
        self._held: dict[int, int] = {}  # part -> its length
        self._spool = -1

    def append(self, buffer: memoryview, size: int) -> None:
        """As ``OutputFile.append``."""
        lead = self.position % PAGE
        self.write(buffer[lead : lead + size])

    def append_copy(self, data: bytes | memoryview, buffer: memoryview) -> None:
        """As ``OutputFile.append_copy``."""
        self.write(data)

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes that lie anywhere. Raises ``OSError``."""
        data = memoryview(content)
        if self._digest is not None:
            self._digest.update(data)
        while data:
            room = self._part_bytes - len(self._part)
            self._part += data[:room]
            self.position += len(data[:room])
            data = data[room:]
            if len(self._part) == self._part_bytes:
                self._send()

    def patch(self, offset: int, data: memoryview) -> None:
        """As ``OutputFile.patch``."""
        assert self._digest is None
        while data:
            number, at = divmod(offset, self._part_bytes)
            piece = data[: self._part_bytes - at]
            if number in self._held:
                os.pwrite(self._spool, piece, offset)
            else:
                begin = number * self._part_bytes
                assert begin == self.position - len(self._part), "a part that has been sent"
                self._part[at : at + len(piece)] = piece
            data, offset = data[len(piece) :], offset + len(piece)

    def _send(self) -> None:
        """Upload the part that is full, unless something in it is owed, and those in which nothing is any more."""
        begin = self.position - len(self._part)
        number = begin // self._part_bytes
        if self._owed(begin, self.position):
            if self._spool < 0:
                with tempfile.TemporaryFile() as spool:
                    self._spool = os.dup(spool.fileno())
            _write(self._spool, self._part, begin)
            self._held[number] = len(self._part)
        else:
            self._upload.put(number + 1, bytes(self._part))
        self._part = bytearray()
        self._release(lambda at, size: not self._owed(at, at + size))

    def _release(self, may_go: Callable[[int, int], bool]) -> None:
        for number, size in list(self._held.items()):
            if may_go(number * self._part_bytes, size):
                del self._held[number]
                self._upload.put(number + 1, os.pread(self._spool, size, number * self._part_bytes))

    def finish(self, again: Digest | None = None) -> None:
        """All has been appended and patched: send what is left, and wait until it is there. Raises ``OSError``."""
        assert again is None and self.position == self._size
        try:
            if self._part or not self._size:
                begin = self.position - len(self._part)
                self._upload.put(begin // self._part_bytes + 1, bytes(self._part))
            self._release(lambda at, size: True)
            self._upload.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of what is held, whether it is finished or not."""
        self._part = bytearray()
        spool, self._spool = self._spool, -1
        if spool >= 0:
            os.close(spool)


def _write(descriptor: int, data: bytearray, offset: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count
