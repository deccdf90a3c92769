"""Strengths by module: factors for globs over the base's module names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ltx2c.adapters.keys import without_prefix
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.strength import check_strength

BlockWeights = Sequence[tuple[str, float]] | Mapping[str, float]
"""``(pattern, factor)`` in any order: a glob over module names, keys without ``.weight``, and what it multiplies by."""


class Factors:
    """What the strengths of one plan are multiplied by, module by module."""

    def __init__(self, given: BlockWeights) -> None:
        """Raises RefusedError (``bad-block-weight``) for a factor that is no finite float32 number."""
        pairs = given.items() if isinstance(given, Mapping) else given
        self._factors = [(pattern, self._checked(pattern, factor)) for pattern, factor in pairs]
        self._used: set[str] = set()

    @staticmethod
    def _checked(pattern: object, factor: object) -> float:
        if not isinstance(pattern, str) or not pattern:
            raise RefusedError(
                f"a block weight is (pattern, factor), not ({printable(repr(pattern))}, {printable(factor)})",
                code="bad-block-weight",
            )
        try:
            return check_strength(factor, f"block weight {pattern}")
        except RefusedError as error:
            raise RefusedError(str(error), code="bad-block-weight") from None

    @property
    def options(self) -> dict[str, Any]:
        """For the output's metadata; empty where none were given."""
        return {"block_weights": [list(pair) for pair in self._factors]} if self._factors else {}

    def of(self, key: str) -> float:
        """The product of all factors whose patterns fit the module of ``key``, with its namespace or without."""
        product = 1.0
        module, _, leaf = key.rpartition(".")
        name = module if leaf in ("weight", "bias") else key
        for pattern, factor in self._factors:
            if fnmatchcase(name, pattern) or fnmatchcase(without_prefix(name), pattern):
                self._used.add(pattern)
                product *= factor
        return product

    def check_used(self, base: Checkpoint) -> None:
        """Refuse (``block-weight-unused``) a pattern that fits no module that is fused: it would be missed silently."""
        unused = [pattern for pattern, _ in self._factors if pattern not in self._used]
        if unused:
            raise RefusedError(
                f"block weight {printable(unused[0])} fits no module of {printable(base.path)} that is fused",
                code="block-weight-unused",
            )
