"""What is cached is found out without reading it, and every byte comes from the disk once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from disk import bytes_read_from_disk, evict, needs_a_counted_disk, undisturbed
from fusing import adapter, save, values
from mounts import mounted_overlay

import ltx2c
from ltx2c.files import page_cache
from ltx2c.files.buffers import new_buffer
from ltx2c.files.header import PAGE
from ltx2c.files.page_cache import page_counter, pages_between
from ltx2c.files.reading import FileReader

SIZE = 64_000_001
BLOCK = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cold") / "x"
    path.write_bytes(random.Random(0).randbytes(SIZE))
    return path


@pytest.fixture
def cold(path: Path) -> Path:
    needs_a_counted_disk(path)
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[FileReader]:
    reader = FileReader(path)
    yield reader
    reader.close()


def without_cachestat(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux before 6.5."""
    monkeypatch.setattr(page_cache, "_cachestat", lambda *_: None)


@pytest.mark.parametrize("cachestat", [True, False])
@undisturbed
def test_asking_reads_nothing(cachestat: bool, cold: Path, reader: FileReader, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cachestat:
        without_cachestat(monkeypatch)
    count = page_counter(reader._descriptor, reader._mapped)
    evict(cold)
    before = bytes_read_from_disk()
    for begin in range(0, SIZE, BLOCK):
        assert count(begin, min(begin + BLOCK, SIZE)) == 0
    time.sleep(0.05)  # for a read-ahead that it would have started
    assert count(0, SIZE) == 0
    assert bytes_read_from_disk() == before


@pytest.mark.parametrize("cachestat", [True, False])
@undisturbed
def test_cached_pages_are_counted(
    cachestat: bool, cold: Path, reader: FileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cachestat:
        without_cachestat(monkeypatch)
    count = page_counter(reader._descriptor, reader._mapped)
    evict(cold)
    os.posix_fadvise(reader._descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    reader.read_into(bytearray(2 * BLOCK), 5 * BLOCK)
    assert count(4 * BLOCK, 8 * BLOCK) == pages_between(0, 2 * BLOCK)
    assert count(6 * BLOCK + 1, 6 * BLOCK + 2) == 1
    cold.read_bytes()
    # One time in a hundred the system itself drops a few pages again as they come.
    assert 0.99 * pages_between(0, SIZE) <= (count(1, SIZE) or 0) <= pages_between(0, SIZE)
    assert count(PAGE - 1, PAGE + 1) == 2


def test_where_nobody_knows_a_block_is_read_through_the_cache(
    path: Path, reader: FileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room() -> np.ndarray:
        raise OSError("no address space")

    without_cachestat(monkeypatch)
    assert page_counter(reader._descriptor, no_room)(0, SIZE) is None
    monkeypatch.setattr(reader, "_mapped", no_room)
    monkeypatch.setattr(reader, "_read_direct", lambda *_: pytest.fail("read around the cache"))
    buffer = new_buffer(BLOCK)
    reader.read_block(buffer, 0, BLOCK, 0)
    assert bytes(buffer) == path.read_bytes()[:BLOCK]


def test_a_file_seen_through_a_stacked_file_system_is_known_to_be_cached(tmp_path: Path) -> None:
    def cached_pages(path: Path) -> int | None:
        reader = FileReader(path)  # let go of with its mapping, which would keep the file system busy
        reader.read_into(bytearray(BLOCK), 0)
        return page_counter(reader._descriptor, reader._mapped)(0, BLOCK)

    with mounted_overlay(tmp_path, {"x": bytes(BLOCK)}) as folder:
        assert cached_pages(folder / "x") == pages_between(0, BLOCK)


@pytest.mark.parametrize("cached", [(0, 0), (0, SIZE // 3), (SIZE // 2, SIZE)], ids=["nothing", "front", "back"])
@undisturbed
def test_blocks_come_from_the_disk_once(cached: tuple[int, int], cold: Path) -> None:
    block = 16 << 20  # as engines read: as large as the system's read-ahead, or larger
    whole = cold.read_bytes()
    evict(cold)
    reader = FileReader(cold)
    begin, end = cached
    reader.read_into(bytearray(end - begin), begin)
    before = bytes_read_from_disk()
    buffer = new_buffer(block + 2 * PAGE)
    for start in range(0, SIZE, block):
        size = min(block, SIZE - start)
        reader.read_block(buffer, start % PAGE, size, start)
        assert buffer[start % PAGE :][:size] == whole[start : start + size]
    reader.close()
    # What was cached is not read again, but for the block at its edge, from where the system may read ahead once.
    edge = block + (8 << 20) if end else 0
    assert bytes_read_from_disk() - before <= 1.02 * (SIZE - (end - begin)) + edge


def test_a_cold_fuse_reads_its_inputs_once(cold: Path, tmp_path: Path) -> None:
    base = save(tmp_path / "base", {f"m{at}.weight": values(at, 4096, 2048) for at in range(8)})
    lora = save(tmp_path / "lora", adapter({f"m{at}": (4096, 32, 2048) for at in range(8)}, 1))
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], tmp_path / "out")  # whatever is imported late is there
    evict(base, lora)
    before = bytes_read_from_disk()
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], tmp_path / "again")
    inputs = base.stat().st_size + lora.stat().st_size
    assert 0.98 * inputs < bytes_read_from_disk() - before < 1.02 * inputs
