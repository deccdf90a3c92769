"""Binding resident weights to a state, with some of them perhaps held twice.

Tensors that differ between phases may be *double-buffered*: a second copy, the spare, holds them in another phase's
state, and a bind switches the two instead of computing. What the spare lacks is written into it before the switch, so
that the live copy is whole until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint
from ltx2c.plan.cost import Cost
from ltx2c.plan.plan import Fusions
from ltx2c.plan.transition import Contents, Owners, Transition, transition

# A tensor begins somewhere in a cache line of its own. The double-buffered ones fill whole huge pages, which the page
# table moves as one entry each.
TENSOR_ALIGN = 64
REGION_ALIGN = 2 << 20


def aligned(size: int, to: int) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


@dataclass(frozen=True)
class Bind:
    """One bind, ready to be executed.

    Attributes:
        in_place: what changes where it lies.
        spare: what is written into the spare copy before the switch.
        switch: the double-buffered tensors, where the two copies change places; empty where they do not.
    """

    in_place: Transition
    spare: Transition
    switch: tuple[str, ...]

    @property
    def fused(self) -> int:
        """Tensors that are computed."""
        return sum(len(change.fuse) + len(change.beside) for change in (self.in_place, self.spare))

    @property
    def restored(self) -> int:
        """Tensors that are read from the base as they are."""
        return len(self.in_place.restore) + len(self.spare.restore)

    @property
    def switched(self) -> int:
        """Tensors that change by a switch alone."""
        return len(self.switch) - len(self.spare.changed)

    @property
    def cost(self) -> Cost:
        """Of both copies."""
        return Cost.total([self.in_place.cost, self.spare.cost])


def plan_bind(base: Checkpoint, live: Contents, spare: Contents, after: Fusions, owners: Owners) -> Bind:
    """Bring ``live`` to ``after``. ``spare`` has a key per double-buffered tensor; none without a second copy."""
    single = (key for key in base.tensors if key not in spare)
    in_place = transition(base, live, after, owners, among=single)
    if all(live.get(key, ()) == after.get(owners.get(key, key), ()) for key in spare):
        return Bind(in_place, Transition((), (), {}, {}, Cost()), ())
    return Bind(in_place, transition(base, spare, after, owners, among=spare), tuple(spare))


def choose_double_buffered(
    base: Checkpoint, phases: Sequence[Fusions], owners: Owners, budget: int, nbytes: Callable[[str], int]
) -> tuple[str, ...]:
    """The tensors to hold twice within ``budget`` bytes: of those that differ between phases, the dearest per byte.

    Args:
        phases: what each fuses.
        owners: companions, which are held twice with their weights.
        nbytes: what a tensor takes in memory.

    Returns:
        Keys in the base's order.

    Raises:
        RefusedError: ``bad-budget``: it is negative.
    """
    if budget < 0:
        raise RefusedError(f"memory_budget is {budget} bytes; it cannot be negative", code="bad-budget")
    room = budget // REGION_ALIGN * REGION_ALIGN
    beside: dict[str, list[str]] = {}
    for companion, owner in owners.items():
        beside.setdefault(owner, []).append(companion)
    chosen: set[str] = set()
    for key in sorted(_differing(base, phases), key=lambda key: _macs_per_byte(base, phases, key), reverse=True):
        size = sum(aligned(nbytes(one), TENSOR_ALIGN) + TENSOR_ALIGN for one in (key, *beside.get(key, ())))
        if size <= room:
            chosen.update((key, *beside.get(key, ())))
            room -= size
    return tuple(key for key in base.tensors if key in chosen)


def _differing(base: Checkpoint, phases: Sequence[Fusions]) -> list[str]:
    return [key for key in base.tensors if len({fusions.get(key, ()) for fusions in phases}) > 1]


def _macs_per_byte(base: Checkpoint, phases: Sequence[Fusions], key: str) -> float:
    macs = max(sum(one.delta.macs for one in fusions.get(key, ())) for fusions in phases)
    return macs / base.tensors[key].nbytes
