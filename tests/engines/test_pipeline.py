from __future__ import annotations

import contextlib
import threading
import time

import pytest

from ltx2c.engines.pipeline import Steps, run_pipeline, split_threads
from ltx2c.files.buffers import new_buffer


def run(items, read=lambda item, buffer: item, compute=lambda item, buffer, loaded: loaded, buffers=3, workers=2):
    return run_pipeline(
        items, Steps(read, compute), buffers=[new_buffer(4096) for _ in range(buffers)], workers=workers
    )


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_results_come_in_order_with_what_was_read_into_their_buffer() -> None:
    def read(item: int, buffer: memoryview) -> int:
        buffer[0] = item
        return item * 10

    def compute(item: int, buffer: memoryview, loaded: int) -> int:
        time.sleep(0.002 * (item % 3))
        buffer[1] = buffer[0] + 1
        return loaded + 1

    seen = [(item, buffer[0], buffer[1], result) for item, buffer, result in run(range(50), read, compute)]
    assert seen == [(item, item, item + 1, 10 * item + 1) for item in range(50)]


@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_no_more_items_are_under_way_than_there_are_buffers(buffers: int) -> None:
    lock, under_way, most = threading.Lock(), [0], [0]

    def read(item: int, buffer: memoryview) -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])

    for _ in run(range(20), read, buffers=buffers):
        time.sleep(0.001)
        with lock:
            under_way[0] -= 1
    assert most[0] == buffers


def test_reading_computing_and_consuming_overlap() -> None:
    """Each stage waits until both others are at work at the same time: without overlap this would never end."""
    together = threading.Barrier(3, timeout=10)

    def read(item: int, buffer: memoryview) -> None:
        if item == 3:
            together.wait()

    def compute(item: int, buffer: memoryview, loaded: None) -> None:
        if item == 2:
            together.wait()

    for item, _, _ in run(range(6), read, compute, buffers=4):
        if item == 1:
            together.wait()


@pytest.mark.parametrize("where", ["items", "read", "compute", "consumer"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_anywhere_stops_everything(where: str, error: type[BaseException]) -> None:
    computed = []

    def items():
        for item in range(1000):
            if where == "items" and item == 5:
                raise error
            yield item

    def read(item: int, buffer: memoryview) -> None:
        if where == "read" and item == 5:
            raise error

    def compute(item: int, buffer: memoryview, loaded: None) -> None:
        computed.append(item)
        if where == "compute" and item == 5:
            raise error

    consumed = []
    with pytest.raises(error), contextlib.closing(run(items(), read, compute)) as results:
        for item, _, _ in results:
            consumed.append(item)
            if where == "consumer" and item == 5:
                raise error
    assert consumed == list(range(6 if where == "consumer" else 5))
    assert len(computed) < 12


def test_a_consumer_that_stops_early_ends_the_threads() -> None:
    with contextlib.closing(run(range(1000))) as results:
        next(results)


def test_ctrl_c_while_the_reader_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ltx2c-feed":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(run(range(1000), read=lambda item, buffer: time.sleep(0.05)))


def test_ctrl_c_before_the_reader_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(run(range(1000)))


@pytest.mark.parametrize("threads", range(1, 10))
def test_every_thread_is_some_workers(threads: int) -> None:
    shares = split_threads(threads)
    assert sum(shares) == threads and len(shares) == min(2, threads) and max(shares) - min(shares) <= 1


def test_nothing_to_do() -> None:
    assert list(run([])) == []
