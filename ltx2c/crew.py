"""Threads that run calls: as many as asked for, fewer where the system gives no more, at worst the caller's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ltx2c.kernels import Stop

P = ParamSpec("P")
T = TypeVar("T")

_local = threading.local()


def current_stop() -> Stop | None:
    """What asks the kernels that run in this thread to leave off; None outside of a crew."""
    return getattr(_local, "stop", None)


def is_cancelled() -> bool:
    """Whether the crew that this thread is of has been cancelled: what it waits for is wanted no more."""
    crew = getattr(_local, "crew", None)
    return crew is not None and crew.cancelled


class Crew:
    """As ``concurrent.futures.ThreadPoolExecutor``, which raises where the system has no more threads.

    Differs also in that it works while the interpreter ends, and that ``cancel`` reaches into kernels that are running.
    Leaving its ``with`` block waits for what was submitted, or cancels it where the block failed.

    Args:
        count: how many threads at most.
        name: begins their names.

    Attributes:
        cancelled: whether ``cancel`` was called.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stop = Stop()
        self.cancelled = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call in one of the threads, or now if there are none."""
        future: Future[T] = Future()

        def task() -> None:
            if self.cancelled or not future.set_running_or_notify_cancel():
                future.cancel()
                return
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if len(self._threads) < self._count:
            self._count = self._count if start_thread(self._work, self._name, self._threads) else len(self._threads)
        if self._threads:
            self._tasks.put(task)
        else:
            task()
        return future

    def cancel(self) -> None:
        """Drop what waits, end what kernels are at, and wait for the threads."""
        self.cancelled = True
        self._stop.ask()
        self._end()

    def _work(self) -> None:
        _local.stop, _local.crew = self._stop, self
        while (task := self._tasks.get()) is not None:
            task()
            del task  # and with it what it holds

    def _end(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            if thread.is_alive():  # else an interrupt came before it was under way: it will find that all has ended
                thread.join()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            self.cancel()


def start_thread(call: Callable[[], Any], name: str, started: list[threading.Thread]) -> bool:
    """Start a daemon and add it to ``started``; False where the system has no thread to give."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    started.append(thread)  # first, so that whoever is interrupted meanwhile knows of it
    try:
        thread.start()
    except RuntimeError:
        started.remove(thread)
        return False
    return True
