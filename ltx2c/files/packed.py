"""JSON that files carry in their metadata, written by anybody: read within bounds."""

from __future__ import annotations

import json

_MOST_LETTERS = 4_000_000  # parsed, they may take thirty times the memory
_DEEPEST = 100  # whoever reads or writes it again calls itself once for every level


def parse_packed(text: str | bytes) -> object:
    """What JSON in a file's metadata says.

    Raises:
        ValueError: it is no JSON, of megabytes, or nested by the hundred.
    """
    if len(text) > _MOST_LETTERS:
        raise ValueError(f"{len(text)} letters of JSON, more than {_MOST_LETTERS}")
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(f"nested more than {_DEEPEST} levels deep")


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
