"""The header of a safetensors file, read strictly: bytes in, names and places out, and a named refusal for every fault.

The format is a little-endian u64 header length, that many bytes of JSON, then the tensors' bytes. The JSON is one
object: an optional ``"__metadata__"`` of strings to strings, and per tensor its dtype, shape and ``data_offsets``.
Offsets count from the end of the header and must cover the data without overlap or hole.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ltx2c.dtypes import DTYPES
from ltx2c.errors import Named, RefusedError, printable
from ltx2c.files.scanner import MAX_I64, Scanner, plain_member

METADATA = "__metadata__"
PREFIX_BYTES = 8
PAGE = 4096  # what direct input and output are aligned to, in the file and in memory
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

_ENTRY_FIELDS = ("dtype", "shape", "data_offsets")

# A tensor's entry as writers lay it out: its dtype and shape, then where it begins and ends. N: a number below 2^64.
_PLAIN_ENTRY = plain_member(
    rb"""
    \{ ~ ( "dtype" ~ : ~ "[A-Z0-9_]{1,16}" ~ , ~ "shape" ~ : ~ \[ [0-9, \t\n\r]{0,200} \] )
    ~ , ~ "data_offsets" ~ : ~ \[ ~ (N) ~ , ~ (N) ~ \] ~ \}
    """.replace(b"N", b"0|[1-9][0-9]{0,18}")
)
_MOST_KINDS = 10_000  # dtypes with shapes that are remembered


# What a header says of one tensor: dtype, shape, begin and end, which count bytes from the end of the header. A bare
# tuple, because the garbage collector does not look at those again, which counts with 250,000 of them.
TensorInfo = tuple[str, tuple[int, ...], int, int]


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
    entries = _Entries(scanner)
    metadata: dict[str, str] = {}
    for key in scanner.members("header-json", "the header", entries.seen):
        if key == METADATA:
            metadata = _metadata(scanner)
        else:
            entries.read(key)
    scanner.end()
    _check_coverage(entries.tensors, data_bytes)
    return Header(entries.tensors, metadata)


def _metadata(scanner: Scanner) -> dict[str, str]:
    if scanner.null():  # as MLX writes for none
        return {}
    return {
        key: scanner.string("metadata-type", Named("the value of metadata '{}'", key))
        for key in scanner.members("metadata-type", METADATA)
    }


_Kind = tuple[str, tuple[int, ...], int]  # dtype, shape, bytes


class _Entries:
    """The tensors' entries. A model has few kinds of tensor: a dtype and shape understood once need no second look.

    Attributes:
        tensors: those read.
        seen: the header's keys.
    """

    def __init__(self, scanner: Scanner) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.seen: set[str] = set()
        self._scanner = scanner
        self._kinds: dict[bytes, _Kind] = {}  # by dtype and shape as they are written

    def read(self, key: str) -> None:
        """Read the entry of ``key``, and those that follow for as long as they are sound and laid out as usual."""
        self.tensors[key] = _tensor(self._scanner, key)
        self._scanner.take_run(_PLAIN_ENTRY, self.seen, self._take)

    def _take(self, key: str, match: re.Match[bytes]) -> bool:
        _, kind, begin, end = match.groups()
        known = self._kinds.get(kind) or self._learn(key, kind, begin, end)
        if known is None or key == METADATA:
            return False
        dtype, shape, nbytes = known
        start, stop = int(begin), int(end)
        if stop - start != nbytes:
            return False
        self.tensors[key] = dtype, shape, start, stop
        return True

    def _learn(self, key: str, kind: bytes, begin: bytes, end: bytes) -> _Kind | None:
        try:
            entry = Scanner(b'{%b,"data_offsets":[%b,%b]}' % (kind, begin, end), "header")
            dtype, shape, start, stop = _tensor(entry, key)
        except RefusedError:  # to be raised again where it can say the place in the header
            return None
        if len(self._kinds) < _MOST_KINDS:
            self._kinds[kind] = dtype, shape, stop - start
        return dtype, shape, stop - start


def _tensor(scanner: Scanner, key: str) -> TensorInfo:
    where = Named("tensor '{}'", key)
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offsets: tuple[int, ...] | None = None
    for field in scanner.members("entry", where):
        if field == "dtype":
            dtype = scanner.string("unknown-dtype", Named("dtype of tensor '{}'", key))
        elif field == "shape":
            shape = scanner.whole_numbers("shape", Named("shape of tensor '{}'", key))
        elif field == "data_offsets":
            offsets = scanner.whole_numbers("offsets", Named("data_offsets of tensor '{}'", key))
        else:
            raise RefusedError(f"{where} has a field '{printable(field)}', which the format lacks", code="entry")
    if dtype is None or shape is None or offsets is None:
        missing = [name for name, value in zip(_ENTRY_FIELDS, (dtype, shape, offsets), strict=True) if value is None]
        raise RefusedError(f"{where} lacks {' and '.join(missing)}", code="entry")
    return _checked(where, dtype, shape, offsets)


def _checked(where: Named, dtype: str, shape: tuple[int, ...], offsets: tuple[int, ...]) -> TensorInfo:
    if dtype not in DTYPES:
        raise RefusedError(
            f"{where} has dtype '{printable(dtype)}', which the format does not list", code="unknown-dtype"
        )
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise RefusedError(f"data_offsets of {where} are {list(offsets)}, not [begin, end]", code="offsets")
    bits = DTYPES[dtype].bits
    # Not even an empty array can have extents whose product, without the zeros, overflows.
    if bits * math.prod(filter(None, shape)) > 8 * MAX_I64:
        raise RefusedError(f"shape of {where} overflows: {list(shape)} of {dtype}", code="shape")
    bits *= math.prod(shape)
    if bits % 8:
        raise RefusedError(f"{where} does not fill whole bytes: {list(shape)} of {dtype}", code="shape")
    begin, end = offsets
    if bits // 8 != end - begin:
        stated = f"{list(shape)} of {dtype} takes {bits // 8} bytes, its data_offsets {end - begin}"
        raise RefusedError(f"{where}: {stated}", code="size-mismatch")
    return dtype, shape, begin, end


def _check_coverage(tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    reached, before = 0, ""
    for key, (_, _, begin, end) in sorted(tensors.items(), key=_place):
        if begin < reached:
            what = f"tensors '{printable(before)}' and '{printable(key)}'"
            raise RefusedError(f"{what} overlap at data byte {begin}", code="overlapping-tensors")
        if begin > reached:
            span = f"data bytes {reached} to {begin}"
            raise RefusedError(f"{span}, before tensor '{printable(key)}', belong to no tensor", code="hole")
        reached, before = end, key
    if reached > data_bytes:
        raise RefusedError(f"truncated: tensors end at data byte {reached}, the file at {data_bytes}", code="truncated")
    if reached < data_bytes:
        extra = f"{data_bytes - reached} bytes after the last tensor belong to no tensor"
        raise RefusedError(extra, code="trailing-bytes")


def _place(item: tuple[str, TensorInfo]) -> tuple[int, int]:
    return item[1][2:]
