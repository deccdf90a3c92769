"""What killed runs left beside a result: found by name, owner and a lock that nobody holds; removed, never used."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Container, Iterator, Set

from ltx2c.files.folder import Folder, same_file
from ltx2c.files.index import is_index_name
from ltx2c.files.temporaries import ASIDE, is_temporary


def leftovers(folder: Folder, out: str) -> Iterator[tuple[str, os.stat_result]]:
    """The names and statuses of what may be a run's temporaries of the result ``out``, this moment's runs' too.

    Raises:
        OSError: as the system says. A folder that cannot be listed holds none.
    """
    try:
        names = folder.names()
    except PermissionError:
        return
    for name in names:
        if is_temporary(out, name) and (found := folder.status(name)) is not None:
            yield name, found


def clear_leftovers(folder: Folder, out: str, *, owner: int, own: Container[str], known: Set[str] = frozenset()) -> int:
    """Remove what killed runs of ``owner`` left; how many bytes it held. What is not plainly theirs stays.

    Where a run was killed while it put a folder in place by three renames, the folder that stood there gets its name
    back.

    Args:
        own: names of temporaries that are this run's.
        known: what a result that is a folder holds beside shards and indexes.

    Raises:
        OSError: as the system says.
        BlockingIOError: another run of ``owner`` is making the result ``out``.
    """
    cleared = 0
    for name, found in leftovers(folder, out):
        if name in own or found.st_uid != owner:
            continue
        with _locked(folder, name, found) as descriptor:
            if descriptor is not None:
                cleared += _clear(folder, out, name, found, descriptor, known)
    return cleared


def _clear(folder: Folder, out: str, name: str, found: os.stat_result, descriptor: int, known: Set[str]) -> int:
    with contextlib.suppress(PermissionError):  # somebody has since forbidden it: no reason to make no result
        if name.endswith(ASIDE) and folder.status(out) is None:
            folder.rename(name, out)
        elif stat.S_ISDIR(found.st_mode):
            return _remove_folder(folder, name, Folder(descriptor, folder.path / name), found.st_uid, known)
        elif _links_known(folder, out, found):
            folder.unlink(name)
            return found.st_size
    return 0


def _links_known(folder: Folder, out: str, file: os.stat_result) -> bool:
    """Whether no other name of a file is unknown: a run that was killed while it linked its result left two."""
    known = [found for _, found in leftovers(folder, out)] + [folder.status(out)]
    return file.st_nlink <= sum(found is not None and same_file(found, file) for found in known)


def _remove_folder(within: Folder, name: str, folder: Folder, owner: int, known: Set[str]) -> int:
    """Remove a result's folder with all that it holds, or leave it as it is where it holds anything else."""
    tree = folder.tree()
    if not all(_is_part(entry, found, owner, known) for entry, found in tree.items()):
        return 0
    for entry, found in reversed(tree.items()):
        folder.rmdir(entry) if stat.S_ISDIR(found.st_mode) else folder.unlink(entry)
    within.rmdir(name)
    return sum(found.st_size for found in tree.values() if stat.S_ISREG(found.st_mode))


def _is_part(name: str, found: os.stat_result, owner: int, known: Set[str]) -> bool:
    if found.st_uid != owner:
        return False
    if stat.S_ISDIR(found.st_mode):
        return any(one.startswith(f"{name}/") for one in known)
    result = name in known or name.endswith(".safetensors") or is_index_name(name.rpartition("/")[2])
    return result and stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


@contextlib.contextmanager
def _locked(folder: Folder, name: str, found: os.stat_result) -> Iterator[int | None]:
    """A locked descriptor of what was ``found`` under ``name``; None where it cannot be had.

    Raises:
        BlockingIOError: another run holds the lock.
    """
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        yield None
        return
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder.descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.ELOOP, errno.ENXIO):
            raise
        yield None
        return
    try:
        yield descriptor if same_file(os.fstat(descriptor), found) and _lock(descriptor) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # no locks here: nobody can tell whether its run goes on
        return False
    return True
