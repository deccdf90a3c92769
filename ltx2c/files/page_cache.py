"""How much of a file the system holds in its page cache, asked without bringing anything into it.

Trying is no way to ask: a read that must not wait (``RWF_NOWAIT``) fails on a file that is not cached and starts the
system's read-ahead all the same, so that the disk is read twice.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ltx2c.files.header import PAGE

_SYS_CACHESTAT = 451  # the same on every architecture; Linux 6.5
_CACHESTAT_FIELDS = 5  # of which the first is the number of pages that are cached

_libc = ctypes.CDLL(None, use_errno=True)

CountPages = Callable[[int, int], int | None]


def page_counter(descriptor: int, mapped: Callable[[], npt.NDArray[np.uint8]]) -> CountPages:
    """A function that counts the cached pages of a file from byte ``begin`` to ``end``, or says None: not known.

    ``cachestat`` takes 3 microseconds for 16 MB, ``mincore`` 200. But ``cachestat`` looks at the pages of the very file
    that is open, and a stacked file system (the layers of a container's image) keeps them with the file below: there
    it counts none, where ``mincore`` sees through. So the file's first byte is read, and ``cachestat`` is believed if
    it knows of that.

    Both count only for who owns the file or may write to it. To anybody else ``mincore`` says that all is cached.

    Args:
        descriptor: of the file, open for reading.
        mapped: gives a mapping of the whole file; called where ``mincore`` is asked.
    """
    os.pread(descriptor, 1, 0)
    if _cachestat(descriptor, 0, 1):
        return lambda begin, end: _cachestat(descriptor, begin, end)
    return lambda begin, end: _mincore(mapped, begin, end)


def pages_between(begin: int, end: int) -> int:
    """How many pages the bytes from ``begin`` to ``end`` of a file lie in."""
    return -(-end // PAGE) - begin // PAGE


def _cachestat(descriptor: int, begin: int, end: int) -> int | None:
    span = (ctypes.c_uint64 * 2)(begin, end - begin)
    found = (ctypes.c_uint64 * _CACHESTAT_FIELDS)()
    failed = _libc.syscall(
        ctypes.c_long(_SYS_CACHESTAT), ctypes.c_uint(descriptor), ctypes.byref(span), ctypes.byref(found), 0
    )
    return None if failed else found[0]


def _mincore(mapped: Callable[[], npt.NDArray[np.uint8]], begin: int, end: int) -> int | None:
    pages = np.zeros(pages_between(begin, end), np.uint8)
    try:
        start = mapped().ctypes.data + begin // PAGE * PAGE
    except OSError:  # no address space for the mapping
        return None
    failed = _libc.mincore(
        ctypes.c_void_p(start), ctypes.c_size_t(len(pages) * PAGE), pages.ctypes.data_as(ctypes.c_void_p)
    )
    return None if failed else int(np.count_nonzero(pages & 1))
