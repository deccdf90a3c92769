"""What resident memory holds, tensor by tensor, and how it is brought to another state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ltx2c.engines.fill import fill
from ltx2c.engines.memory import ResidentMemory
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.slot import Slot
from ltx2c.engines.weights import Load, Work
from ltx2c.plan import Deltas, Fusions
from ltx2c.plan.bind import Bind, plan_bind
from ltx2c.plan.opened import Sources
from ltx2c.plan.phases import PhasePlans
from ltx2c.plan.transition import Transition


class Residency:
    """Resident memory with a record of whose bytes are where.

    Args:
        sources: the base and the adapters.
        planned: the phases.
        load: reads a delta.

    Attributes:
        live: what each tensor holds: its deltas, or None where its bytes are of no state.
    """

    def __init__(
        self,
        sources: Sources,
        planned: PhasePlans,
        memory: ResidentMemory,
        load: Load,
        threads: int,
    ) -> None:
        self.live: dict[str, Deltas | None] = dict.fromkeys(sources.base.tensors)
        self._spare: dict[str, Deltas | None] = dict.fromkeys(memory.spare)
        self._sources = sources
        self._memory = memory
        self._owners = planned.owners
        self._work = Work(sources.base.tensors, {}, planned.weights, planned.weights, planned.arithmetic, load)
        self._threads = threads

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Where each tensor is."""
        return self._memory.live

    @property
    def torn(self) -> tuple[str, ...]:
        """Tensors whose bytes are of no state."""
        return tuple(key for key, deltas in self.live.items() if deltas is None)

    def bind(self, after: Fusions, *, allow_nonfinite: bool) -> Bind:
        """Bring every tensor to ``after``, always from the base's bytes, and say what that took.

        The spare copy is written first: where that fails, the live tensors are what they were. Inputs that changed
        while they were read leave what was read on record as nobody's.

        Raises:
            RefusedError: ``nonfinite``; ``file-changed``.
            OSError: a file could not be read.
        """
        self._sources.check_unchanged()
        bind = plan_bind(self._sources.base, self.live, self._spare, after, self._owners)
        self._execute(bind.spare, self._memory.spare, self._spare, allow_nonfinite)
        self._execute(bind.in_place, self._memory.live, self.live, allow_nonfinite)
        try:
            self._sources.check_unchanged()
        except BaseException:
            self._spare.update(dict.fromkeys(bind.spare.changed))
            self.live.update(dict.fromkeys(bind.in_place.changed))
            raise
        if bind.switch:
            self._switch()
        return bind

    def _execute(
        self, change: Transition, slots: Mapping[str, Slot], contents: dict[str, Deltas | None], allow_nonfinite: bool
    ) -> None:
        nonfinite = Nonfinite(self._sources.base.path, allowed=allow_nonfinite)
        work = replace(self._work, fusions=change.fuse)
        fill(change, work, slots, contents, nonfinite, self._threads)
        contents.update(dict.fromkeys(nonfinite.refused()))
        nonfinite.refuse()

    def _switch(self) -> None:
        live, spare = {key: self.live[key] for key in self._spare}, dict(self._spare)
        self.live.update(dict.fromkeys(spare))  # an interrupt in here leaves both copies on record as nobody's
        self._spare.update(dict.fromkeys(spare))
        self._memory.switch()
        self.live.update(spare)
        self._spare.update(live)
