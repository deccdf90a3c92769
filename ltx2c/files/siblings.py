"""What stands beside a model's weights in its folder, and comes along into a result's: configuration, tokenizer, other
components. Links are followed to what they lead to, as a hub's cache is full of them; nothing is linked into it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ltx2c.errors import RefusedError, printable
from ltx2c.files.checkpoint import Component
from ltx2c.files.direct import WINDOW_BYTES, EmptyFile
from ltx2c.files.linux import finish_writeback, start_writeback
from ltx2c.files.model_folder import is_weights
from ltx2c.files.naming import naming
from ltx2c.files.temporaries import SUFFIX
from ltx2c.files.url import AnyPath

# What tools keep in a folder for themselves: it is no part of a model.
_TOOLS = (".git", ".cache", "__pycache__")

_STEP_BYTES = 16 << 20
_NOT_IN_KERNEL = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ETXTBSY)


class Sibling(NamedTuple):
    """A file to copy: ``name`` within the folder, and how it was when it was found."""

    name: str
    path: Path
    size: int
    mtime_ns: int
    ctime_ns: int


class Siblings(NamedTuple):
    """What comes along, and what a person should know of what does not."""

    files: tuple[Sibling, ...]
    notes: tuple[str, ...]


def find_siblings(folder: Path, written: Iterable[Component], out: AnyPath) -> Siblings:
    """What is to be copied of a model's ``folder``.

    Args:
        written: the components that are written and not copied.
        out: where the result will stand: not copied into itself.

    Raises:
        OSError: as the system says.
        RefusedError: ``special-file``, ``dangling-link``, ``link-loop``, naming the entry.
    """
    files: list[Sibling] = []
    tools: list[str] = []
    stale: list[str] = []
    own = {name for component in written for name in _names_of(component)}
    holding = {"", *(component.name for component in written)}
    for name, path, status in _walk(folder, "", (), out):
        parent, _, last = name.rpartition("/")
        if status is None:
            tools.append(name)
        elif name not in own and parent in holding and is_weights(last):
            stale.append(name)
        elif name not in own:
            files.append(Sibling(name, path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    notes = _left_out(folder, tools, "a tool's own"), _left_out(folder, stale, "weights that nothing is fused into")
    return Siblings(tuple(files), tuple(note for note in notes if note))


def _names_of(component: Component) -> Iterator[str]:
    within = f"{component.name}/" if component.name else ""
    yield from (within + name for name in component.shards or [component.files[0].path.name])
    if component.index_name:
        yield within + component.index_name


def _left_out(folder: Path, names: list[str], why: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{printable(folder)}: left out {', '.join(map(printable, names[:3]))}{more}: {why}"


def _walk(
    folder: Path, prefix: str, within: tuple[tuple[int, int], ...], out: AnyPath
) -> Iterator[tuple[str, Path, os.stat_result | None]]:
    """Every file below, by name; with no status what is left out as a whole."""
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if path.name in _TOOLS:
            yield name, path, None
            continue
        if path.name.endswith(SUFFIX):  # another run's temporary
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            raise RefusedError(f"{printable(path)}: a link that leads nowhere", code="dangling-link") from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise RefusedError(f"{printable(path)}: a link that leads to itself", code="link-loop") from None
        if stat.S_ISDIR(status.st_mode):
            here = (status.st_dev, status.st_ino)
            if here in within:
                raise RefusedError(f"{printable(path)}: a link to a folder that holds it", code="link-loop")
            if not (isinstance(out, Path) and out.exists() and path.samefile(out)):
                yield from _walk(path, f"{name}/", (*within, here), out)
        elif stat.S_ISREG(status.st_mode):
            yield name, path, status
        else:
            raise RefusedError(
                f"{printable(path)}: no file but a device, pipe or socket, which cannot come along", code="special-file"
            )


def copy_sibling(sibling: Sibling, file: EmptyFile) -> None:
    """Copy into a new file, durably; by the system itself where it can, else through a buffer of 16 MB.

    Raises:
        OSError: as the system says.
        RefusedError: ``file-changed``.
    """
    try:
        with naming(sibling.path):
            source = os.open(sibling.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_unchanged(sibling, source)
            with naming(file.path):
                _copy(source, file.descriptor, sibling.size)
                os.fsync(file.descriptor)
            _check_unchanged(sibling, source)
        finally:
            os.close(source)
    finally:
        os.close(file.descriptor)


def read_sibling(sibling: Sibling) -> Iterator[bytes]:
    """What is to be copied, 16 MB at a time. Raises as ``copy_sibling`` does."""
    with naming(sibling.path):
        source = os.open(sibling.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_unchanged(sibling, source)
        for begin in range(0, sibling.size, _STEP_BYTES):
            with naming(sibling.path):
                data = os.pread(source, min(_STEP_BYTES, sibling.size - begin), begin)
            yield data
        _check_unchanged(sibling, source)
    finally:
        os.close(source)


def _check_unchanged(sibling: Sibling, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if (status.st_size, status.st_mtime_ns, status.st_ctime_ns) != sibling[2:]:
        raise RefusedError(f"{printable(sibling.path)}: changed since it was found", code="file-changed")


def _copy(source: int, target: int, size: int) -> None:
    """What is written goes to disk as it comes, so that no more than a window of it is ever dirty."""
    copied, in_kernel = 0, True
    while copied < size:
        step = min(_STEP_BYTES, size - copied)
        if in_kernel:
            try:
                count = os.copy_file_range(source, target, step, copied, copied)
            except OSError as error:
                if error.errno not in _NOT_IN_KERNEL:
                    raise
                count = 0
            in_kernel = count > 0  # some file systems answer with nothing
            if not in_kernel:
                continue
        else:
            data = memoryview(os.pread(source, step, copied))
            count = len(data)
            if not count:
                raise OSError(errno.EIO, "the file ended early")
            _write(target, data, copied)
        start_writeback(target, copied, copied + count)
        if copied >= WINDOW_BYTES:
            finish_writeback(target, copied - WINDOW_BYTES, copied - WINDOW_BYTES + count)
        copied += count


def _write(target: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(target, data, offset)
        data, offset = data[count:], offset + count
