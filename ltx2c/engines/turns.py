"""Calls that take turns: one at a time, some in the caller's thread and some in the background."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock, get_ident
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ltx2c.errors import RefusedError

T = TypeVar("T")


class Turns(Generic[T]):
    """Runs calls one after the other; those in the background in the order they were asked for.

    A forked child begins with nothing asked for: it inherits neither the background's thread nor whoever held a lock.
    A callback on a background call's future runs in the background's thread, where waiting for what else was asked for
    would be waiting for itself: its own calls run at once.

    Args:
        what: what is being closed, for the refusal of later calls.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._closed = False
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Drop whatever is running or waiting, in a process that has no thread for it."""
        self._turn = Lock()
        self._asking = Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._background: int | None = None  # the executor's thread
        self._last: Future[T] | None = None

    def check_open(self) -> None:
        """Refuse (``closed``) after ``close``."""
        if self._closed:
            raise RefusedError(f"this {self._what} is closed", code="closed")

    def run(self, call: Callable[[], T]) -> T:
        """Wait for what was asked for before, then call. Refuses as ``check_open`` does."""
        with self._asking:
            last = self._last
        if last is not None and not self._in_background():
            wait([last])
        return self._take_turn(call)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call in the background. Refuses as ``check_open`` does: now, or through the future once it is its turn."""
        with self._asking:
            self.check_open()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "ltx2c-bind", initializer=self._begin_background)
            try:
                self._last = self._executor.submit(self._take_turn, call)
                return self._last
            except RuntimeError:  # no thread is to be had, or the interpreter ends: now, in the caller's
                self._executor = None
        return self._now(call)

    def _now(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(self.run(call))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self, release: Callable[[], None]) -> None:
        """Refuse all calls from here on, those that wait included, and ``release`` after the one that is running."""
        with self._asking:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.shutdown(wait=not self._in_background())
        with self._turn:
            release()

    def _begin_background(self) -> None:
        self._background = get_ident()

    def _in_background(self) -> bool:
        return self._background == get_ident()

    def _take_turn(self, call: Callable[[], T]) -> T:
        with self._turn:
            self.check_open()
            return call()


_ALL: WeakSet[Turns[Any]] = WeakSet()


def _forget_all() -> None:
    for turns in _ALL:
        turns.forget()


os.register_at_fork(after_in_child=_forget_all)
