"""The index of a folder of shards (``*.safetensors.index.json``): which shard holds which key."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltx2c.errors import Named, RefusedError, printable
from ltx2c.files.scanner import Scanner, plain_member
from ltx2c.files.url import AnyPath, Url

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000

# diffusers writes the index of a variant as NAME.safetensors.index.VARIANT.json.
_INDEX_NAME = re.compile(r"(?P<stem>.*)(?P<suffix>\.safetensors\.index(?:\.[^./]+)?\.json)", re.DOTALL)
_SHARD_NAME = re.compile(r"[^/\\\0]+\.safetensors")
_APPLE_DOUBLE = (
    "._"  # macOS puts a file's attributes beside it, under its name behind this, where it has no other place
)
_PLAIN_MEMBER = plain_member(rb'"([^"\\\x00-\x1f]*)"')


@dataclass(frozen=True)
class Index:
    """A parsed index.

    Attributes:
        metadata: as it says; empty where it says none.
        weight_map: shard by key, in the order in which it lists them: a file name, or a path within the folder.
        others: whatever else it says, such as a ``dtype`` beside the metadata.
    """

    metadata: dict[str, Any]
    weight_map: dict[str, str]
    others: dict[str, Any] = field(default_factory=dict)

    def as_bytes(self) -> bytes:
        """The file's content, laid out as the usual writers do."""
        whole = {**self.others, "metadata": self.metadata, "weight_map": self.weight_map}
        return json.dumps(whole, indent=2).encode() + b"\n"


def read_index(path: AnyPath) -> Index:
    """Read and check an index.

    Raises:
        OSError: as the system says.
        RefusedError: ``not-a-file``, ``index-length``, ``index-json``, ``index-utf8``, ``duplicate-key``,
            ``too-many-keys``, ``shard-name``.
    """
    text = _object_text(path) if isinstance(path, Url) else _file_text(path)
    try:
        return parse_index(text)
    except RefusedError as error:
        raise RefusedError(f"{printable(path)}: {error}", code=error.code) from None


def _object_text(url: Url) -> bytes:
    _check_size(url, url.found().size)
    return url.read_bytes()


def _file_text(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, so that a pipe cannot make us wait)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(f"{printable(path)}: not a regular file", code="not-a-file")
        _check_size(path, status.st_size)
        return file.read()


def _check_size(path: AnyPath, size: int) -> None:
    if size > MAX_INDEX_BYTES:
        raise RefusedError(f"{printable(path)}: {size} bytes are too many for an index", code="index-length")


def parse_index(text: bytes) -> Index:
    """Read and check an index's content. Raises as ``read_index``."""
    scanner = Scanner(text, "index")
    metadata: dict[str, Any] = {}
    others: dict[str, Any] = {}
    weight_map: dict[str, str] = {}
    for name in scanner.members("index-json", "the index"):
        if name == "weight_map":
            weight_map = _WeightMap(scanner).read()
        elif name != "metadata":
            others[name] = scanner.value("index-json", Named("field '{}'", name))
        elif not scanner.null():
            for key in scanner.members("index-json", "metadata"):
                metadata[key] = scanner.value("index-json", Named("metadata '{}'", key))
    scanner.end()
    if not weight_map:
        raise RefusedError("it lists no tensor: no weight_map", code="index-json")
    return Index(metadata, weight_map, others)


class _WeightMap:
    """Reads which shard holds which key. Shards are few: a name that was checked once needs no second look."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._shards: dict[str, str] = {}
        self._names: dict[bytes, str] = {}  # the same string for each of a shard's keys

    def read(self) -> dict[str, str]:
        seen: set[str] = set()
        for key in self._scanner.members("index-json", "weight_map", seen):
            name = self._scanner.string("index-json", Named("the shard of '{}'", key))
            _check_shard(name, key)
            self._shards[key] = self._names.setdefault(name.encode(), name)
            self._scanner.take_run(_PLAIN_MEMBER, seen, self._take)
        return self._shards

    def _take(self, key: str, match: re.Match[bytes]) -> bool:
        name = self._names.get(match[2])
        if name is None:
            return False
        self._shards[key] = name
        return True


def is_shard_name(name: str) -> bool:
    """Whether ``name`` is a plain ``.safetensors`` file name that an index can hold."""
    return bool(_SHARD_NAME.fullmatch(name)) and not any("\ud800" <= character <= "\udfff" for character in name)


def _check_shard(path: str, key: str) -> None:
    *folders, name = path.split("/")
    if not is_shard_name(name) or any(
        folder in ("", ".", "..") or "\\" in folder or "\0" in folder for folder in folders
    ):
        raise RefusedError(
            f"key '{printable(key)}' lies in '{printable(path)}', which is no .safetensors file in the index's folder",
            code="shard-name",
        )


def is_index_name(name: str) -> bool:
    """Whether a file called ``name`` is an index."""
    return bool(_INDEX_NAME.fullmatch(name))


def split_index_name(name: str) -> tuple[str, str]:
    """What an index's shards are called by, and the rest of its name: ``("model", ".safetensors.index.json")``."""
    match = _INDEX_NAME.fullmatch(name)
    assert match, name
    return match["stem"], match["suffix"]


def is_side_file(name: str) -> bool:
    """Whether ``name`` is that of the attributes that macOS keeps beside a file."""
    return name.startswith(_APPLE_DOUBLE)


def find_index(folder: Path) -> Path | None:
    """The one index of a folder; None where there is none. A variant's counts where there is no other, as in diffusers.

    Raises:
        RefusedError: ``several-indexes``.
    """
    found = sorted(path for path in folder.iterdir() if is_index_name(path.name) and not is_side_file(path.name))
    found = [path for path in found if path.name.endswith(INDEX_SUFFIX)] or found
    if len(found) > 1:
        names = " and ".join(printable(path.name) for path in found[:4])
        raise RefusedError(
            f"{printable(folder)}: holds several indexes, {names}: give the path of one", code="several-indexes"
        )
    return found[0] if found else None


def shards_of(weight_map: Mapping[str, str]) -> tuple[str, ...]:
    """The shard names of an index, sorted."""
    return tuple(sorted(set(weight_map.values())))
