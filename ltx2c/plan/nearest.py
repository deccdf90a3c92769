"""The name a person probably meant, among thousands that look alike."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable

# difflib compares letters, and takes time by the square of their number: path components shortlist first, so that
# hundreds of thousands of names take a second, and of an endless name (a hostile file may hold one) only the beginning
# counts. The longest name in LTX-2.5 has 100 letters.
_SHORTLIST = 48
_LETTERS = 200


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most like ``name``, by how both begin; None when there are none. Of equals, the first."""
    name = name[:_LETTERS]
    parts = set(name.split("."))
    shortlist = heapq.nlargest(
        _SHORTLIST, names, key=lambda other: len(parts.intersection(other[:_LETTERS].split(".")))
    )
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(name)

    def likeness(other: str) -> float:
        matcher.set_seq1(other[:_LETTERS])
        return matcher.ratio()

    return max(shortlist, key=likeness, default=None)
