"""Paths as a caller gives them."""

from __future__ import annotations

import os
from pathlib import Path

from ltx2c.errors import RefusedError, printable
from ltx2c.files.hub import cached_path, is_hub_name
from ltx2c.files.url import AnyPath, as_url, is_url


def as_path(given: str | os.PathLike[str]) -> Path:
    """``given`` as a path that the system can be asked about.

    Raises:
        RefusedError: ``bad-path``: it is empty, holds a null character, or one that file names cannot be written in.
    """
    if not os.fspath(given):
        raise RefusedError("an empty path names no file", code="bad-path")
    path = Path(given)
    try:
        writable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        writable = False
    if not writable:
        raise RefusedError(f"{printable(path)}: no file can have such a name", code="bad-path")
    return path


def input_path(given: str | os.PathLike[str]) -> AnyPath:
    """Where something to read lies: a path, an object's URL, or a hub name's place in the cache on this disk.

    Raises:
        OSError: the cache cannot be read.
        RefusedError: as ``as_path``, ``as_url`` and ``cached_path`` say.
    """
    if is_url(given):
        return as_url(given)
    return cached_path(os.fspath(given)) if is_hub_name(given) else as_path(given)


def out_path(given: str | os.PathLike[str]) -> AnyPath:
    """Where a result is to stand, as it was given. Raises RefusedError as ``as_path`` and ``as_url`` say."""
    return as_url(given) if is_url(given) else as_path(given)


def remembered_place(text: str) -> AnyPath:
    """The path or URL that ``str`` wrote. Raises RefusedError (``bad-url``)."""
    return as_url(text) if is_url(text) else Path(text)


def means_folder(given: str | os.PathLike[str]) -> bool:
    """Whether a path can only be a folder's: it ends in a slash, ``.`` or ``..``."""
    return os.path.basename(os.fspath(given)) in ("", ".", "..")  # noqa: PTH119  (a Path has lost the slash)


def place(given: str | os.PathLike[str]) -> Path:
    """Where a result is to stand: its folder as the system finds it, links and ``..`` resolved; the last name kept.

    Raises:
        OSError: as the system says, FileNotFoundError where a folder on the way is missing.
        RefusedError: ``bad-path``: as ``as_path``, or there is no name to write under, as in ``/``.
    """
    path = as_path(given)
    if path.name in ("", ".."):
        found = Path(os.path.realpath(path, strict=True))
    else:
        found = Path(os.path.realpath(path.parent, strict=True)) / path.name
    if not found.name:
        raise RefusedError(f"{printable(path)}: a result needs a name of its own", code="bad-path")
    return found
