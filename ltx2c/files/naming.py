"""Saying which file an input or output error is about, where the system says only what is wrong."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give an ``OSError`` from the block that names no file the name ``path``."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise
