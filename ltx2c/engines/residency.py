"""What resident memory holds, tensor by tensor, and how it is brought to another state."""

from __future__ import annotations

from collections.abc import Mapping

from ltx2c.engines.fill import Load, carry_out
from ltx2c.engines.memory import ResidentMemory
from ltx2c.engines.slot import Slot
from ltx2c.errors import RefusedError, printable
from ltx2c.plan import Deltas, Fusions
from ltx2c.plan.bind import Bind, plan_bind
from ltx2c.plan.opened import Sources
from ltx2c.plan.transition import Transition


class Residency:
    """Resident memory with a record of whose bytes are where.

    Args:
        sources: the base and the adapters.
        load: reads a delta.

    Attributes:
        live: what each tensor holds: its deltas, or None where its bytes are of no state.
    """

    def __init__(
        self,
        sources: Sources,
        memory: ResidentMemory,
        load: Load,
        threads: int,
    ) -> None:
        self.live: dict[str, Deltas | None] = dict.fromkeys(sources.base.tensors)
        self._spare: dict[str, Deltas | None] = dict.fromkeys(memory.spare)
        self._sources = sources
        self._memory = memory
        self._load = load
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
        bind = plan_bind(self._sources.base, self.live, self._spare, after)
        self._carry_out(bind.spare, self._memory.spare, self._spare, allow_nonfinite)
        self._carry_out(bind.in_place, self._memory.live, self.live, allow_nonfinite)
        try:
            self._sources.check_unchanged()
        except BaseException:
            self._spare.update(dict.fromkeys(bind.spare.changed))
            self.live.update(dict.fromkeys(bind.in_place.changed))
            raise
        if bind.switch:
            self._switch()
        return bind

    def _carry_out(
        self, change: Transition, slots: Mapping[str, Slot], contents: dict[str, Deltas | None], allow_nonfinite: bool
    ) -> None:
        nonfinite = carry_out(change, slots, contents, self._load, self._threads)
        if nonfinite and not allow_nonfinite:
            contents.update(dict.fromkeys(nonfinite))
            key, count = next(iter(nonfinite.items()))
            raise RefusedError(
                f"{printable(self._sources.base.path)}: fusing makes {count} values of {printable(key)} inf or NaN "
                f"where the base is finite ({len(nonfinite)} such tensors)",
                code="nonfinite",
            )

    def _switch(self) -> None:
        live, spare = {key: self.live[key] for key in self._spare}, dict(self._spare)
        self.live.update(dict.fromkeys(spare))  # an interrupt in here leaves both copies on record as nobody's
        self._spare.update(dict.fromkeys(spare))
        self._memory.switch()
        self.live.update(spare)
        self._spare.update(live)
