"""Memory that direct input and output can use."""

from __future__ import annotations

import contextlib
import mmap


def new_buffer(size: int) -> memoryview:
    """Page-aligned anonymous memory of ``size`` bytes, in huge pages where the system gives them."""
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
