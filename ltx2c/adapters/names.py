"""One module under its several names: LTX-2's own and diffusers', with dots or with underscores."""

from __future__ import annotations

from ltx2c.adapters.formats import PART_NAMES, TOP_NAMES, WHOLE_NAMES

_ORIGINAL_TOP = {there: here for here, there in TOP_NAMES.items()}
_ORIGINAL_PART = {there: here for here, there in PART_NAMES.items()}
_ORIGINAL_WHOLE = {there: here for here, there in WHOLE_NAMES.items()}


def to_diffusers(name: str) -> str:
    """A module's name as diffusers spells it; the same where that is no other."""
    return _translated(name, WHOLE_NAMES, TOP_NAMES, PART_NAMES)


def to_original(name: str) -> str:
    """A module's name as LTX-2's own files spell it; the same where that is no other."""
    return _translated(name, _ORIGINAL_WHOLE, _ORIGINAL_TOP, _ORIGINAL_PART)


def underscored(name: str) -> str:
    """A name as kohya's scripts write it."""
    return name.replace(".", "_")


def _translated(name: str, whole: dict[str, str], top: dict[str, str], part: dict[str, str]) -> str:
    if name in whole:
        return whole[name]
    first, *rest = name.split(".")
    return ".".join([top.get(first, part.get(first, first)), *(part.get(one, one) for one in rest)])
