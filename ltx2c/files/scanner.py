"""The JSON of headers and indexes, token by token.

Their grammars are small and fixed, so they are read directly rather than through a general JSON parser. That is what
lets duplicate keys (which the format forbids and general parsers merge) be seen however they are spelled, keeps nesting
from recursing, and bounds memory: a general parser turns a 100 MB header of brackets into gigabytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ltx2c.errors import Named, RefusedError, printable

# Limits of ours, so that a hostile file cannot cost much more memory than it takes on disk: a key costs up to 1 KB
# where its shape has as many numbers as it may. A mixture of 384 experts in 60 layers has 207,364 keys, and half as
# many again with a fourth tensor for each weight. NumPy 1 has no array of more than 32 dimensions.
MAX_KEYS = 1 << 19
MAX_DIMENSIONS = 32
MAX_DEPTH = 32
MAX_VALUES = 1 << 17  # of free JSON, in all
MAX_U64 = (1 << 64) - 1
MAX_I64 = (1 << 63) - 1

_SPACES = (b" ", b"\t", b"\n", b"\r")
_SPACE = re.compile(rb"[ \t\n\r]+")
# Nearly all strings: what does not match is looked at part by part.
_PLAIN_STRING = re.compile(rb'[ \t\n\r]*"([^"\\\x00-\x1f]*)"')
_PLAIN_KEY = re.compile(_PLAIN_STRING.pattern + rb"[ \t\n\r]*:")
_SEPARATOR = re.compile(rb"[ \t\n\r]*([,}])")
# Bounded, because the regex engine keeps a stack entry per repetition; `string` loops over it.
_STRING_PART = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrtu]){0,10000}')
_WHOLE_NUMBER = re.compile(rb"(?:0|[1-9][0-9]{0,19})(?![0-9.eE])")
_PLAIN_VALUE = re.compile(rb"true|false|null|-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")


def plain_member(value: bytes) -> re.Pattern[bytes]:
    """What matches a comma and the member behind it whose value is as ``value`` says; ``~`` in it is any white space.

    Its groups are the key and those of ``value``, whose own blanks do not count.
    """
    pattern = rb"~ , ~ " + rb'"([^"\\\x00-\x1f]*)"' + rb" ~ : ~ " + value
    return re.compile(pattern.replace(b"~", rb"[ \t\n\r]*"), re.VERBOSE)


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
        self._values = 0  # read by `value`

    def members(self, code: str, what: object, seen: set[str] | None = None) -> Iterator[str]:
        """The keys of an object in turn; the caller reads each value before it asks for the next key.

        Args:
            seen: takes the keys, for ``take_run``.
        """
        if not self._accept(b"{"):
            self._fail(code, f"{what} is not an object")
        seen = set() if seen is None else seen
        if self._accept(b"}"):
            return
        while True:
            key = self._key(what)
            if key in seen:
                raise RefusedError(f"{what} holds the key '{printable(key)}' twice", code="duplicate-key")
            if len(seen) == MAX_KEYS:
                raise RefusedError(f"{what} holds more than {MAX_KEYS} keys", code="too-many-keys")
            seen.add(key)
            yield key
            separator = _SEPARATOR.match(self._text, self._at)
            if separator is None:
                self._fail(f"{self._name}-json", "expected ','")
            self._at = separator.end()
            if separator[1] == b"}":
                return

    def take_run(self, member: re.Pattern[bytes], seen: set[str], take: Callable[[str, re.Match[bytes]], bool]) -> None:
        """Pass the members that follow here, key and value, for as long as they are plain. One match each: fast.

        Args:
            member: from ``plain_member``.
            seen: the keys that the object has had.
            take: takes a key and the match, and says whether it does. It must not take what it has not understood: the
                member where a run ends is read token by token, and refused there for what is wrong.
        """
        text, at = self._text, self._at
        while len(seen) < MAX_KEYS and (match := member.match(text, at)):
            key = _decoded(match[1])
            if key is None or key in seen or not take(key, match):
                break
            seen.add(key)
            at = match.end()
        self._at = at

    def _key(self, what: object) -> str:
        match = _PLAIN_KEY.match(self._text, self._at)
        if match and (text := _decoded(match[1])) is not None:
            self._at = match.end()
            return text
        key = self.string(f"{self._name}-json", Named("a key of {}", what))
        self._expect(b":")
        return key

    def string(self, code: str, what: object) -> str:
        """A string, its escapes resolved."""
        match = _PLAIN_STRING.match(self._text, self._at)
        if match and (text := _decoded(match[1])) is not None:
            self._at = match.end()
            return text
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

    def whole_numbers(self, code: str, what: object) -> tuple[int, ...]:
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

    def null(self) -> bool:
        """Whether ``null`` stands here, which is then passed."""
        return self._accept(b"null")

    def value(self, code: str, what: object, depth: int = 0) -> Any:
        """Any JSON value without NaN and infinities, of at most ``MAX_DEPTH`` lists and objects in each other."""
        self._skip_space()
        self._values += 1
        if self._values > MAX_VALUES:
            self._fail(code, f"{what} is too long: the {self._name} says more than {MAX_VALUES} such values")
        if self._text.startswith((b"{", b"["), self._at) and depth == MAX_DEPTH:
            self._fail(code, f"{what} is nested more than {MAX_DEPTH} deep")
        if self._text.startswith(b"{", self._at):
            return {key: self.value(code, what, depth + 1) for key in self.members(code, what)}
        if self._accept(b"["):
            return self._list(code, what, depth)
        if self._text.startswith(b'"', self._at):
            return self.string(code, what)
        match = _PLAIN_VALUE.match(self._text, self._at)
        if match is None:
            self._fail(code, f"{what} is no JSON value")
        value = json.loads(match[0])
        if isinstance(value, float) and not math.isfinite(value):  # such as 1e999; JSON could not say it again
            self._fail(code, f"{what} is a number beyond any float")
        self._at = match.end()
        return value

    def _list(self, code: str, what: object, depth: int) -> list[Any]:
        values: list[Any] = []
        if self._accept(b"]"):
            return values
        while True:
            values.append(self.value(code, what, depth + 1))
            if self._accept(b"]"):
                return values
            self._expect(b",")

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


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
