"""Reading, computing and writing at the same time, over a ring of buffers that bounds memory.

One thread reads items into free buffers, in order. Worker threads compute on what was read. The caller consumes the
results in order and writes them; asking for the next result frees the buffer of the last. All stages spend their time
outside the GIL: in preadv, in kernels, in pwritev.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from ltx2c.crew import Crew, start_thread

ItemT = TypeVar("ItemT")
LoadedT = TypeVar("LoadedT")
ResultT = TypeVar("ResultT")


BLOCK_BYTES = 16 << 20
BUFFERS = 4  # one being read, two computed on, one written
WORKERS = 2


def split_threads(threads: int) -> tuple[int, ...]:
    """The threads of each of the workers that compute at the same time; ``threads`` in all.

    Two workers, because on two cores a worker whose threads are all its own never waits for others to finish a block;
    no more, because each takes a buffer.
    """
    workers = min(WORKERS, threads)
    return tuple((threads + at) // workers for at in reversed(range(workers)))


@dataclass(frozen=True)
class Stage(Generic[ItemT, LoadedT, ResultT]):
    """What the threads do with one item: ``read`` fills its buffer, ``compute`` works on what was read."""

    read: Callable[[ItemT, memoryview], LoadedT]
    compute: Callable[[ItemT, memoryview, LoadedT], ResultT]


def run_pipeline(
    items: Iterable[ItemT],
    stage: Stage[ItemT, LoadedT, ResultT],
    *,
    buffers: Iterable[memoryview],
    workers: int,
) -> Generator[tuple[ItemT, memoryview, ResultT], None, None]:
    """Yield every item with its buffer and result, in order, while later ones are being read and computed.

    The first error of any stage is raised here, at its item's turn. However the iteration ends, also by an exception in
    the consumer or by Ctrl-C, the threads are stopped after the step they are at and joined: close the iterator.
    """
    free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    turns: queue.SimpleQueue[tuple[ItemT, memoryview, Future[ResultT]] | BaseException | None] = queue.SimpleQueue()
    for buffer in buffers:
        free.put(buffer)
    stopped = threading.Event()

    def read_all(crew: Crew) -> None:
        try:
            for item in items:
                buffer = free.get()
                if buffer is None or stopped.is_set():
                    return
                loaded = stage.read(item, buffer)
                turns.put((item, buffer, crew.submit(stage.compute, item, buffer, loaded)))
            turns.put(None)
        except BaseException as error:  # handed to the consumer, whatever it is
            turns.put(error)

    readers: list[threading.Thread] = []
    with Crew(workers, "ltx2c-compute") as crew:
        try:
            if not start_thread(lambda: read_all(crew), "ltx2c-read", readers):
                for item in items:
                    if (own := free.get()) is not None:
                        yield item, own, stage.compute(item, own, stage.read(item, own))
                    free.put(own)
                return
            while (turn := turns.get()) is not None:
                if isinstance(turn, BaseException):
                    raise turn
                item, buffer, future = turn
                yield item, buffer, future.result()
                free.put(buffer)
        finally:
            stopped.set()
            free.put(None)
            for reader in readers:
                if reader.is_alive():  # else Ctrl-C came before it was under way: it will find that all has stopped
                    reader.join()
            crew.cancel()
