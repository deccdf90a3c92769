"""A base's tensors by every name that an adapter may have for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from ltx2c.adapters import Delta
from ltx2c.adapters.formats import FUSED_NAMES
from ltx2c.adapters.keys import without_prefix
from ltx2c.adapters.names import to_diffusers, to_original, underscored

WEIGHT = "weight"


class Place(NamedTuple):
    """Where some rows of a delta go.

    Attributes:
        key: the target's.
        rows: ``(begin, end)`` of the delta's rows; None for all of them.
        at: the target's row that the first of them enters.
    """

    key: str
    rows: tuple[int, int] | None = None
    at: int = 0


class Found(NamedTuple):
    """What the base holds by one name.

    Attributes:
        places: of one target, or of several that share a fused delta's rows. Empty where there is no such name.
        candidates: the keys, where several targets have the name, and none is it.
        renamed: whether the name is another than the base's own, namespace aside.
    """

    places: tuple[Place, ...] = ()
    candidates: tuple[str, ...] = ()
    renamed: bool = False


class Targets:
    """The modules of one base, with LTX-2's two sets of names, kohya's underscores, and fused projections."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """``shapes``: of the base's tensors by key."""
        self._shapes = shapes
        # Module name -> the modules as the base's keys spell them; several where the name is not of one.
        self._own: dict[str, list[str]] = {}
        self._other: dict[str, list[str]] = {}
        self._underscored: dict[str, list[str]] = {}
        for module in _modules(shapes):
            name = without_prefix(module)
            self._own.setdefault(name, []).append(module)
            spellings = {name, to_diffusers(name), to_original(name)}
            for spelling in spellings:
                if spelling != name:
                    self._other.setdefault(spelling, []).append(module)
                written = self._underscored.setdefault(underscored(spelling), [])
                if module not in written:
                    written.append(module)

    def find(self, delta: Delta) -> Found:
        """The target, or the targets, of a delta; its shape is not looked at."""
        name, target = delta.module, delta.target
        if delta.underscored:
            found = self._named(self._underscored, name, target)
            return found or self._fused_underscored(delta) or Found()
        return (
            self._named(self._own, name, target)
            or self._named(self._other, name, target)
            or self._fused(name, delta)
            or Found()
        )

    def _named(self, names: Mapping[str, list[str]], name: str, target: str) -> Found | None:
        keys = [key for module in names.get(name, ()) if (key := self._key(module, target)) is not None]
        if not keys:
            return None
        return Found((Place(keys[0]),), renamed=names is self._other) if len(keys) == 1 else Found((), tuple(keys))

    def _key(self, module: str, target: str) -> str | None:
        """The key of a module's tensor; a weight may also be a parameter that bears the module's name."""
        key = f"{module}.{target}"
        if key in self._shapes:
            return key
        return module if target == WEIGHT and module in self._shapes else None

    def _fused(self, name: str, delta: Delta) -> Found | None:
        """A delta of a fused projection for projections that the base holds apart, or the other way round."""
        parent, _, last = name.rpartition(".")
        for fused, parts in FUSED_NAMES.items():
            if last == fused:
                found = [self._one(f"{parent}.{part}", delta.target) for part in parts]
                if all(found):
                    return Found(tuple(self._shares([key for key in found if key])))
            if last in parts:
                whole = self._one(f"{parent}.{fused}", delta.target)
                if whole is not None:
                    return Found(
                        (
                            Place(
                                whole,
                                (0, _rows(delta.shape)),
                                _rows(self._shapes[whole]) // len(parts) * parts.index(last),
                            ),
                        )
                    )
        return None

    def _fused_underscored(self, delta: Delta) -> Found | None:
        """The same for an underscored name: every parent that the base has, with what follows it."""
        for fused, parts in FUSED_NAMES.items():
            for last in (fused, *parts):
                parent = delta.module.removesuffix(f"_{last}")
                if parent == delta.module:
                    continue
                for spelling in self._parents.get(parent, ()):
                    found = self._fused(f"{spelling}.{last}", delta)
                    if found is not None:
                        return found
        return None

    @cached_property
    def _parents(self) -> dict[str, list[str]]:
        """Underscored name -> the modules' parents that are written so."""
        parents: dict[str, list[str]] = {}
        for name in dict.fromkeys(name.rpartition(".")[0] for name in (*self._own, *self._other)):
            parents.setdefault(underscored(name), []).append(name)
        return parents

    def _one(self, name: str, target: str) -> str | None:
        found = self._named(self._own, name, target) or self._named(self._other, name, target)
        return found.places[0].key if found is not None and found.places else None

    def _shares(self, keys: Iterable[str]) -> Iterator[Place]:
        begin = 0
        for key in keys:
            end = begin + _rows(self._shapes[key])
            yield Place(key, (begin, end))
            begin = end


def _rows(shape: Sequence[int]) -> int:
    """Of a tensor as a matrix; a scalar has one."""
    return shape[0] if shape else 1


def _modules(keys: Iterable[str]) -> dict[str, None]:
    """Every module that has a tensor, and every tensor by its own name, in the base's order."""
    modules: dict[str, None] = {}
    for key in keys:
        parent = key.rpartition(".")[0]
        if parent:
            modules[parent] = None
        modules[key] = None
    return modules
