"""Where each tensor of an output file will lie. Pure: nothing is read or written here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError
from ltx2c.files.header import MAX_HEADER_BYTES, METADATA, PAGE, PREFIX_BYTES
from ltx2c.files.siblings import Sibling
from ltx2c.files.tensorfile import StoredTensor


class OutputTensor(NamedTuple):
    """A tensor of an output file, which need not have the dtype and shape of the one it is made from.

    Attributes:
        key, dtype, shape: as its header will say.
        source: the tensor that it is made from, or a copy of.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor

    @classmethod
    def copy_of(cls, source: StoredTensor) -> OutputTensor:
        """A tensor that comes out as it went in, or fused in place."""
        return cls(source.key, source.dtype, source.shape, source)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return math.prod(self.shape) * DTYPES[self.dtype].bits // 8


class Placed(NamedTuple):
    """An output tensor, and the byte offset at which it lies in its file."""

    tensor: OutputTensor
    begin: int


@dataclass(frozen=True)
class FileLayout:
    """One output file, planned to the byte.

    Attributes:
        name: of the file, within the destination's folder.
        header: everything before the tensors: length, JSON, padding.
        tensors: in the order of their bytes, without gaps.
        size: of the whole file in bytes.
    """

    name: str
    header: bytes = field(repr=False)
    tensors: tuple[Placed, ...] = field(repr=False)
    size: int


@dataclass(frozen=True)
class OutputLayout:
    """A whole result: one file, or a folder: shards with their index, and what stands beside a model's weights.

    Attributes:
        files: in the order in which they are written.
        is_folder: whether the result is a folder; names lie within it, ``vae/config.json``.
        texts: name -> content of small files that are made: indexes, a model card.
        siblings: files that are copied.
    """

    files: tuple[FileLayout, ...]
    is_folder: bool = False
    texts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    siblings: tuple[Sibling, ...] = field(default=(), repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all files of a folder."""
        return (*(file.name for file in self.files), *self.texts, *(sibling.name for sibling in self.siblings))

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        made = sum(file.size for file in self.files) + sum(map(len, self.texts.values()))
        return made + sum(sibling.size for sibling in self.siblings)


def plan_file(name: str, tensors: Iterable[OutputTensor], metadata: Mapping[str, str]) -> FileLayout:
    """Lay out a file that holds ``tensors``, its header listing them in the order given.

    The bytes keep the order that their sources have, so that a whole file is read and written front to back. The
    header is padded with spaces (which the format allows) until offsets agree with those in the source modulo the
    page size: then the same memory can be the target of a direct read and the source of a direct write.

    Raises:
        RefusedError: ``header-length``, where the header would pass the format's limit.
    """
    listed = list(tensors)
    entries: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    entries.update((tensor.key, None) for tensor in listed)
    starts: list[tuple[OutputTensor, int]] = []
    at = 0
    for tensor in sorted(listed, key=_source_order):
        starts.append((tensor, at))
        entries[tensor.key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    like = starts[0][0].source.begin if starts else 0
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header = _padded(name, text, like)
    placed = tuple(Placed(tensor, len(header) + start) for tensor, start in starts)
    return FileLayout(name, header, placed, len(header) + at)


def _source_order(tensor: OutputTensor) -> tuple[str, int, int]:
    return str(tensor.source.file.path), tensor.source.begin, tensor.source.end


def _padded(name: str, text: bytes, like: int) -> bytes:
    length = len(text) + (like - PREFIX_BYTES - len(text)) % PAGE
    if length > MAX_HEADER_BYTES:
        length = len(text) + -len(text) % 8
    if length > MAX_HEADER_BYTES:
        raise RefusedError(
            f"{name}: its header would take {length} bytes, above the format's limit {MAX_HEADER_BYTES}",
            code="result-header-length",
        )
    return length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)
