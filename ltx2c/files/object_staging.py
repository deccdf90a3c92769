"""Results in S3: where they go, checked before any work; the uploads that make them, completed in the end or aborted.

An upload leaves nothing that can be read until it is completed, and then the whole object, in one step. What a killed
run leaves is an upload that goes on taking room until it is aborted: ``abandon`` does that, or a rule of the bucket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ltx2c.crew import Crew
from ltx2c.errors import printable
from ltx2c.files.bucket import Bucket
from ltx2c.files.destination import cannot_write
from ltx2c.files.direct import Digest
from ltx2c.files.index import is_index_name
from ltx2c.files.uploads import IN_FLIGHT, Owed, Upload, UploadedFile
from ltx2c.files.url import AnyPath, Url, as_url


@dataclass(frozen=True)
class ObjectDestination:
    """A URL that may be written. Get one from ``check``.

    Attributes:
        path: of the result, or of what its objects lie below.
        folder: whether the result is several objects below ``path``.
        force: whether objects that stand there are to be replaced.
        names: of a folder, what it will hold.
    """

    path: Url
    folder: bool
    force: bool
    names: frozenset[str] = frozenset()

    @classmethod
    def check(
        cls,
        out: str | os.PathLike[str],
        *,
        inputs: Iterable[AnyPath],
        force: bool = False,
        folder: bool = False,
        names: Iterable[str] = (),
    ) -> ObjectDestination:
        """Make sure, without writing, that a result can be put at ``out``.

        Args:
            inputs: everything that is read: none of it may be the result.
            folder: whether the result is several objects.
            names: what those are called below ``out``.

        Raises:
            OSError: as the storage says.
            RefusedError: ``bad-url``, ``no-storage``, ``not-by-url``, ``output-is-folder``, ``output-is-not-folder``,
                ``output-is-input``, ``output-exists``.
        """
        given = as_url(out)
        destination = cls(Url(given.text.rstrip("/")), folder, force, frozenset(names))
        if not folder and given.text.endswith("/"):
            destination._refuse("it means a folder, and the result is one object", "output-is-folder")
        if folder and given.name.endswith(".safetensors"):
            destination._refuse("the result is a folder of shards, and its name is a file's", "output-is-not-folder")
        bucket = Bucket(destination.path)
        urls = {destination.path / name: name for name in sorted(destination.names)} or {destination.path: ""}
        for source in inputs:
            if source in urls:
                destination._refuse(f"{printable(source)} is an input", "output-is-input")
        for url, name in urls.items():
            if not force and bucket.standing(destination.key(bucket, name)) is not None:
                destination._refuse(f"{printable(url)} exists; --force replaces it", "output-exists")
        return destination

    def key(self, bucket: Bucket, name: str) -> str:
        """Where in the bucket a file of the result lies."""
        return f"{bucket.key}/{name}" if self.folder and name else bucket.key

    def _refuse(self, problem: str, code: str) -> NoReturn:
        raise cannot_write(self.path, problem, code)


class EmptyObject(NamedTuple):
    """An object of a result, to be uploaded."""

    staged: StagedObjects
    name: str

    @property
    def path(self) -> Url:
        """Where it will be."""
        destination = self.staged.destination
        return destination.path / self.name if destination.folder else destination.path

    def open(self, size: int, digest: Digest | None = None, owed: Owed = lambda begin, end: False) -> UploadedFile:
        """Begin to upload it, ``size`` bytes in all. Raises ``OSError``."""
        return UploadedFile(self.staged.begin(self.name, size), size, digest, owed)


class StagedObjects:
    """A result in the making, as uploads.

    Attributes:
        destination: where it goes.
        notes: what a person should know, one line each.
    """

    def __init__(self, destination: ObjectDestination) -> None:
        """Raises as ``Bucket`` and ``OSError`` as the storage says."""
        self.destination = destination
        self.notes: tuple[str, ...] = ()
        self._bucket = Bucket(destination.path)
        self._crew = Crew(IN_FLIGHT, "ltx2c-upload")
        self._uploads: dict[str, Upload] = {}
        self._placed = False

    def look(self) -> None:
        """Note the uploads that others have begun there, or killed runs of ours have left."""
        with contextlib.suppress(OSError):  # who may write need not be allowed to list
            left = [one for one in self._bucket.unfinished() if self.destination.folder or one.key == self._bucket.key]
            if left:
                self.notes += (
                    f"{len(left)} uploads to it were begun and not finished, the first at {left[0].begun}; if none is "
                    f"of a run that goes on: ltx2c job abandon {printable(self.destination.path)}",
                )

    def begin(self, name: str, size: int) -> Upload:
        """Begin the upload of one object. Raises ``OSError``."""
        key = self.destination.key(self._bucket, name)
        self._uploads[name] = Upload(self._bucket, key, size, secrets.token_hex(16), self._crew)
        return self._uploads[name]

    def file(self, name: str) -> EmptyObject:
        """An object to upload; of a result that is one object, that."""
        return EmptyObject(self, name)

    def complete(self, name: str) -> None:
        """As ``Staged.complete``: uploads need no such word."""

    def place(self) -> None:
        """Complete all uploads, an index last. Raises as ``publish`` does."""
        self._placed = True
        names = sorted(self._uploads, key=_order)
        if self.destination.force:
            for name in names:
                if is_index_name(name.rpartition("/")[2]):  # never one that names shards of two results
                    self._bucket.remove(self._uploads[name].key)
        for name in names:
            try:
                self._uploads[name].complete(replace=self.destination.force)
            except FileExistsError:
                url = EmptyObject(self, name).path
                raise cannot_write(url, "it appeared while the result was made", "output-exists") from None

    def withdraw(self) -> None:
        """Remove those objects that were placed and replaced nothing."""
        if not self._placed or self.destination.force:
            return
        for upload in self._uploads.values():
            with contextlib.suppress(OSError):
                if upload.completed and upload.is_there():
                    self._bucket.remove(upload.key)

    def settle(self) -> None:
        """As ``Staged.settle``: a storage's objects are durable."""

    def discard(self) -> None:
        """Abort what was not completed; again does nothing."""
        self._crew.cancel()  # a part that arrives after its upload was aborted would stay
        for upload in self._uploads.values():
            with contextlib.suppress(OSError):
                upload.abort()


