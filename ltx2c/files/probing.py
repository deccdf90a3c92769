"""Finding out, before any work and with a temporary, whether and how a result will be put in place."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from ltx2c.files.destination import Destination, cannot_write
from ltx2c.files.folder import Folder
from ltx2c.files.header import PAGE
from ltx2c.files.publishing import Way, check_replaceable, way_to_create, way_to_replace
from ltx2c.files.standing import Standing
from ltx2c.files.temporaries import Temporary

# What says that the disk failed or is full, and nothing of what a file system can do.
_FAILURES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class Ways:
    """How to put a result where nothing stands, and where something does; ``replace`` is None where nothing does."""

    create: Way
    replace: Way | None


def find_ways(
    destination: Destination,
    folder: Folder,
    temporary: Temporary,
    *,
    scratch: Temporary,
    opposite: Temporary,
    standing: Standing | None,
) -> Ways:
    """Try what will be done in the end.

    Args:
        temporary: of the result; it gets other names.
        scratch: a file that may be written, renamed and removed.
        opposite: a temporary that is not made yet, a file where the result is a folder and a folder where it is a file.
        standing: what is to be replaced.

    Raises:
        OSError: the disk failed or is full.
        RefusedError: ``output-only-sequential``, ``output-no-rename``, ``output-not-replaceable``.
    """
    try:
        _write_out_of_order(scratch.descriptor)
    except OSError as error:
        raise _refusal(
            destination, error, "its file system takes writes only from front to back", "only-sequential"
        ) from None
    try:
        replace = None if standing is None else way_to_replace(folder, temporary, scratch)
        create = way_to_create(folder, temporary, scratch)
    except OSError as error:
        raise _refusal(destination, error, "its folder lets no file be renamed", "no-rename") from None
    if standing is not None:
        try:
            opposite.make(0o600)
            check_replaceable(folder, destination.path.name, opposite)
        except OSError as error:
            raise _refusal(destination, error, "what stands there may not be replaced", "not-replaceable") from None
    return Ways(create, replace)


def _refusal(destination: Destination, error: OSError, problem: str, code: str) -> Exception:
    if error.errno in _FAILURES:
        return error
    return cannot_write(destination.path, f"{problem}: {error.strerror}", f"output-{code}")


def _write_out_of_order(descriptor: int) -> None:
    """As ``OutputFile`` does: the first page comes last."""
    os.pwrite(descriptor, b"\0", PAGE)
    os.pwrite(descriptor, b"\0", 0)
