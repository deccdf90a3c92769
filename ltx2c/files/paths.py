"""Paths as a caller gives them."""

from __future__ import annotations

import os
from pathlib import Path

from ltx2c.errors import RefusedError, printable


def as_path(given: str | os.PathLike[str]) -> Path:
    """``given`` as a path that the system can be asked about.

    Raises:
        RefusedError: ``bad-path``: it holds a null character, or one that file names cannot be written in.
    """
    path = Path(given)
    try:
        writable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        writable = False
    if not writable:
        raise RefusedError(f"{printable(path)}: no file can have such a name", code="bad-path")
    return path
