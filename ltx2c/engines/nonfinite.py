"""Counting results that are infinite or NaN, and refusing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ltx2c.engines.fuser import Fused
from ltx2c.errors import RefusedError, printable
from ltx2c.files.url import AnyPath
from ltx2c.layouts import Loss


class Nonfinite:
    """What the weights of one result came to.

    Attributes:
        counts: weight key -> results that are infinite or NaN where the base was finite.
        loss: what encoding left of the deltas, where that was measured.
    """

    def __init__(self, base: AnyPath, *, allowed: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.loss = Loss()
        self._unencodable: Counter[str] = Counter()
        self._base = base
        self._allowed = allowed

    def add(self, fused: Fused) -> None:
        """Take what some parts came to."""
        self.counts.update(fused.nonfinite)
        self._unencodable.update(fused.unencodable)
        self.loss += fused.loss

    def refuse(self, going_on: str | None = None) -> None:
        """Refuse at the first weight that is complete: of ``going_on`` more may come, and its count is not final.

        Raises:
            RefusedError: ``nonfinite``.
        """
        for key, count in self._unencodable.items():
            if key != going_on:
                raise self._error(key, count, "infinite, NaN or too small values that its layout cannot store")
        for key, count in self.counts.items():
            if key != going_on and not self._allowed:
                raise self._error(
                    key, count, "infinite or NaN values where the base is finite; --allow-nonfinite keeps them"
                )

    def refused(self) -> Mapping[str, int]:
        """The weights that ``refuse`` stumbles over."""
        return self._unencodable if self._allowed else self.counts + self._unencodable

    def _error(self, key: str, count: int, what: str) -> RefusedError:
        return RefusedError(
            f"{printable(self._base)}: fused weight {printable(key)} has {count} {what}", code="nonfinite"
        )
