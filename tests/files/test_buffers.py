from __future__ import annotations

import mmap
import types
from pathlib import Path

import pytest

from ltx2c.files import buffers
from ltx2c.files.buffers import HUGE_PAGE, allocate, new_buffer


@pytest.mark.parametrize("size", [1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_zeros_that_begin_on_a_huge_page(size: int) -> None:
    memory = allocate(size)
    assert memory.nbytes == size and memory.ctypes.data % HUGE_PAGE == 0 and not memory.any()
    assert new_buffer(size).nbytes == size and not new_buffer(size).readonly


def test_memory_is_private() -> None:
    memory = allocate(4096)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        if begin <= memory.ctypes.data < end:
            assert permissions == "rw-p"
            return
    pytest.fail("the memory is not mapped")


def test_huge_pages_are_asked_for_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Refusing(mmap.mmap):
        def madvise(self, advice: int) -> None:
            asked.append(advice)
            raise OSError("no huge pages")

    constants = {name: value for name, value in vars(mmap).items() if name.isupper()}
    monkeypatch.setattr(buffers, "mmap", types.SimpleNamespace(**{**constants, "mmap": Refusing}))
    assert len(new_buffer(HUGE_PAGE)) == HUGE_PAGE and len(new_buffer(4096)) == 4096
    assert asked == [mmap.MADV_HUGEPAGE]  # a small buffer would waste most of one
