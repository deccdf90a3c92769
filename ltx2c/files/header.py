"""The header of a safetensors file, read strictly: bytes in, names and places out, and a named refusal for every fault.

The format is a little-endian u64 header length, that many bytes of JSON, then the tensors' bytes. The JSON is one
object: an optional ``"__metadata__"`` of strings to strings, and per tensor its dtype, shape and ``data_offsets``.
Offsets count from the end of the header and must cover the data without overlap or hole.

The grammar is small and fixed, so it is read directly rather than through a general JSON parser. That is what lets
duplicate keys (which the format forbids and general parsers merge) be seen however they are spelled, keeps nesting from
recursing, and bounds memory: a general parser turns a 100 MB header of brackets into gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable

METADATA = "__metadata__"
PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# Limits of ours, far above any real file, so that a hostile header cannot cost more memory than it takes on disk.
MAX_KEYS = 1 << 17
MAX_DIMENSIONS = 64

_MAX_U64 = (1 << 64) - 1
_ENTRY_FIELDS = ("dtype", "shape", "data_offsets")

_SPACES = (b" ", b"\t", b"\n", b"\r")
_SPACE = re.compile(rb"[ \t\n\r]+")
# Bounded, because the regex engine keeps a stack entry per repetition; `string` loops over it.
_STRING_PART = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrtu]){0,10000}')
_WHOLE_NUMBER = re.compile(rb"(?:0|[1-9][0-9]{0,19})(?![0-9.eE])")


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
    scanner = _Scanner(text)
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


def _metadata(scanner: _Scanner) -> dict[str, str]:
    return {
        key: scanner.string("metadata-type", f"the value of metadata {printable(key)!r}")
        for key in scanner.members("metadata-type", METADATA)
    }


def _tensor(scanner: _Scanner, key: str) -> TensorInfo:
    where = f"tensor {printable(key)!r}"
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
            raise RefusedError(f"{where} has a field {printable(field)!r}, which the format lacks", code="entry")
    if dtype is None or shape is None or offsets is None:
        missing = [name for name, value in zip(_ENTRY_FIELDS, (dtype, shape, offsets), strict=True) if value is None]
        raise RefusedError(f"{where} lacks {' and '.join(missing)}", code="entry")
    return _checked(where, dtype, shape, offsets)


def _checked(where: str, dtype: str, shape: tuple[int, ...], offsets: tuple[int, ...]) -> TensorInfo:
    if dtype not in DTYPES:
        raise RefusedError(f"{where} has dtype {printable(dtype)!r}, which the format does not list", code="dtype")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise RefusedError(f"data_offsets of {where} are {list(offsets)}, not [begin, end]", code="offsets")
    bits = DTYPES[dtype].bits
    for extent in shape:
        bits *= extent
        if bits > 8 * _MAX_U64:
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
                f"tensors {before} and {printable(key)!r} overlap at data byte {info.begin}", code="overlap"
            )
        if info.begin > reached:
            span = f"data bytes {reached} to {info.begin}"
            raise RefusedError(f"{span}, before tensor {printable(key)!r}, belong to no tensor", code="hole")
        reached, before = info.end, repr(printable(key))
    if reached > data_bytes:
        raise RefusedError(f"truncated: tensors end at data byte {reached}, the file at {data_bytes}", code="truncated")
    if reached < data_bytes:
        extra = f"{data_bytes - reached} bytes after the last tensor belong to no tensor"
        raise RefusedError(extra, code="trailing-bytes")


class _Scanner:
    """The tokens that a header may hold. Every ``code`` and ``what`` says which refusal a wrong token becomes."""

    def __init__(self, text: bytes | bytearray) -> None:
        self._text = text
        self._at = 0

    def members(self, code: str, what: str) -> Iterator[str]:
        """The keys of an object in turn; the caller reads each value before it asks for the next key."""
        if not self._accept(b"{"):
            self._fail(code, f"{what} is not an object")
        seen: set[str] = set()
        if self._accept(b"}"):
            return
        while True:
            key = self.string("header-json", f"a key of {what}")
            if key in seen:
                raise RefusedError(f"{what} holds the key {printable(key)!r} twice", code="duplicate-key")
            if len(seen) == MAX_KEYS:
                raise RefusedError(f"{what} holds more than {MAX_KEYS} keys", code="too-many-keys")
            seen.add(key)
            self._expect(b":")
            yield key
            if self._accept(b"}"):
                return
            self._expect(b",")

    def string(self, code: str, what: str) -> str:
        if not self._accept(b'"'):
            self._fail(code, f"{what} is not a string")
        begin = self._at
        while (part := _STRING_PART.match(self._text, self._at)) and part.end() > self._at:
            self._at = part.end()
            if self._text[self._at : self._at + 1] == b'"':
                break
        raw = memoryview(self._text)[begin : self._at]
        if self._text[self._at : self._at + 1] != b'"':
            self._fail("header-json", f"{what} is a broken string")
        self._at += 1
        try:
            text = str(raw, "utf-8")
            if "\\" in text:
                text = json.loads(f'"{text}"')
                text.encode("utf-8")  # escapes can spell half a surrogate pair, which is no character
        except UnicodeError:
            self._fail("header-utf8", f"{what} is not UTF-8")
        except json.JSONDecodeError:
            self._fail("header-json", f"{what} is a broken string")
        return text

    def whole_numbers(self, code: str, what: str) -> tuple[int, ...]:
        if not self._accept(b"["):
            self._fail(code, f"{what} is not a list of whole numbers")
        numbers: list[int] = []
        if self._accept(b"]"):
            return ()
        while True:
            self._skip_space()
            match = _WHOLE_NUMBER.match(self._text, self._at)
            if match is None or int(match[0]) > _MAX_U64:
                self._fail(code, f"{what} is not a list of whole numbers below 2^64")
            numbers.append(int(match[0]))
            self._at = match.end()
            if self._accept(b"]"):
                return tuple(numbers)
            if len(numbers) == MAX_DIMENSIONS:
                self._fail(code, f"{what} has more than {MAX_DIMENSIONS} numbers")
            self._expect(b",")

    def end(self) -> None:
        self._skip_space()
        if self._at != len(self._text):
            self._fail("header-json", "more text after the header's object")

    def _skip_space(self) -> None:
        if self._text[self._at : self._at + 1] in _SPACES and (match := _SPACE.match(self._text, self._at)):
            self._at = match.end()

    def _accept(self, token: bytes) -> bool:
        self._skip_space()
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _expect(self, token: bytes) -> None:
        if not self._accept(token):
            self._fail("header-json", f"expected {token.decode()!r}")

    def _fail(self, code: str, message: str) -> NoReturn:
        here = self._text[self._at : self._at + 20].decode("utf-8", "replace")
        raise RefusedError(f"{message}, at byte {self._at} of the header: {printable(here)!r}", code=code)
