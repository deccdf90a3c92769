"""Whole renders, step by step: load, each phase's bind, the terminal step; and the same in the naive order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.plan.bind import plan_bind
from ltx2c.plan.cost import Cost
from ltx2c.plan.plan import AppliedDelta, Fusions
from ltx2c.plan.transition import Contents, Owners, contents_of

Terminal = Literal["last", "first", "base"]
"""The state a render leaves: its last phase's, its first phase's (ready for the next render), or the base."""

# Each is planned on its own, tensor by tensor.
MOST_RENDERS = 1000

LOAD, TERMINAL = "load", "terminal"


@dataclass(frozen=True)
class Step:
    """One step of a schedule.

    Attributes:
        render: the render it belongs to, from 1; 0 for the load.
        name: ``"load"``, a phase's name, or ``"terminal"``.
        kept, restored, fused, switched: tensors by what is done to them.
        unfused: tensors whose deltas are subtracted again; only in the naive order.
    """

    render: int
    name: str
    kept: int
    restored: int
    fused: int
    switched: int
    unfused: int
    cost: Cost


def check_schedule(renders: int, terminal: str) -> None:
    """Refuse a number of renders or a terminal state that means nothing."""
    if not 1 <= renders <= MOST_RENDERS:
        raise RefusedError(
            f"renders is {printable(renders)}; there are 1 to {MOST_RENDERS}, and later ones cost what the second does",
            code="bad-renders",
        )
    if terminal not in get_args(Terminal):
        raise RefusedError(
            f"terminal state {printable(terminal)} is not one of {', '.join(get_args(Terminal))}", code="bad-terminal"
        )


def render_steps(
    base: Checkpoint,
    phases: Sequence[tuple[str, Fusions]],
    renders: int,
    terminal: Terminal,
    owners: Owners,
    double_buffered: Sequence[str] = (),
) -> Iterator[Step]:
    """Load in the first phase's state, then bind exactly what differs, render after render."""
    live: Contents = dict.fromkeys(base.tensors)
    spare: Contents = dict.fromkeys(double_buffered)
    first, last = phases[0][1], phases[-1][1]
    ends = {"last": last, "first": first, "base": {}}[terminal]
    schedule = [(0, LOAD, first)]
    for render in range(1, renders + 1):
        schedule += [(render, name, fusions) for name, fusions in phases]
        schedule.append((render, TERMINAL, ends))
    for render, name, fusions in schedule:
        bind = plan_bind(base, live, spare, fusions, owners)
        kept = len(base.tensors) - bind.restored - bind.fused - bind.switched
        yield Step(render, name, kept, bind.restored, bind.fused, bind.switched, 0, bind.cost)
        if bind.switch:
            spare = {key: live.get(key, ()) for key in double_buffered}
        live = contents_of(fusions, owners)


def naive_steps(base: Checkpoint, phases: Sequence[tuple[str, Fusions]], renders: int) -> Iterator[Step]:
    """The order this project replaces: load everything fused, then fuse or un-fuse at each boundary, and stay.

    Un-fusing subtracts, which costs the arithmetic of fusing and does not give the base's bytes back.
    """
    fusions = _most_fused(phases)
    yield _naive_step(base, 0, LOAD, {}, fusions, loaded=sum(tensor.nbytes for tensor in base.tensors.values()))
    for render in range(1, renders + 1):
        for name, after in phases:
            yield _naive_step(base, render, name, fusions, after)
            fusions = after


def _most_fused(phases: Sequence[tuple[str, Fusions]]) -> Fusions:
    """The phase with the most deltas; of equals the last."""
    return max((fusions for _, fusions in reversed(phases)), key=lambda fusions: sum(map(len, fusions.values())))


def _naive_step(base: Checkpoint, render: int, name: str, before: Fusions, after: Fusions, loaded: int = 0) -> Step:
    leaving = _without(before, after)
    entering = _without(after, before)
    passes = [*leaving.items(), *entering.items()]
    deltas = [one.delta for _, applied in passes for one in applied]
    written = sum(base.tensors[key].nbytes for key, _ in passes)
    cost = Cost(sum(delta.macs for delta in deltas), loaded + sum(delta.nbytes for delta in deltas), loaded or written)
    others = len(base.tensors) - len(leaving.keys() | entering.keys())
    kept, restored = (0, others) if loaded else (others, 0)
    return Step(render, name, kept, restored, len(entering), 0, len(leaving), cost)


def _without(fusions: Fusions, other: Fusions) -> dict[str, list[AppliedDelta]]:
    """Per tensor, the deltas of ``fusions`` that ``other`` lacks; only tensors with any."""
    lacking = {key: [one for one in deltas if one not in other.get(key, ())] for key, deltas in fusions.items()}
    return {key: deltas for key, deltas in lacking.items() if deltas}
