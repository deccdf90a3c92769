"""Anonymous memory for direct input and output, and for weights: private, aligned, in huge pages."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

HUGE_PAGE = 2 << 20


def allocate(size: int) -> npt.NDArray[np.uint8]:
    """``size`` bytes of zeros that begin on a huge page. Untouched pages take no memory; the last view frees it all.

    Memory of a huge page or more is in huge pages where the system gives them. It is private: what a child process
    writes is not seen here, and the setting for shared memory, which is mostly "no huge pages", does not apply.

    Raises:
        OSError: the system has not that much address space.
    """
    mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size]


def new_buffer(size: int) -> memoryview:
    """``allocate``d memory of ``size`` bytes, as a buffer of bytes. Raises as ``allocate`` does."""
    return allocate(size).data
