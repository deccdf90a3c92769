"""The index of a folder of shards (``*.safetensors.index.json``): which shard holds which key."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltx2c.errors import RefusedError, printable
from ltx2c.files.scanner import Scanner

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000

_SHARD_NAME = re.compile(r"[^/\\\0]+\.safetensors")


@dataclass(frozen=True)
class Index:
    """A parsed index: its metadata, and shard file names by key, in the order in which it lists them."""

    metadata: dict[str, Any]
    weight_map: dict[str, str]

    def as_bytes(self) -> bytes:
        """The file's content, laid out as the usual writers do."""
        return json.dumps({"metadata": self.metadata, "weight_map": self.weight_map}, indent=2).encode() + b"\n"


def read_index(path: Path) -> Index:
    """Read and check an index.

    Raises:
        OSError: as the system says.
        RefusedError: ``not-a-file``, ``index-length``, ``index-json``, ``index-utf8``, ``duplicate-key``,
            ``too-many-keys``, ``shard-name``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, so that a pipe cannot make us wait)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(f"{printable(path)}: not a regular file", code="not-a-file")
        if status.st_size > MAX_INDEX_BYTES:
            raise RefusedError(
                f"{printable(path)}: {status.st_size} bytes are too many for an index", code="index-length"
            )
        text = file.read()
    try:
        return _parse(text)
    except RefusedError as error:
        raise RefusedError(f"{printable(path)}: {error}", code=error.code) from None


def _parse(text: bytes) -> Index:
    scanner = Scanner(text, "index")
    metadata: dict[str, Any] = {}
    weight_map: dict[str, str] | None = None
    for field in scanner.members("index-json", "the index"):
        if field == "weight_map":
            weight_map = _weight_map(scanner)
        elif field == "metadata":
            for key in scanner.members("index-json", "metadata"):
                metadata[key] = scanner.plain_value("index-json", f"metadata '{printable(key)}'")
        else:
            raise RefusedError(f"it has a field '{printable(field)}', which no index has", code="index-json")
    scanner.end()
    if not weight_map:
        raise RefusedError("it lists no tensor: no weight_map", code="index-json")
    return Index(metadata, weight_map)


def _weight_map(scanner: Scanner) -> dict[str, str]:
    weight_map = {}
    names: dict[str, str] = {}  # one string per shard, not one per key
    for key in scanner.members("index-json", "weight_map"):
        name = scanner.string("index-json", f"the shard of '{printable(key)}'")
        if name not in names:
            _check_shard_name(name, key)
        weight_map[key] = names.setdefault(name, name)
    return weight_map


def is_shard_name(name: str) -> bool:
    """Whether an index may give ``name`` to a shard: a plain ``.safetensors`` file name that JSON can hold."""
    return bool(_SHARD_NAME.fullmatch(name)) and not any("\ud800" <= character <= "\udfff" for character in name)


def _check_shard_name(name: str, key: str) -> None:
    if not is_shard_name(name):
        raise RefusedError(
            f"key '{printable(key)}' lies in '{printable(name)}', which is no plain .safetensors file name",
            code="shard-name",
        )


def find_index(folder: Path) -> Path | None:
    """The one index of a folder; None where there is none.

    Raises:
        RefusedError: ``several-indexes``.
    """
    found = sorted(path for path in folder.iterdir() if path.name.endswith(INDEX_SUFFIX))
    if len(found) > 1:
        names = " and ".join(printable(path.name) for path in found)
        raise RefusedError(
            f"{printable(folder)}: holds several indexes, {names}: give the path of one", code="several-indexes"
        )
    return found[0] if found else None


def shards_of(weight_map: Mapping[str, str]) -> tuple[str, ...]:
    """The shard names of an index, sorted."""
    return tuple(sorted(set(weight_map.values())))