def _order(name: str) -> tuple[bool, bool]:
    return is_index_name(name.rpartition("/")[2]), not name.endswith(".safetensors")


@contextlib.contextmanager
def stage_objects(destination: ObjectDestination) -> Iterator[StagedObjects]:
    """Uploads for the length of the block, aborted at its end unless they were completed.

    Raises:
        OSError: as the storage says.
        RefusedError: as ``Bucket`` does.
    """
    staged = StagedObjects(destination)
    try:
        staged.look()
        yield staged
    finally:
        try:
            staged.discard()
        except BaseException:  # a second Ctrl-C
            staged.discard()
            raise


def rehearse_objects(destination: ObjectDestination) -> tuple[str, ...]:
    """Find out, and leave nothing, whether an upload may be begun there; what a person should know. Raises as above."""
    with stage_objects(destination) as staged:
        staged.begin(next(iter(sorted(destination.names)), ""), 0)
        return staged.notes


def abandon_uploads(out: str | os.PathLike[str]) -> int:
    """Abort every upload to ``out``, and to what lies below it, that was begun and not completed, whoever began it.

    Returns:
        How many.

    Raises:
        OSError: as the storage says.
        RefusedError: ``bad-url``, ``no-storage``, ``not-by-url``.
    """
    bucket = Bucket(Url(as_url(out).text.rstrip("/")))
    found = list(bucket.unfinished())
    for one in found:
        bucket.abort(one.key, one.upload)
    return len(found)
