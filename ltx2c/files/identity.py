"""Which file was opened, and whether it is still what it was then.

Nothing is compared but what the system keeps of a file: no tensor byte is read twice. Size and modification time can be
put back by anyone who may write the file; the time of the last status change (ctime) is set by the system alone, on
every write, truncation, rename, link and change of mode. What that leaves: a program that holds a shared, writable
mapping of the file can go on changing pages that it has dirtied before, and the system notes no time until they are
written back. Inputs that are still being written that way must not be fused.

Of an object in a storage the storage's word for its content is compared: its ETag on S3, which is sent with every read
as a condition, or its generation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ltx2c.errors import RefusedError
from ltx2c.files.url import Found, Url

_COMPARED = {"size": "size", "mtime_ns": "modification time", "ctime_ns": "time of last status change"}


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was when it was opened. A plain value, which can go through JSON.

    Attributes:
        path: absolute, links in it not followed.
        size: bytes in all.
        mtime_ns, ctime_ns: when its content and its status last changed, in ns since 1970.
        header_sha256: hex digest of its header: the length and the JSON, padding included.
        device, inode: what the system calls it. Some network file systems number their files anew at any time, so these
            tell one file from another at one moment, and never that one has changed.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    header_sha256: str
    device: int
    inode: int

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for one file reached by two names, at one moment."""
        return self.device, self.inode

    @classmethod
    def of(cls, path: Path, status: os.stat_result, header_sha256: str) -> FileIdentity:
        """The identity of a file from what ``os.stat`` tells."""
        return cls(
            str(path.absolute()),
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            header_sha256,
            status.st_dev,
            status.st_ino,
        )

    def change_in(self, status: os.stat_result) -> str | None:
        """What a later status says otherwise, with both values; None where that is nothing.

        Device and inode are not compared.
        """
        for name, called in _COMPARED.items():
            was, now = getattr(self, name), getattr(status, f"st_{name}")
            if was != now:
                return f"{called} was {was}, is {now}"
        return None

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> FileIdentity:
        """The identity that ``as_json`` told.

        Raises:
            RefusedError: ``identity-json``: it is no such object.
        """
        return _from_json(cls, value)


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """An object of a storage as it was when it was opened. A plain value, which can go through JSON.

    Attributes:
        path: its URL.
        size: bytes in all.
        version: the storage's word for its content: its ETag, or its generation where the storage counts those.
        header_sha256: as of ``FileIdentity``.
    """

    path: str
    size: int
    version: str
    header_sha256: str

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for one object."""
        return (self.path,)

    @classmethod
    def of(cls, url: Url, found: Found, header_sha256: str) -> ObjectIdentity:
        """The identity of an object from what its storage tells."""
        return cls(url.text, found.size, found.version, header_sha256)

    def change_in(self, found: Found) -> str | None:
        """What the storage tells otherwise later, with both values; None where that is nothing."""
        for name in ("size", "version"):
            was, now = getattr(self, name), getattr(found, name)
            if was != now:
                return f"{name} was {was}, is {now}"
        return None

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> ObjectIdentity:
        """The identity that ``as_json`` told. Raises as ``FileIdentity.from_json`` does."""
        return _from_json(cls, value)


Identity = FileIdentity | ObjectIdentity
"""Of an input, wherever it lies."""


def identity_from_json(value: object) -> Identity:
    """The identity that ``as_json`` of either told. Raises as ``FileIdentity.from_json`` does."""
    kind = ObjectIdentity if isinstance(value, Mapping) and "version" in value else FileIdentity
    return kind.from_json(value)


IdentityT = TypeVar("IdentityT", FileIdentity, ObjectIdentity)


def _from_json(cls: type[IdentityT], value: object) -> IdentityT:
    if not isinstance(value, Mapping) or value.keys() != {field.name for field in fields(cls)}:
        names = ", ".join(field.name for field in fields(cls))
        raise RefusedError(f"a file identity is an object of {names}", code="identity-json")
    for field in fields(cls):
        kind = str if field.type == "str" else int
        if type(value[field.name]) is not kind:
            raise RefusedError(f"a file identity's {field.name} is no {kind.__name__}", code="identity-json")
    return cls(**value)
