"""Reading a key of an adapter file: which tensor it is of which module. The formats themselves are ``formats.py``'s."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from ltx2c.adapters.formats import (
    ENDINGS,
    LOOKALIKES,
    NOT_FUSED,
    PEFT_PREFIX,
    PREFIXES,
    UNDERSCORED_PREFIXES,
    WHOLE_ENDINGS,
    Role,
)

_MOST_PREFIXES = 4  # one before the other; two are known
_MOST_PARTS = 8  # of a key, separated by dots, behind its module's name; known kinds have one or two


class AdapterKey(NamedTuple):
    """An understood key.

    Attributes:
        module: the module's name, namespace removed.
        role: of the tensor, for its module.
        underscored: whether the name's dots are written as underscores.
    """

    module: str
    role: Role
    underscored: bool


def parse(key: str) -> AdapterKey | None:
    """What ``key`` is in an adapter file, or None where it is of no kind that ltx2c reads."""
    for ending, role in ENDINGS.items():
        if key.endswith(ending):
            return _named(key[: -len(ending)], role, "_lora." in ending)
    if key.startswith(PEFT_PREFIX) and not_fused(key) is None:
        for ending, role in WHOLE_ENDINGS.items():
            if key.endswith(ending):
                return _named(key[: -len(ending)], role, False)
    return None


def _named(spelled: str, role: Role, older: bool) -> AdapterKey:
    name = without_prefix(spelled)
    for prefix in UNDERSCORED_PREFIXES:
        if name.startswith(prefix) and "." not in name:
            return AdapterKey(name[len(prefix) :], role, True)
    if older:  # diffusers' attention processors held the factors: "attn1.processor.to_out_lora" is of attn1.to_out.0
        name = name.replace(".processor.", ".")
        name = f"{name}.0" if name.endswith(".to_out") else name
    return AdapterKey(name, role, False)


def without_prefix(name: str) -> str:
    """``name`` without the namespaces that it begins with."""
    for _ in range(_MOST_PREFIXES):
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        name = name[len(prefix) :]
    return name


def belongs_to(key: str, modules: Container[str]) -> bool:
    """Whether ``key`` names a part of one of ``modules``."""
    name = without_prefix(key)
    for prefix in UNDERSCORED_PREFIXES:
        name = name.removeprefix(prefix)
    for _ in range(_MOST_PARTS):
        name, dot, _ = name.rpartition(".")
        if dot and name in modules:
            return True
    return False


def not_fused(key: str) -> str | None:
    """The kind of adapter that ``key`` shows, where it is recognised and not fused; else None."""
    return next((kind for part, kind in NOT_FUSED.items() if part in f".{key}."), None)


def looks_like(key: str) -> str:
    """What a key that ``parse`` does not understand looks like, for a person."""
    kind = not_fused(key)
    return kind or next((what for part, what in LOOKALIKES.items() if part in f"{key}."), "nothing an adapter holds")
