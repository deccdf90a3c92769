"""Reading, computing and writing at the same time, over a ring of buffers that bounds memory.

Reader threads fill free buffers, begun in order. Worker threads compute on what was read. The caller consumes the
results in order and writes them; asking for the next result frees the buffer of the last. All steps spend their time
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
BufferT = TypeVar("BufferT")
LoadedT = TypeVar("LoadedT")
ResultT = TypeVar("ResultT")


BLOCK_BYTES = 16 << 20
BUFFERS = 4  # one being read, two computed on, one written
WORKERS = 2


def split_threads(threads: int, *, together: bool = False) -> tuple[int, ...]:
    """The threads of each of the workers that compute at the same time; ``threads`` in all.

    ``together``: of one worker, so that everything is computed in order.

    Two workers, because on two cores a worker whose threads are all its own never waits for others to finish a block;
    no more, because each takes a buffer.
    """
    workers = 1 if together else min(WORKERS, threads)
    return tuple((threads + at) // workers for at in reversed(range(workers)))


@dataclass(frozen=True)
class Steps(Generic[ItemT, BufferT, LoadedT, ResultT]):
    """What the threads do with one item: ``read`` fills its buffer, ``compute`` works on what was read."""

    read: Callable[[ItemT, BufferT], LoadedT]
    compute: Callable[[ItemT, BufferT, LoadedT], ResultT]


def run_pipeline(
    items: Iterable[ItemT],
    steps: Steps[ItemT, BufferT, LoadedT, ResultT],
    *,
    buffers: Iterable[BufferT],
    workers: int,
    readers: int = 1,
) -> Generator[tuple[ItemT, BufferT, ResultT], None, None]:
    """Yield every item with its buffer and result, in order, while later ones are being read and computed.

    The first error of any step is raised here, at its item's turn. However the iteration ends, also by an exception in
    the consumer or by Ctrl-C, the threads are stopped after the step they are at and joined: close the iterator.

    Args:
        buffers: bound how many items are under way. Where items bring their own memory, anything will do.
        workers, readers: threads for each step. With one reader, items are read one after the other.
    """
    free: queue.SimpleQueue[BufferT | _Stop] = queue.SimpleQueue()
    turns: queue.SimpleQueue[tuple[ItemT, BufferT, Future[ResultT]] | BaseException | None] = queue.SimpleQueue()
    for buffer in buffers:
        free.put(buffer)
    stopped = threading.Event()

    def compute(item: ItemT, buffer: BufferT, read: Future[LoadedT]) -> ResultT:
        return steps.compute(item, buffer, read.result())

    def feed() -> None:
        try:
            for item in items:
                buffer = free.get()
                if isinstance(buffer, _Stop) or stopped.is_set():
                    return
                read = reading.submit(steps.read, item, buffer)
                turns.put((item, buffer, computing.submit(compute, item, buffer, read)))
                del item, read  # what is under way is held by the queue alone
            turns.put(None)
        except BaseException as error:  # handed to the consumer, whatever it is
            turns.put(error)

    feeder: list[threading.Thread] = []
    with Crew(workers, "ltx2c-compute") as computing, Crew(readers, "ltx2c-read") as reading:
        try:
            if not start_thread(feed, "ltx2c-feed", feeder):
                for item in items:
                    if not isinstance(own := free.get(), _Stop):
                        yield item, own, steps.compute(item, own, steps.read(item, own))
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
            free.put(_Stop())
            for thread in feeder:
                if thread.is_alive():  # else Ctrl-C came before it was under way: it will find that all has stopped
                    thread.join()
            reading.cancel()
            computing.cancel()


class _Stop:
    """In the place of a buffer: there is nothing more to read."""
