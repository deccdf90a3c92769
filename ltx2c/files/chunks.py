"""Chunks of objects, fetched several at once and kept for a while.

A storage answers after tens of milliseconds and then gives each request some 90 MB/s, however many there are. So what
is read is cut into chunks of which several are under way at the same time, and where a reader goes through an object
from front to back, the chunks behind what it asks for as well. Small tensors that lie side by side come with one chunk.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as WaitedError

from ltx2c.crew import Crew, is_cancelled

CHUNK_BYTES = 4 << 20
IN_FLIGHT = 24
KEPT = 40  # chunks, of all objects of a process

_PATIENCE = 0.25  # seconds between two looks at whether a chunk is still wanted: a network may never answer

Fetch = Callable[[int, int], bytes]
"""Gives an object's bytes from ``begin`` to ``end``."""


class Chunks:
    """The chunks of all objects that a process reads. For any number of threads."""

    def __init__(self) -> None:
        self._crew = Crew(IN_FLIGHT, "ltx2c-fetch")
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Fetch, int], Future[bytes]] = OrderedDict()

    def read(self, fetch: Fetch, size: int, begin: int, buffer: memoryview, *, ahead: bool) -> None:
        """Fill ``buffer`` from byte ``begin`` of an object of ``size`` bytes.

        Args:
            fetch: reads the object; stands for it, so always the same one.
            ahead: whether to fetch further chunks behind what is asked for.

        Raises whatever ``fetch`` does.
        """
        end = begin + len(buffer)
        last = (size if ahead else end) - 1
        at = begin
        while at < end:
            number = at // CHUNK_BYTES
            there = self._chunks(fetch, size, number, min(number + IN_FLIGHT - 1, last // CHUNK_BYTES))
            try:
                chunk = _awaited(there)
            except BaseException:
                self._drop(fetch, number)  # who asks again may be luckier
                raise
            start = at - number * CHUNK_BYTES
            part = memoryview(chunk)[start : start + end - at]
            buffer[at - begin : at - begin + len(part)] = part
            at += len(part)

    def _chunks(self, fetch: Fetch, size: int, number: int, last: int) -> Future[bytes]:
        """The chunk of that number; it and those up to ``last`` are under way."""
        with self._lock:
            for one in range(last, number - 1, -1):  # in the end those that are wanted first were used last
                if (fetch, one) in self._kept:
                    self._kept.move_to_end((fetch, one))
            for one in range(number, last + 1):
                if (fetch, one) not in self._kept:
                    begin = one * CHUNK_BYTES
                    self._kept[fetch, one] = self._crew.submit(fetch, begin, min(size, begin + CHUNK_BYTES))
            found = self._kept[fetch, number]
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found

    def _drop(self, fetch: Fetch, number: int) -> None:
        with self._lock:
            self._kept.pop((fetch, number), None)

    def forget(self, fetch: Fetch) -> None:
        """Let go of an object's chunks."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == fetch]:
                del self._kept[key]


def _awaited(chunk: Future[bytes]) -> bytes:
    while True:
        try:
            return chunk.result(_PATIENCE)
        except WaitedError:
            if chunk.done():  # the connection's own
                return chunk.result()
            if is_cancelled():
                raise CancelledError from None


def chunks() -> Chunks:
    """This process's: threads do not go along into one that is forked."""
    return _of_process(os.getpid())


@functools.cache
def _of_process(process: int) -> Chunks:
    return Chunks()
