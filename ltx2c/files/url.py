"""URLs of objects in a storage, which can be asked what ``pathlib`` can be asked; fsspec knows the storages.

``hf://`` is no such URL here: it names something in the hub's cache on this disk.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ltx2c.errors import RefusedError, printable
from ltx2c.files.hub import is_hub_name

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)

# What pip installs for a storage; for others fsspec says what it lacks.
_EXTRAS = {"s3": "ltx2c[s3]", "s3a": "ltx2c[s3]", "gs": "ltx2c[gs]", "gcs": "ltx2c[gs]"}

# To S3: what is under way at once, to read and to write, and a few for questions. By itself botocore opens 10.
CONNECTIONS = 32

# What a storage calls the version of an object's content, the best first. Generations never return; an ETag does with
# the same content.
_VERSIONS = ("generation", "ETag", "etag")


class Place(NamedTuple):
    """A storage, as fsspec's filesystem, and where in it an object lies."""

    storage: Any
    path: str


class Found(NamedTuple):
    """An object as it is: bytes in all, and the storage's word for its content (an ETag, a generation)."""

    size: int
    version: str


@functools.total_ordering
class Url:
    """Where an object lies, or objects below it. Questions go to the storage anew each time; nothing is remembered.

    Attributes:
        text: as it was given.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and self.text == other.text

    def __lt__(self, other: Url) -> bool:
        return self.text < other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Url({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        return self.text

    @property
    def scheme(self) -> str:
        """``s3``, ``gs``, ``memory``, ..."""
        return self.text.partition("://")[0]

    @property
    def name(self) -> str:
        """The last part of it."""
        return self.text.rstrip("/").partition("://")[2].rpartition("/")[2].partition("?")[0]

    @property
    def parent(self) -> Url:
        """What it lies in; of a bucket the bucket."""
        scheme, _, rest = self.text.rstrip("/").partition("://")
        above = rest.rpartition("/")[0]
        return Url(f"{scheme}://{above or rest}")

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text.rstrip('/')}/{name}") if name else self

    def absolute(self) -> Url:
        """Itself."""
        return self

    def located(self) -> Place:
        """The storage that it lies in.

        Raises:
            RefusedError: ``no-storage``: what pip has to install for it; ``bad-url``: there is no such storage.
            OSError: as the storage says.
        """
        package = _EXTRAS.get(self.scheme, "fsspec")
        missing = f"{printable(self)}: {self.scheme}:// needs a package: pip install '{package}'"
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise RefusedError(missing, code="no-storage") from None
        options = {"config_kwargs": {"max_pool_connections": CONNECTIONS}} if self.scheme in ("s3", "s3a") else {}
        with about(self):
            try:
                return Place(*url_to_fs(self.text, use_listings_cache=False, **options))
            except ImportError as error:
                said = "" if package != "fsspec" else f" ({printable(error)})"
                raise RefusedError(f"{missing}{said}", code="no-storage") from None
            except ValueError as error:
                raise RefusedError(f"{printable(self)}: {printable(error)}", code="bad-url") from None

    def info(self) -> Mapping[str, Any]:
        """What the storage says of it. Raises ``OSError``, FileNotFoundError where nothing is there."""
        storage, path = self.located()
        with about(self):
            told: Mapping[str, Any] = storage.info(path)
            return told

    def found(self) -> Found:
        """The object as it is now.

        Raises:
            OSError: as the storage says.
            RefusedError: ``not-a-file``: it is no object.
        """
        storage, path = self.located()
        with about(self):
            told = storage.info(path)
            if told["type"] != "file" or told["size"] is None:
                raise RefusedError(f"{printable(self)}: no object of a known size", code="not-a-file")
            versions = (str(told[name]) for name in _VERSIONS if told.get(name))
            return Found(int(told["size"]), next(versions, None) or str(storage.ukey(path)))

    def is_dir(self) -> bool:
        """Whether objects lie below it. Raises ``OSError``."""
        return self._type() == "directory"

    def is_file(self) -> bool:
        """Whether it is an object that may be read: of one that is missing S3 says no more to who may not list."""
        try:
            return self._type() == "file"
        except PermissionError:
            return False

    def _type(self) -> str | None:
        try:
            return str(self.info()["type"])
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[Url]:
        """What lies directly below it. Raises ``OSError``."""
        storage, path = self.located()
        with about(self):
            names = [str(one).rstrip("/").rpartition("/")[2] for one in storage.ls(path, detail=False)]
        yield from (self / name for name in names)

    def open(self, mode: str = "rb") -> io.BytesIO:
        """The whole of a small object. Raises ``OSError``."""
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())

    def read_bytes(self) -> bytes:
        """The whole of a small object. Raises ``OSError``."""
        storage, path = self.located()
        with about(self):
            return bytes(storage.cat_file(path))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The same as text."""
        return self.read_bytes().decode(encoding)


AnyPath = Path | Url
"""Where something to read lies."""


def is_url(given: str | os.PathLike[str]) -> bool:
    """Whether ``given`` is an object's URL: a ``Path`` is none."""
    text = os.fspath(given)
    return not is_hub_name(text) and _URL.match(text) is not None


def as_url(given: str | os.PathLike[str]) -> Url:
    """The URL that ``given`` is.

    Raises:
        RefusedError: ``bad-url``: it names no object.
    """
    text = os.fspath(given)
    match = _URL.fullmatch(text)
    if match is None or not match["rest"].strip("/") or not text.isprintable():
        raise RefusedError(f"{printable(text)}: a URL is STORAGE://BUCKET/NAME", code="bad-url")
    return Url(text)


def on_this_disk(path: AnyPath, what: str) -> Path:
    """``path``, for ``what`` works with files of this machine alone.

    Raises:
        RefusedError: ``not-by-url``.
    """
    if isinstance(path, Url):
        raise RefusedError(f"{printable(path)}: {what} takes files on this disk, no URL", code="not-by-url")
    return path


@contextlib.contextmanager
def about(url: Url) -> Iterator[None]:
    """Let whatever a storage's library raises in the block be an ``OSError`` that names the object."""
    try:
        yield
    except RefusedError:
        raise
    except OSError as error:
        number = error.errno or _errno(error)
        said = error.strerror or (os.strerror(number) if number == errno.ENOENT else str(error))
        raise OSError(number, said or type(error).__name__, url.text) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url.text) from error


def _errno(error: OSError) -> int:
    known = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, FileExistsError: errno.EEXIST}
    return known.get(type(error), errno.EIO)
