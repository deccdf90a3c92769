"""A job's folder: where in it what lies, and who may work on it.

order.json      what to make; there from when the job can be worked on
parts/...       the result's files, of their whole size from the start, without headers until the end
done/00012.json a mark for each unit that is done
lease           locked by whoever runs or finishes the job
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ltx2c.errors import RefusedError, printable
from ltx2c.files.layout import OutputLayout
from ltx2c.files.positional import PositionalFile

# What a job puts into its folder; the order, without which it is none, goes last.
_ENTRIES = ("parts", "done", "lease", "order.json")


class JobFolder:
    """The folder of a job.

    Attributes:
        path: absolute.
        parts: in it, where the result's files are made.
        order: the file that says what to make.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.parts = self.path / "parts"
        self.order = self.path / "order.json"

    def make(self) -> None:
        """Make the folder, new. Raises OSError; RefusedError (``job-exists``)."""
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            raise RefusedError(
                f"{printable(self.path)}: it exists; a job has a new folder of its own", code="job-exists"
            ) from None

    def make_parts(self, layout: OutputLayout) -> None:
        """Make the result's files, room for them reserved. Raises OSError."""
        self.parts.mkdir()
        (self.path / "done").mkdir()
        for file in layout.files:
            part = self.parts / file.name
            part.parent.mkdir(parents=True, exist_ok=True)
            PositionalFile.create(part, file.size)

    def mark(self, number: int) -> Path:
        """The file that marks a unit as done."""
        return self.path / "done" / f"{number:05}.json"

    def missing(self, units: int) -> list[int]:
        """The numbers of those of so many units that are not marked as done."""
        return [number for number in range(units) if not self.mark(number).exists()]

    def is_published(self, out: Path) -> bool:
        """Whether the result is in place, and only this folder was left by a kill."""
        parts = [path for path in self.parts.rglob("*") if path.is_file()]
        try:
            within = out.is_dir()
            return bool(parts) and all(
                part.samefile(out / part.relative_to(self.parts) if within else out) for part in parts
            )
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Be the one that runs or finishes the job. Units are done by anybody.

        Raises:
            OSError: as the system says.
            RefusedError: ``job-busy``.
        """
        descriptor = os.open(self.path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    f"{printable(self.path)}: another process runs or finishes this job", code="job-busy"
                ) from None
            except OSError:  # no locks on this file system: two may run it, to the same bytes
                pass
            yield
        finally:
            os.close(descriptor)

    def vanish(self, name: str) -> None:
        """Remove it when nobody can put anything here any more: workers that go on look for it where it was.

        Raises OSError. ``name``: another, under which it is left where that fails.
        """
        moved = self.path.with_name(name)
        self.path.rename(moved)
        JobFolder(moved).remove()

    def remove(self) -> None:
        """Remove what the job has put here, and the folder unless somebody put something else here."""
        for path in (self.path / name for name in _ENTRIES):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()
