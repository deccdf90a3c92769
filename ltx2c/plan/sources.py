"""What a plan says of the files that it was made from.

A plan refers to a file by its identity: its place, its size, when it and its entry were changed last, and a digest of
its header; to an object of a storage by its URL, its size, its ETag, and that digest. A file that was replaced since,
even by one of the same size and header, has another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.files.identity import Identity, identity_from_json
from ltx2c.files.paths import remembered_place
from ltx2c.files.url import AnyPath

# What tells a file from the one that the plan was made from. Not its inode, which some file systems number anew.
_COMPARED = ("path", "size", "mtime_ns", "ctime_ns", "version", "header_sha256")


@dataclass(frozen=True)
class Source:
    """A checkpoint or an adapter as it was when the plan was made.

    Attributes:
        path: as it was given, which is no part of what it is.
        place: the same, absolute; a URL is.
        files: of one or more shards.
        index_sha256: hex digest of what a folder's index says, of several indexes together; empty for single files.
        variant: of a folder's weights, where one was asked for.
    """

    path: AnyPath = field(compare=False)
    place: AnyPath
    files: tuple[Identity, ...]
    index_sha256: str = ""
    variant: str | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Source:
        """What a plan says of a checkpoint that is open."""
        indexes = [one.index.as_bytes() for one in checkpoint.components if one.index is not None]
        return cls(
            checkpoint.path,
            checkpoint.path.absolute(),
            tuple(file.identity for file in checkpoint.files),
            hashlib.sha256(b"".join(indexes)).hexdigest() if indexes else "",
            checkpoint.variant,
        )

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def header_sha256(self) -> str:
        """The header's hex digest; of several shards, the digest of their hex digests joined."""
        headers = [file.header_sha256 for file in self.files]
        return headers[0] if len(headers) == 1 else hashlib.sha256("".join(headers).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """In JSON's own types."""
        files = [file.as_json() for file in self.files]
        place = {"path": str(self.path), "place": str(self.place), "variant": self.variant}
        return {**place, "files": files, "index_sha256": self.index_sha256}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Source:
        """What ``as_json`` gave."""
        files = tuple(map(identity_from_json, entry["files"]))
        path, place = remembered_place(entry["path"]), remembered_place(entry["place"])
        return cls(path, place, files, str(entry["index_sha256"]), entry.get("variant"))

    def check(self, checkpoint: Checkpoint) -> None:
        """Make sure that what was opened is what the plan was made from.

        Raises:
            RefusedError: ``file-changed``, naming the file and both values.
        """
        now = Source.of(checkpoint)
        if len(now.files) != len(self.files):
            _refuse_changed(self.place, "files", len(self.files), len(now.files))
        for was, file in zip(self.files, now.files, strict=True):
            for name in _COMPARED:
                before, now_is = getattr(was, name, None), getattr(file, name, None)
                if before != now_is:
                    _refuse_changed(was.path, name, before, now_is)
        if now.index_sha256 != self.index_sha256:
            _refuse_changed(self.place, "index_sha256", self.index_sha256, now.index_sha256)


def _refuse_changed(path: AnyPath | str, what: str, was: object, now: object) -> None:
    raise RefusedError(
        f"{printable(path)}: changed since the plan was made: {what} was {printable(was)}, is {printable(now)}",
        code="file-changed",
    )


@dataclass(frozen=True)
class DeltaRef:
    """A delta by its place: the adapter, and the key of the first tensor that it reads; with what it costs.

    Attributes:
        adapter: where it comes from.
        key: names it within the adapter.
        macs: multiply-adds to fuse it.
        nbytes: of its tensors as stored.
    """

    adapter: Source
    key: str
    macs: int
    nbytes: int
