"""The header of a safetensors file, read strictly: bytes in, names and places out, and a named refusal for every fault.

The format is a little-endian u64 header length, that many bytes of JSON, then the tensors' bytes. The JSON is one
object: an optional ``"__metadata__"`` of strings to strings, and per tensor its dtype, shape and ``data_offsets``.
Offsets count from the end of the header and must cover the data without overlap or hole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.files.scanner import MAX_U64, Scanner

METADATA = "__metadata__"
PREFIX_BYTES = 8
PAGE = 4096  # what direct input and output are aligned to, in the file and in memory
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

_ENTRY_FIELDS = ("dtype", "shape", "data_offsets")


class TensorInfo(NamedTuple):
    """What a header says of one tensor; ``begin`` and ``end`` count bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A parsed header: tensors in the order in which it lists them, and its metadata."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def header_bytes(prefix: bytes, file_size: int) -> int:
    """The header's length from the file's first 8 bytes.

    Raises:
        RefusedError: ``header-too-short`` (no 8 bytes), ``header-length`` (0 or 1, above the format's 100 MB, or beyond
            the end of the file).
    """
    if len(prefix) < PREFIX_BYTES:
        raise RefusedError(f"{len(prefix)} bytes are too short for a safetensors header", code="header-too-short")
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length < len("{}"):
        raise RefusedError(f"header length {length} is too small for any header", code="header-length")
    if length > MAX_HEADER_BYTES:
        raise RefusedError(
            f"header length {length} is above the format's limit {MAX_HEADER_BYTES}", code="header-length"
        )
    if length > file_size - PREFIX_BYTES:
        raise RefusedError(
            f"header length {length} runs past the end of the file ({file_size} bytes)", code="header-length"
        )
    return length


def parse_header(text: bytes | bytearray, data_bytes: int) -> Header:
    """Read and check a header.

    Args:
        text: the JSON, without the length before it.
        data_bytes: how many bytes follow it in the file.

    Raises:
        RefusedError: ``header-json``, ``header-utf8``, ``duplicate-key``, ``metadata-type``, ``too-many-keys``,
            ``entry``, ``dtype``, ``shape``, ``offsets``, ``size-mismatch``, ``overlap``, ``hole``, ``truncated``,
            ``trailing-bytes``.
    """
    scanner = Scanner(text, "header")
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for key in scanner.members("header-json", "the header"):
        if key == METADATA:
            metadata = _metadata(scanner)
        else:
            tensors[key] = _tensor(scanner, key)
    scanner.end()
    _check_coverage(tensors, data_bytes)
    return Header(tensors, metadata)


def _metadata(scanner: Scanner) -> dict[str, str]:
    return {
        key: scanner.string("metadata-type", f"the value of metadata '{printable(key)}'")
        for key in scanner.members("metadata-type", METADATA)
    }


def _tensor(scanner: Scanner, key: str) -> TensorInfo:
    where = f"tensor '{printable(key)}'"
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offsets: tuple[int, ...] | None = None
    for field in scanner.members("entry", where):
        if field == "dtype":
            dtype = scanner.string("dtype", f"dtype of {where}")
        elif field == "shape":
            shape = scanner.whole_numbers("shape", f"shape of {where}")
        elif field == "data_offsets":
            offsets = scanner.whole_numbers("offsets", f"data_offsets of {where}")
        else:
            raise RefusedError(f"{where} has a field '{printable(field)}', which the format lacks", code="entry")
    if dtype is None or shape is None or offsets is None:
        missing = [name for name, value in zip(_ENTRY_FIELDS, (dtype, shape, offsets), strict=True) if value is None]
        raise RefusedError(f"{where} lacks {' and '.join(missing)}", code="entry")
    return _checked(where, dtype, shape, offsets)


def _checked(where: str, dtype: str, shape: tuple[int, ...], offsets: tuple[int, ...]) -> TensorInfo:
    if dtype not in DTYPES:
        raise RefusedError(f"{where} has dtype '{printable(dtype)}', which the format does not list", code="dtype")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise RefusedError(f"data_offsets of {where} are {list(offsets)}, not [begin, end]", code="offsets")
    bits = DTYPES[dtype].bits
    for extent in shape:
        bits *= extent
        if bits > 8 * MAX_U64:
            raise RefusedError(f"shape of {where} overflows: {list(shape)} of {dtype}", code="shape")
    if bits % 8:
        raise RefusedError(f"{where} does not fill whole bytes: {list(shape)} of {dtype}", code="shape")
    begin, end = offsets
    if bits // 8 != end - begin:
        stated = f"{list(shape)} of {dtype} takes {bits // 8} bytes, its data_offsets {end - begin}"
        raise RefusedError(f"{where}: {stated}", code="size-mismatch")
    return TensorInfo(dtype, shape, begin, end)


def _check_coverage(tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    reached, before = 0, "the header"
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin < reached:
            raise RefusedError(
                f"tensors {before} and '{printable(key)}' overlap at data byte {info.begin}", code="overlap"
            )
        if info.begin > reached:
            span = f"data bytes {reached} to {info.begin}"
            raise RefusedError(f"{span}, before tensor '{printable(key)}', belong to no tensor", code="hole")
        reached, before = info.end, f"'{printable(key)}'"
    if reached > data_bytes:
        raise RefusedError(f"truncated: tensors end at data byte {reached}, the file at {data_bytes}", code="truncated")
    if reached < data_bytes:
        extra = f"{data_bytes - reached} bytes after the last tensor belong to no tensor"
        raise RefusedError(extra, code="trailing-bytes")
