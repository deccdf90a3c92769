"""What ltx2c raises, and how it writes names it did not choose.

Three things can stop a job, and they are kept apart because a caller reacts to each differently:

* ``RefusedError``: the input or the request does not fit. Nothing was written. The command line exits with 2.
* ``OSError``: the system failed (disk, permission, a vanished file), as the system raised it. Exit 3.
* anything else is a bug. Exit 70, with its traceback.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, NamedTuple


class Ltx2cError(Exception):
    """Base of everything ltx2c raises on purpose."""


class RefusedError(Ltx2cError, ValueError):
    """An input or a request that ltx2c will not act on.

    Args:
        message: one line for a person, naming the file, the key and both values that disagree.
        code: the same for a program, in kebab-case and stable between releases, such as ``"shape-mismatch"``.
        keys: all keys that it is about, where the message names only the first; ``--json`` lists them.
    """

    def __init__(self, message: str, *, code: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is pickled and copied: without the code, a worker's refusal would never reach its parent."""
        return functools.partial(type(self), code=self.code), self.args, self.__dict__


_MAX_SHOWN = 200


def printable(name: object) -> str:
    """``name`` as it may safely stand in a one-line message.

    Names come from files that anyone can write: control characters, line breaks and direction marks are escaped,
    so that a hostile name can neither forge a second line nor drive a terminal, and an endless one is cut.
    """
    text = str(name)
    if len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"
    return escaped(text)


class Named(NamedTuple):
    """Words about something with a name, put together when they are read: ``Named("dtype of tensor '{}'", key)``.

    Handed along for each of 250,000 keys they cost nothing, until one is refused.
    """

    words: str
    name: object

    def __str__(self) -> str:
        return self.words.format(printable(self.name))


def escaped(text: str) -> str:
    """``text`` as ``printable`` shows it, at any length: for whole messages."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    # C: control, format, surrogate, private use, unassigned; Zl and Zp break lines.
    hidden = unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
    return character.encode("unicode_escape").decode("ascii") if hidden else character
