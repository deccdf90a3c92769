"""The JSON of headers and indexes, token by token.

Their grammars are small and fixed, so they are read directly rather than through a general JSON parser. That is what
lets duplicate keys (which the format forbids and general parsers merge) be seen however they are spelled, keeps nesting
from recursing, and bounds memory: a general parser turns a 100 MB header of brackets into gigabytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from ltx2c.errors import RefusedError, printable

# Limits of ours, far above any real file, so that a hostile one cannot cost much more memory than it takes on disk.
MAX_KEYS = 1 << 17
MAX_DIMENSIONS = 64
MAX_U64 = (1 << 64) - 1

_SPACES = (b" ", b"\t", b"\n", b"\r")
_SPACE = re.compile(rb"[ \t\n\r]+")
# Bounded, because the regex engine keeps a stack entry per repetition; `string` loops over it.
_STRING_PART = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrtu]){0,10000}')
_WHOLE_NUMBER = re.compile(rb"(?:0|[1-9][0-9]{0,19})(?![0-9.eE])")
_PLAIN_VALUE = re.compile(rb"true|false|null|-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")


class Scanner:
    """The tokens that such a text may hold. Every ``code`` and ``what`` says which refusal a wrong token becomes.

    Args:
        text: all of it.
        name: what to call it, such as ``"header"``. It begins the codes ``header-json`` and ``header-utf8``.
    """

    def __init__(self, text: bytes | bytearray, name: str) -> None:
        self._text = text
        self._name = name
        self._at = 0

    def members(self, code: str, what: str) -> Iterator[str]:
        """The keys of an object in turn; the caller reads each value before it asks for the next key."""
        if not self._accept(b"{"):
            self._fail(code, f"{what} is not an object")
        seen: set[str] = set()
        if self._accept(b"}"):
            return
        while True:
            key = self.string(f"{self._name}-json", f"a key of {what}")
            if key in seen:
                raise RefusedError(f"{what} holds the key '{printable(key)}' twice", code="duplicate-key")
            if len(seen) == MAX_KEYS:
                raise RefusedError(f"{what} holds more than {MAX_KEYS} keys", code="too-many-keys")
            seen.add(key)
            self._expect(b":")
            yield key
            if self._accept(b"}"):
                return
            self._expect(b",")

    def string(self, code: str, what: str) -> str:
        """A string, its escapes resolved."""
        if not self._accept(b'"'):
            self._fail(code, f"{what} is not a string")
        begin = self._at
        while (part := _STRING_PART.match(self._text, self._at)) and part.end() > self._at:
            self._at = part.end()
            if self._text[self._at : self._at + 1] == b'"':
                break
        raw = memoryview(self._text)[begin : self._at]
        if self._text[self._at : self._at + 1] != b'"':
            self._fail(f"{self._name}-json", f"{what} is a broken string")
        self._at += 1
        try:
            text = str(raw, "utf-8")
            if "\\" in text:
                text = json.loads(f'"{text}"')
                text.encode("utf-8")  # escapes can spell half a surrogate pair, which is no character
        except UnicodeError:
            self._fail(f"{self._name}-utf8", f"{what} is not UTF-8")
        except json.JSONDecodeError:
            self._fail(f"{self._name}-json", f"{what} is a broken string")
        return text

    def whole_numbers(self, code: str, what: str) -> tuple[int, ...]:
        """A list of at most ``MAX_DIMENSIONS`` whole numbers, each below 2^64."""
        if not self._accept(b"["):
            self._fail(code, f"{what} is not a list of whole numbers")
        numbers: list[int] = []
        if self._accept(b"]"):
            return ()
        while True:
            self._skip_space()
            match = _WHOLE_NUMBER.match(self._text, self._at)
            if match is None or int(match[0]) > MAX_U64:
                self._fail(code, f"{what} is not a list of whole numbers below 2^64")
            numbers.append(int(match[0]))
            self._at = match.end()
            if self._accept(b"]"):
                return tuple(numbers)
            if len(numbers) == MAX_DIMENSIONS:
                self._fail(code, f"{what} has more than {MAX_DIMENSIONS} numbers")
            self._expect(b",")

    def plain_value(self, code: str, what: str) -> Any:
        """A string, finite number, true, false or null."""
        self._skip_space()
        if self._text.startswith(b'"', self._at):
            return self.string(code, what)
        match = _PLAIN_VALUE.match(self._text, self._at)
        if match is None:
            self._fail(code, f"{what} is no plain value")
        value = json.loads(match[0])
        if isinstance(value, float) and not math.isfinite(value):  # such as 1e999; JSON could not say it again
            self._fail(code, f"{what} is a number beyond any float")
        self._at = match.end()
        return value

    def end(self) -> None:
        """Make sure that nothing follows but white space."""
        self._skip_space()
        if self._at != len(self._text):
            self._fail(f"{self._name}-json", f"more text after the {self._name}'s object")

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
            self._fail(f"{self._name}-json", f"expected {token.decode()!r}")

    def _fail(self, code: str, message: str) -> NoReturn:
        here = self._text[self._at : self._at + 20].decode("utf-8", "replace")
        raise RefusedError(f"{message}, at byte {self._at} of the {self._name}: '{printable(here)}'", code=code)
