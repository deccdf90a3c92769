"""Ways to put a temporary in a result's place, best first, and which of them a file system offers.

Which works is tried before any work, with the temporary itself: a file system, above all a network's or a bucket's, may
lack any of them, and says so only when asked.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from ltx2c.files import linux
from ltx2c.files.folder import Folder
from ltx2c.files.temporaries import ASIDE, Temporary, kept_name

Move = Callable[[Folder, str, str], None]  # a temporary's name, to a result's


@dataclass(frozen=True)
class Way:
    """A way to put a temporary in place.

    Attributes:
        move: does it.
        swaps: whether the temporary's name then leads to what stood there before.
        replaces: whether anything may stand there.
        note: what a person should know where this is the best there is; empty where nothing.
    """

    move: Move
    swaps: bool = False
    replaces: bool = False
    note: str = ""


def _rename_new(folder: Folder, source: str, target: str) -> None:
    linux.rename_new(folder.descriptor, source, target)


def _link_new(folder: Folder, source: str, target: str) -> None:
    folder.link(source, target)
    with contextlib.suppress(OSError):  # the result is in place; its other name is removed with the temporary
        folder.unlink(source)


def _rename_checked(folder: Folder, source: str, target: str) -> None:
    if folder.status(target) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    folder.rename(source, target)


def _exchange(folder: Folder, source: str, target: str) -> None:
    linux.exchange(folder.descriptor, source, target)


def _exchange_in_steps(folder: Folder, source: str, target: str) -> None:
    aside = source + ASIDE
    try:
        folder.rename(target, aside)
        folder.rename(source, target)
        folder.rename(aside, source)
    except BaseException:  # Ctrl-C may come between any two of them
        if folder.status(aside) is not None:
            folder.rename(aside, target if folder.status(target) is None else source)
        raise


def _replace(folder: Folder, source: str, target: str) -> None:
    folder.rename(source, target)


RENAME_NEW = Way(_rename_new)
LINK_NEW = Way(_link_new)
RENAME_CHECKED = Way(
    _rename_checked,
    note="the file system has no rename that keeps what stands there: what had appeared at the last moment is replaced",
)
EXCHANGE = Way(_exchange, swaps=True, replaces=True)
EXCHANGE_IN_STEPS = Way(
    _exchange_in_steps,
    swaps=True,
    replaces=True,
    note="the file system cannot exchange two names: the folder is replaced in three steps, and not in one",
)
REPLACE = Way(_replace, replaces=True)


def way_to_create(folder: Folder, temporary: Temporary, scratch: Temporary) -> Way:
    """The best way to put ``temporary`` where nothing stands. Both get other names by trying.

    Raises:
        OSError: none works: as the system said to the last.
    """
    if _keeps_what_stands(folder, temporary, scratch) and _moves(folder, temporary, RENAME_NEW):
        return RENAME_NEW
    if not temporary.is_folder and _moves(folder, temporary, LINK_NEW):
        return LINK_NEW
    _move(folder, temporary, RENAME_CHECKED)
    return RENAME_CHECKED


def way_to_replace(folder: Folder, temporary: Temporary, scratch: Temporary) -> Way:
    """The best way to put ``temporary`` where something stands. Both get other names by trying.

    Raises:
        OSError: none works: as the system said to the last.
    """
    temporary.share_names(scratch)
    with contextlib.suppress(OSError):
        linux.exchange(folder.descriptor, temporary.name, scratch.name)
    if temporary.is_at(scratch.name):
        exchanged = scratch.is_at(temporary.name)  # else it was a mere rename: the system knows no flags
        temporary.swap_names(scratch)
        if exchanged:
            return EXCHANGE
    _move(folder, temporary, REPLACE)
    return EXCHANGE_IN_STEPS if temporary.is_folder else REPLACE


def _keeps_what_stands(folder: Folder, temporary: Temporary, scratch: Temporary) -> bool:
    temporary.share_names(scratch)
    try:
        linux.rename_new(folder.descriptor, temporary.name, scratch.name)
    except OSError as error:
        return error.errno == errno.EEXIST
    temporary.swap_names(scratch)  # a file system that does not know the flag, and ignores it
    return False


def _moves(folder: Folder, temporary: Temporary, way: Way) -> bool:
    try:
        _move(folder, temporary, way)
    except OSError:
        return False
    return True


def _move(folder: Folder, temporary: Temporary, way: Way) -> None:
    target = temporary.fresh_name()
    way.move(folder, temporary.name, target)
    temporary.name = target


def check_replaceable(folder: Folder, out: str, opposite: Temporary) -> None:
    """Make sure that what stands at ``out`` may be moved away, by asking for what is never done.

    A folder cannot take a file's place, nor a file a folder's; but before the system says that, it says whether the
    one to be moved may be moved at all: not where it is another's in a folder with the sticky bit, nor where it is
    immutable. ``out`` is asked to take the temporary's place, and not the other way round: where another kind of thing
    stands there by now, that is moved, and gets its name back, and nothing is lost but the temporary.

    Args:
        opposite: a folder where a file stands at ``out``, and a file where a folder does.

    Raises:
        OSError: it may not.
    """
    try:
        folder.rename(out, opposite.name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    finally:  # Ctrl-C may come as soon as it is moved
        _give_back(folder, out, opposite)


def _give_back(folder: Folder, out: str, opposite: Temporary) -> None:
    """Rename what stands in the place of ``opposite`` to ``out``, or to a name of its own where that is taken again."""
    if folder.status(opposite.name) is None or opposite.is_at(opposite.name):
        return
    for target in (out, kept_name(out)):
        for way in (RENAME_NEW, RENAME_CHECKED):
            with contextlib.suppress(OSError):
                way.move(folder, opposite.name, target)
                return
