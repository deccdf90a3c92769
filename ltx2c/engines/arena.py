"""The switch of two equal parts of memory whose addresses never change."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.files.buffers import allocate

Bytes = npt.NDArray[np.uint8]

_COPY_CHUNK = 4 << 20

# <linux/mman.h>
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_MAP_FAILED = ctypes.c_void_p(-1).value


def switch(one: Bytes, other: Bytes) -> None:
    """Exchange the contents of two parts of ``allocate``d memory, of equal size, on huge-page boundaries.

    The page tables change places and no byte is copied, except where the kernel refuses.

    Raises:
        OSError: the kernel failed half-way; the contents are where they were.
    """
    if one.size and not _switch_pages(one, other):
        for start in range(0, one.size, _COPY_CHUNK):
            part = slice(start, start + _COPY_CHUNK)
            held = one[part].copy()
            one[part] = other[part]
            other[part] = held


def _switch_pages(one: Bytes, other: Bytes) -> bool:
    aside = allocate(one.size)
    done: list[tuple[Bytes, Bytes]] = []
    for source, target in ((one, aside), (other, one), (aside, other)):
        if not _move_pages(source, target):
            error = ctypes.get_errno()
            for moved, to in reversed(done):
                _move_pages(to, moved)
            if not done:
                return False
            raise OSError(error, os.strerror(error), "mremap")
        done.append((source, target))
    return True


def _move_pages(source: Bytes, target: Bytes) -> bool:
    """Move pages over ``target``. ``source`` stays mapped, empty: another thread's mmap can never land there."""
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    moved: int | None = _mremap()(source.ctypes.data, source.size, source.size, flags, target.ctypes.data)
    return moved != _MAP_FAILED


def _mremap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mremap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    return function
