"""What a file system does with a test's files: which are in the page cache, and what is read from the disk."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import pytest

P = ParamSpec("P")


def evict(*paths: Path) -> None:
    """Write files out and drop them from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_read_from_disk() -> int:
    """By this process so far, as the system counts them."""
    found = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(), re.M)
    assert found is not None
    return int(found[1])


def needs_a_counted_disk(path: Path) -> None:
    """Skip where reading ``path``, which is not empty, after it was evicted is not counted as a read from the disk."""
    if not os.access("/proc/self/io", os.R_OK):
        pytest.skip("NOT TESTED: /proc/self/io cannot be read here")
    evict(path)
    before = bytes_read_from_disk()
    path.read_bytes()
    if bytes_read_from_disk() == before:
        pytest.skip(f"NOT TESTED: {path.parent} is on a file system whose reads from a disk are not counted")
    evict(path)


def undisturbed(measurement: Callable[P, None]) -> Callable[P, None]:
    """A test of what is cached, measured up to three times: the system drops pages and reads others when it likes."""

    @functools.wraps(measurement)
    def measured(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(2):
            with contextlib.suppress(AssertionError):
                return measurement(*args, **kwargs)
        return measurement(*args, **kwargs)

    return measured
