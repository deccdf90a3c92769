"""Linux system calls that Python does not offer."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_ATTR_APPEND, _STATX_ATTR_MOUNT_ROOT = 0x20, 0x2000
_STATX_BYTES = 256
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


def rename_new(folder: int, source: str, target: str) -> None:
    """Rename within an open folder, failing where ``target`` exists.

    Raises:
        OSError: as the system says: EEXIST, or what it answers where it cannot do this in one step.
    """
    _renameat2(folder, source, target, _RENAME_NOREPLACE)


def exchange(folder: int, one: str, other: str) -> None:
    """Let two names in an open folder swap what they stand for, in one step. Raises ``OSError`` as the system says."""
    _renameat2(folder, one, other, _RENAME_EXCHANGE)


def _renameat2(folder: int, source: str, target: str, flags: int) -> None:
    here = ctypes.c_int(folder)
    _call("renameat2", here, os.fsencode(source), here, os.fsencode(target), ctypes.c_uint(flags))


def is_mount_root(folder: int, name: str) -> bool:
    """Whether something is mounted at ``name`` in an open folder; False where the system cannot tell."""
    return bool(_attributes(folder, name) & _STATX_ATTR_MOUNT_ROOT)


def is_append_only(folder: int) -> bool:
    """Whether an open folder takes new names and lets none go; False where the system cannot tell."""
    return bool(_attributes(folder, ".") & _STATX_ATTR_APPEND)


def _attributes(folder: int, name: str) -> int:
    status = ctypes.create_string_buffer(_STATX_BYTES)
    flags = ctypes.c_int(_AT_SYMLINK_NOFOLLOW)
    try:
        _call("statx", ctypes.c_int(folder), os.fsencode(name), flags, ctypes.c_uint(0), status)
    except OSError:
        return 0
    (attributes,) = struct.unpack_from("=Q", status, 8)
    return int(attributes)
