"""A result in the making: under a temporary name beside its destination, put in place in one step or removed.

What can stand against that is found out while nothing but the temporary has been made: see ``stage``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination, cannot_write
from ltx2c.files.direct import EmptyFile
from ltx2c.files.folder import Folder, unchanged
from ltx2c.files.leftovers import clear_leftovers
from ltx2c.files.probing import Ways, find_ways
from ltx2c.files.publishing import Way
from ltx2c.files.standing import Standing, keep_aside
from ltx2c.files.temporaries import Temporary, change_mode

_ATTEMPTS = 5
_PAUSE = (0.01, 0.05)  # seconds; long enough for a run that only tries what can be done to be gone


@contextlib.contextmanager
def stage(destination: Destination) -> Iterator[Staged]:
    """Make a temporary for the length of the block, and remove it unless it was published.

    Whether the result can be put in place in the end is tried first, with the temporary itself.

    Raises:
        OSError: as the system says: the folder cannot be written, its disk is full.
        RefusedError: ``output-busy``, where another run is writing to this destination; ``output-no-rename``,
            ``output-only-sequential``, ``output-not-replaceable``, where the end would fail; ``output-exists``.
    """
    with _about(destination):
        folder = Folder.open(destination.path.parent)
    with folder:
        staged = Staged(destination, folder)
        try:
            with _about(destination):
                staged.begin()
            yield staged
        finally:
            try:
                staged.discard()
            except BaseException:  # a second Ctrl-C
                staged.discard()
                raise


def rehearse(destination: Destination) -> tuple[str, ...]:
    """Find out, and leave nothing, whether a result can be put in place; what a person should know of it.

    Raises as ``stage`` does.
    """
    with stage(destination) as staged:
        return staged.notes


class Publishable(Protocol):
    """A result that is made, and can be put in place."""

    def place(self) -> None:
        """Put it in place. Raises as ``publish`` does."""

    def withdraw(self) -> None:
        """Take it back, as far as that can be done."""

    def settle(self) -> None:
        """See to what is left when all are in place."""


def publish(*results: Publishable) -> None:
    """Put results in place, durably; all of them, or where one fails none. Their files must be durable already.

    Of results that replace others this holds where the file system can exchange names.

    Raises:
        OSError: as the system says.
        RefusedError: ``output-exists``, where something has appeared there meanwhile; ``output-lost``, where the
            temporary is not the run's own any more.
    """
    with contextlib.ExitStack() as placed:
        for result in results:
            placed.callback(result.withdraw)
            result.place()
        placed.pop_all()
    for result in results:
        result.settle()


class Staged:
    """A result in the making, under its temporary name.

    Attributes:
        notes: what a person should know, one line each; of the end once it is published.
    """

    def __init__(self, destination: Destination, folder: Folder) -> None:
        self.notes: tuple[str, ...] = ()
        self._destination = destination
        self._folder = folder
        self._out = destination.path.name
        self._temporaries: list[Temporary] = []
        self._temporary = self._new_temporary(is_folder=destination.folder)
        self._standing: Standing | None = None
        self._ways: Ways | None = None
        self._way: Way | None = None
        self._files: dict[str, os.stat_result | None] = {}  # of a folder; None until they are complete
        self._folders: dict[str, None] = {}  # in a folder, each behind the one that holds it
        self._open: dict[str, int] = {}  # those that are not

    def _new_temporary(self, *, is_folder: bool) -> Temporary:
        self._temporaries.append(Temporary(self._folder, self._out, is_folder=is_folder))
        return self._temporaries[-1]

    def begin(self) -> None:
        """Make the temporary, clear what killed runs left, find the way to publish. Raises as ``stage`` does."""
        for _ in range(_ATTEMPTS):
            try:
                self._begin()
                return
            except BlockingIOError:
                self.discard()
                time.sleep(random.uniform(*_PAUSE))  # two runs that began at once do not go on at once
        raise cannot_write(self._destination.path, "another run is writing to it", "output-busy")

    def _begin(self) -> None:
        is_folder = self._destination.folder
        scratch, opposite = self._new_temporary(is_folder=False), self._new_temporary(is_folder=not is_folder)
        self._temporary = self._new_temporary(is_folder=is_folder)
        scratch.make(0o600)
        owner = scratch.status().st_uid  # as this file system calls the user
        cleared = self._clear_leftovers(owner)
        self._look(owner)
        self._make(owner)
        self._ways = find_ways(
            self._destination,
            self._folder,
            self._temporary,
            scratch=scratch,
            opposite=opposite,
            standing=self._standing,
        )
        cleared += self._clear_leftovers(owner)
        for tried in (scratch, opposite):
            _drop(tried)
        self.notes = tuple(self._beginning_notes(cleared, self._ways))

    def _clear_leftovers(self, owner: int) -> int:
        known = self._destination.names
        return clear_leftovers(self._folder, self._out, owner=owner, own=self._names, known=known)

    @property
    def _names(self) -> set[str]:
        return {name for temporary in self._temporaries for name in temporary.names}

    def _look(self, owner: int) -> None:
        """At what stands there: again, as a killed run's may have got its name back."""
        checked = self._destination.check_existing()
        if checked is not None:
            self._standing = Standing(self._folder, self._out, checked)
            if self._standing.owner != owner:  # who may change what becomes ours is not for others to say
                self._standing.mode &= 0o755
                self._standing.folder_mode &= 0o755

    def _make(self, owner: int) -> None:
        self._temporary.make(self._mode)
        made = self._temporary.status()
        if made.st_uid != owner:  # a folder is made and opened in two steps
            raise self._lost("another's folder took its place")
        if not self._destination.folder:
            self._open_to_readers(self._temporary.descriptor)

    @property
    def _mode(self) -> int:
        return 0o666 if self._standing is None else self._standing.mode

    def _beginning_notes(self, cleared: int, ways: Ways) -> Iterator[str]:
        if cleared:
            yield f"removed {cleared} bytes that an earlier run, killed before it was done, had left"
        if self._temporary.unlocked is not None:
            reason = self._temporary.unlocked.strerror
            yield f"the file system has no locks ({reason}): a second run to the same output would not be noticed"
        way = ways.create if self._standing is None or ways.replace is None else ways.replace
        if way.note:
            yield way.note

    def file(self, name: str) -> EmptyFile:
        """An empty file to write and close: the temporary itself, or ``name`` in it where it is a folder.

        The subfolders in ``name`` are made.

        Raises:
            OSError: as the system says.
        """
        if not self._destination.folder:
            return EmptyFile(os.dup(self._temporary.descriptor), self._destination.path)
        path = self._destination.path / name
        with _about(self._destination):
            self._make_folders(name)
            self._files[name] = None
            try:
                self._open[name] = self._inner().create(name, self._mode)
            except FileExistsError:  # whose that is, nobody knows
                del self._files[name]
                raise
            self._open_to_readers(self._open[name])
        return EmptyFile(os.dup(self._open[name]), path)

    def adopt(self, name: str, made: Path) -> None:
        """Take a whole, durable file, made on the same file system, into the result under a second name of it.

        As that name is no file of its own, whoever clears what killed runs left leaves ``made`` alone.

        Raises:
            OSError: as the system says: the file system has no hard links, or ``made`` lies on another.
        """
        with _about(self._destination):
            if not self._destination.folder:
                self._temporary.adopt(made)
                self._open_to_readers(self._temporary.descriptor)
                return
            self._make_folders(name)
            self._files[name] = None
            self._open[name] = self._inner().adopt(name, made)
            self._open_to_readers(self._open[name])
            self.complete(name)

    def _make_folders(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for folder in ("/".join(parts[: end + 1]) for end in range(len(parts))):
            if folder not in self._folders:
                self._inner().mkdir(folder)
                self._folders[folder] = None

    def _open_to_readers(self, descriptor: int) -> None:
        """Let those read who could read what is replaced. Who may write is up to the mask: a file that may be written
        by all can be put there as a hard link, by one who means to write the result."""
        if self._standing is not None:
            made = stat.S_IMODE(os.fstat(descriptor).st_mode)
            change_mode(descriptor, made | self._standing.mode & 0o444)

    def _inner(self) -> Folder:
        """The temporary as a folder. Its descriptor stays the temporary's."""
        return Folder(self._temporary.descriptor, self._destination.path)

    def complete(self, name: str) -> None:
        """Remember a file of a folder as it was written. Those that nobody says this of are complete in the end."""
        if name in self._open:
            self._files[name] = os.fstat(self._open[name])
            os.close(self._open.pop(name))

    def place(self) -> None:
        """Give the temporary the result's name. Raises as ``publish`` does."""
        assert self._ways is not None
        with _about(self._destination):
            for name in list(self._open):
                self.complete(name)
            self._check_own()
            if self._destination.folder:
                self._finish_folder()
            if self._standing is not None and self._ways.replace is not None and self._standing.is_at(self._out):
                self._standing.lock()
                self._way = self._ways.replace
            else:
                self._make_way()
                self._way = self._ways.create
            try:
                self._way.move(self._folder, self._temporary.name, self._out)
            except FileExistsError:
                raise self._appeared() from None

    def _check_own(self) -> None:
        if not self._temporary.is_own():
            raise self._lost("its temporary was removed or replaced")
        if self._destination.folder:
            tree = self._inner().tree()
            for name, found in tree.items():
                written = self._files.get(name)
                made = name in self._folders and stat.S_ISDIR(found.st_mode)
                if not made and (written is None or not unchanged(written, found)):
                    raise self._lost(f"{printable(name)} in its temporary folder is not what this run wrote")
            if len(tree) != len(self._files) + len(self._folders):
                raise self._lost("a file in its temporary folder was removed")

    def _finish_folder(self) -> None:
        mode = self._temporary.mode
        mode = mode if self._standing is None else self._kept_folder_mode(mode)
        for name in self._folders:
            with self._inner().inner(name) as folder, folder.readable() as descriptor:
                change_mode(descriptor, mode)
                with _unless_unknown():
                    os.fsync(descriptor)
        change_mode(self._temporary.descriptor, mode)
        with _unless_unknown():
            os.fsync(self._temporary.descriptor)

    def _kept_folder_mode(self, mode: int) -> int:
        assert self._standing is not None
        return self._standing.folder_mode & (0o755 | mode) | mode & stat.S_ISGID

    def _make_way(self) -> None:
        """Move aside what has appeared where the result goes, if that is to be replaced at all."""
        if self._folder.status(self._out) is not None:
            if not self._destination.force:
                raise self._appeared()
            self.notes += (keep_aside(self._folder, self._out),)

    def withdraw(self) -> None:
        """Take the result back, where that can be done: what stood there before stands there again."""
        with contextlib.suppress(OSError):
            if self._way is not None and self._temporary.is_at(self._out):
                if self._way.swaps:
                    self._way.move(self._folder, self._temporary.name, self._out)
                elif self._temporary.is_at(self._temporary.name):  # linked, and not renamed
                    self._folder.unlink(self._out)
                elif not self._way.replaces:
                    self._folder.rename(self._out, self._temporary.name)

    def settle(self) -> None:
        """Make the result's name durable, and remove what it replaced. The result stands, whatever becomes of that."""
        try:
            with _unless_unknown():
                self._folder.sync()
        except OSError as error:
            where = printable(self._folder.path)
            self.notes += (f"the result is in place, but its name may not be durable: {where}: {error.strerror}",)
        if not self._folder.is_at_its_path():
            where = printable(self._folder.path)
            self.notes += (f"the result is in the folder that was {where}, which was moved or replaced meanwhile",)
        try:
            note = self._remove_replaced()
        except OSError as error:
            note = f"the result is in place; what stood there before may be left beside it: {error.strerror}"
        self.notes += (note,) if note else ()

    def _remove_replaced(self) -> str:
        if self._standing is None or self._way is None or not self._way.swaps:
            return ""
        return "" if self._temporary.is_at(self._temporary.name) else self._standing.remove(self._temporary.name)

    def discard(self) -> None:
        """Remove what was not published and what it replaced, and let go of the lock; again does nothing."""
        with contextlib.suppress(OSError):
            for name in list(self._open):
                self.complete(name)
        with contextlib.suppress(OSError):  # what stopped the run is what has to be told
            self._remove_replaced()
        with contextlib.suppress(OSError):
            self._remove_files()
        for temporary in self._temporaries:
            _drop(temporary)
        self._temporaries.clear()
        if self._standing is not None:
            self._standing.close()
            self._standing = None

    def _remove_files(self) -> None:
        if self._temporary.descriptor >= 0 and not self._temporary.is_at(self._out):
            for name in self._files:
                with contextlib.suppress(FileNotFoundError):
                    self._inner().unlink(name)
            for name in reversed(self._folders):
                with contextlib.suppress(FileNotFoundError):
                    self._inner().rmdir(name)

    def _appeared(self) -> RefusedError:
        return cannot_write(self._destination.path, "it appeared while the result was made", "output-exists")

    def _lost(self, problem: str) -> RefusedError:
        return cannot_write(self._destination.path, f"{problem} while the result was made", "output-lost")


def _drop(temporary: Temporary) -> None:
    with contextlib.suppress(OSError):
        temporary.discard()
    temporary.close()


@contextlib.contextmanager
def _about(destination: Destination) -> Iterator[None]:
    """Let an ``OSError`` from the block name the result and not a temporary of it."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(destination.path)) from error


@contextlib.contextmanager
def _unless_unknown() -> Iterator[None]:
    """A file system that has no such thing as making names durable is no error."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
