"""The layout of resident weights: one stretch of memory, and a spare for the tensors that are held twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ltx2c.engines import arena
from ltx2c.engines.arena import Bytes
from ltx2c.engines.slot import Slot, is_widened, slot_bytes
from ltx2c.files import Checkpoint
from ltx2c.plan.bind import REGION_ALIGN, TENSOR_ALIGN, aligned


class ResidentMemory:
    """A slot for every tensor of ``base``, and a spare one for each of ``doubled``.

    Doubled tensors come first and fill whole huge pages, in the spare just as in the live part, so that the two can
    change places by their page tables. All others follow in the base's order.

    Attributes:
        live: the slots whose arrays are handed out. Their addresses never change.
        spare: the slots of the second copy.
    """

    def __init__(self, base: Checkpoint, doubled: Sequence[str], widen: bool) -> None:
        self._base = base
        self._widen = widen
        single = [key for key in base.tensors if key not in set(doubled)]
        region = aligned(self._size(doubled), REGION_ALIGN)
        live = arena.allocate(region + self._size(single))
        spare = arena.allocate(region)
        self._halves = live[:region], spare
        self.live = {**self._slots(doubled, live), **self._slots(single, live[region:])}
        self.spare = self._slots(doubled, spare)

    def switch(self) -> None:
        """Exchange the doubled tensors' live and spare bytes. Raises OSError; the bytes are where they were then."""
        arena.switch(*self._halves)

    def _size(self, keys: Iterable[str]) -> int:
        return sum(aligned(slot_bytes(self._base.tensors[key], self._widen), TENSOR_ALIGN) for key in keys)

    def _slots(self, keys: Iterable[str], memory: Bytes) -> dict[str, Slot]:
        slots = {}
        start = 0
        for key in keys:
            stored = self._base.tensors[key]
            size = slot_bytes(stored, self._widen)
            slots[key] = Slot(stored, memory[start : start + size], is_widened(stored, self._widen))
            start += aligned(size, TENSOR_ALIGN)
        return slots
