"""Where results go, on this disk or in a storage: checked, made there and put in place, whichever it is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager

from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination
from ltx2c.files.direct import Digest, EmptyFile, OutputFile, write_small_file
from ltx2c.files.object_staging import EmptyObject, ObjectDestination, StagedObjects, rehearse_objects, stage_objects
from ltx2c.files.siblings import Sibling, copy_sibling, read_sibling
from ltx2c.files.staging import Staged, rehearse, stage
from ltx2c.files.uploads import Owed, UploadedFile
from ltx2c.files.url import AnyPath, is_url

AnyDestination = Destination | ObjectDestination
AnyStaged = Staged | StagedObjects
AnyEmpty = EmptyFile | EmptyObject
AnyOutput = OutputFile | UploadedFile


def check_place(
    out: str | os.PathLike[str],
    *,
    inputs: Iterable[AnyPath],
    needed_bytes: int,
    force: bool = False,
    folder: bool = False,
    names: Iterable[str] = (),
) -> AnyDestination:
    """Make sure, without writing, that a result can be put at ``out``.

    Takes and raises what ``Destination.check`` and ``ObjectDestination.check`` do.
    """
    if is_url(out):
        return ObjectDestination.check(out, inputs=inputs, force=force, folder=folder, names=names)
    return Destination.check(out, inputs=inputs, needed_bytes=needed_bytes, force=force, folder=folder, names=names)


def on_disk(destination: AnyDestination, what: str) -> Destination:
    """``destination``, for ``what`` is made on this machine's disk alone.

    Raises:
        RefusedError: ``not-by-url``.
    """
    if isinstance(destination, Destination):
        return destination
    raise RefusedError(f"{printable(destination.path)}: {what} goes to this disk, to no URL", code="not-by-url")


def stage_at(destination: AnyDestination) -> AbstractContextManager[AnyStaged]:
    """As ``stage`` or ``stage_objects``."""
    return stage(destination) if isinstance(destination, Destination) else stage_objects(destination)


def rehearse_at(destination: AnyDestination) -> tuple[str, ...]:
    """As ``rehearse`` or ``rehearse_objects``."""
    return rehearse(destination) if isinstance(destination, Destination) else rehearse_objects(destination)


def open_output(file: AnyEmpty, size: int, digest: Digest | None, owed: Owed) -> AnyOutput:
    """Open a file of a result to be written front to back.

    Args:
        size: of the file in the end.
        digest: a hash to update with everything that is appended.
        owed: whether bytes between two offsets, once they are appended, are still to be patched.

    Raises:
        OSError: as the system or the storage says.
    """
    if isinstance(file, EmptyObject):
        return file.open(size, digest, owed)
    return OutputFile(file, size, digest)


def write_small(file: AnyEmpty, content: bytes) -> None:
    """Fill a small file of a result. Raises ``OSError``."""
    if isinstance(file, EmptyFile):
        write_small_file(file, content)
        return
    output = file.open(len(content))
    output.write(content)
    output.finish()


def copy_along(sibling: Sibling, file: AnyEmpty) -> None:
    """Copy what stands beside a base into a result. Raises as ``copy_sibling`` does."""
    if isinstance(file, EmptyFile):
        copy_sibling(sibling, file)
        return
    output = file.open(sibling.size)
    for data in read_sibling(sibling):
        output.write(data)
    output.finish()
