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


@dataclass(frozen=True)
class Transition:
    """Every tensor in one of three lots.

    Attributes:
        keep: tensors that hold the right bytes already.
        restore: tensors to be read from the base again, as they are.
        fuse: tensors to be read from the base and fused with these deltas, which never start from fused bytes.
        cost: a fused tensor reads its own bytes and its factors'.
    """

    keep: tuple[str, ...]
    restore: tuple[str, ...]
    fuse: Fusions
    cost: Cost

    @property
    def changed(self) -> tuple[str, ...]:
        """Tensors that are restored or fused."""
        return (*self.restore, *self.fuse)


def transition(base: Checkpoint, before: Contents, after: Fusions, *, among: Iterable[str] | None = None) -> Transition:
    """The difference between two contents of ``base``'s tensors, or of those in ``among``, in the order given.

    Two contents with the same deltas cost nothing. A tensor that neither fuses never moves.
    """
    keep: list[str] = []
    restore: list[str] = []
    fuse: dict[str, Deltas] = {}
    for key in base.tensors if among is None else among:
        wanted = after.get(key, ())
        if before.get(key, ()) == wanted:
            keep.append(key)
        elif wanted:
            fuse[key] = wanted
        else:
            restore.append(key)
    return Transition(tuple(keep), tuple(restore), fuse, _cost(base, restore, fuse))


def _cost(base: Checkpoint, restore: Iterable[str], fuse: Fusions) -> Cost:
    moved = sum(base.tensors[key].nbytes for key in (*restore, *fuse))
    deltas = [one.delta for applied in fuse.values() for one in applied]
    factors = sum(delta.nbytes for delta in deltas)
    return Cost(sum(delta.macs for delta in deltas), moved + factors, moved)
