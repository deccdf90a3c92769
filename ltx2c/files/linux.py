"""Three Linux system calls that Python does not offer, each with what to do where the system lacks it."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_SYNC_WAIT_BEFORE, _SYNC_WRITE, _SYNC_WAIT_AFTER = 1, 2, 4
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def _call(name: str, *arguments: object) -> None:
    if (function := getattr(_libc, name, None)) is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def reserve(descriptor: int, size: int) -> None:
    """Reserve ``size`` bytes on disk for a file, and make it that long; never by writing zeros, as posix_fallocate may.

    Raises:
        OSError: ENOSPC and the like. A file system that cannot reserve is no error.
    """
    try:
        _call("fallocate", ctypes.c_int(descriptor), ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int64(size))
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def start_writeback(descriptor: int, begin: int, end: int) -> None:
    """Ask that the bytes of a range go to disk, without waiting."""
    _sync_file_range(descriptor, begin, end, _SYNC_WRITE)


def finish_writeback(descriptor: int, begin: int, end: int) -> None:
    """Wait until the bytes of a range are on disk, so that no more than a window of them is ever dirty."""
    _sync_file_range(descriptor, begin, end, _SYNC_WAIT_BEFORE | _SYNC_WRITE | _SYNC_WAIT_AFTER)


def _sync_file_range(descriptor: int, begin: int, end: int, flags: int) -> None:
    try:
        _call(
            "sync_file_range",
            ctypes.c_int(descriptor),
            ctypes.c_int64(begin),
            ctypes.c_int64(end - begin),
            ctypes.c_uint(flags),
        )
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or folder, failing where ``target`` exists.

    Raises:
        FileExistsError: ``target`` exists, whatever it is.
    """
    try:
        _renameat2(source, target, _RENAME_NOREPLACE)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if source.is_dir():
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            source.rename(target)
        else:
            target.hardlink_to(source)
            source.unlink()


def exchange(first: Path, second: Path) -> None:
    """Let two names swap what they stand for, in one step; where the system cannot, in three, undone if one fails.

    A process killed between those leaves what ``second`` stood for beside it, under ``first``'s name with ``-old``.
    """
    try:
        _renameat2(first, second, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _exchange_in_steps(first, second)


def _exchange_in_steps(first: Path, second: Path) -> None:
    aside = second.with_name(f"{first.name}-old")
    second.rename(aside)
    try:
        first.rename(second)
    except BaseException:
        aside.rename(second)
        raise
    aside.rename(first)


def _renameat2(source: Path, target: Path, flags: int) -> None:
    here = ctypes.c_int(_AT_FDCWD)
    try:
        _call("renameat2", here, os.fsencode(source), here, os.fsencode(target), ctypes.c_uint(flags))
    except OSError as error:
        error.filename, error.filename2 = str(source), str(target)
        raise
