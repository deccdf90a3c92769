"""The name a person probably meant, among thousands that look alike."""

from __future__ import annotations

import difflib
import heapq
from collections import Counter
from collections.abc import Iterable

# difflib compares letters and is slow; path components shortlist first, so that 4349 keys take milliseconds.
_SHORTLIST = 48


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most like ``name``; None when there are none. Of equals, the first."""
    parts = Counter(name.split("."))
    shortlist = heapq.nlargest(_SHORTLIST, names, key=lambda other: (parts & Counter(other.split("."))).total())
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(name)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    return max(shortlist, key=likeness, default=None)
