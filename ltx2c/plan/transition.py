"""What it takes to get from one state of the weights to another: per tensor keep, restore or fuse, and the cost.

A weight's content is told by its deltas; a key that is absent has none, which is the base. ``None`` in place of them
means bytes that are nobody's: not loaded yet, or left by a bind that did not finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ltx2c.files import Checkpoint
from ltx2c.plan.cost import Cost
from ltx2c.plan.plan import Deltas, Fusions

Contents = Mapping[str, Deltas | None]

Owners = Mapping[str, str]
"""Companion key -> the weight it belongs to, of all weights that are fused."""


@dataclass(frozen=True)
class Transition:
    """Every tensor in one of four lots.

    Attributes:
        keep: tensors that hold the right bytes already.
        restore: tensors to be read from the base again, as they are.
        fuse: tensors to be read from the base and fused with these deltas, which never start from fused bytes.
        beside: companions of those, such as scales, which are written with them.
        cost: a fused tensor reads its own bytes and its factors'.
    """

    keep: tuple[str, ...]
    restore: tuple[str, ...]
    fuse: Fusions
    beside: Fusions
    cost: Cost

    @property
    def changed(self) -> tuple[str, ...]:
        """Tensors that are restored, fused, or written beside those."""
        return (*self.restore, *self.fuse, *self.beside)


def transition(
    base: Checkpoint,
    before: Contents,
    after: Fusions,
    owners: Owners,
    *,
    among: Iterable[str] | None = None,
) -> Transition:
    """The difference between two contents of ``base``'s tensors, or of those in ``among``, in the order given.

    Two contents with the same deltas cost nothing. A tensor that neither fuses never moves.
    """
    keep: list[str] = []
    restore: list[str] = []
    fuse: dict[str, Deltas] = {}
    beside: dict[str, Deltas] = {}
    for key in base.tensors if among is None else among:
        wanted = after.get(owners.get(key, key), ())
        if before.get(key, ()) == wanted:
            keep.append(key)
        elif wanted:
            (beside if key in owners else fuse)[key] = wanted
        else:
            restore.append(key)
    return Transition(tuple(keep), tuple(restore), fuse, beside, _cost(base, (*restore, *fuse, *beside), fuse))


def contents_of(fusions: Fusions, owners: Owners) -> Contents:
    """What tensors hold once all of ``fusions`` is done; a companion what its weight does."""
    return {**fusions, **{key: fusions[owner] for key, owner in owners.items() if owner in fusions}}


def _cost(base: Checkpoint, changed: Iterable[str], fuse: Fusions) -> Cost:
    moved = sum(base.tensors[key].nbytes for key in changed)
    deltas = [one.delta for applied in fuse.values() for one in applied]
    factors = sum(delta.nbytes for delta in deltas)
    return Cost(sum(delta.macs for delta in deltas), moved + factors, moved)
