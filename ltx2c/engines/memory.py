"""The layout of resident weights: one stretch of memory, and a spare for the tensors that are held twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ltx2c.engines import arena
from ltx2c.engines.arena import Bytes
from ltx2c.engines.slot import Slot, is_widened, slot_bytes
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.buffers import allocate
from ltx2c.plan.bind import REGION_ALIGN, TENSOR_ALIGN, aligned

# What any dtype is aligned to.
_WIDEST = 8


class ResidentMemory:
    """A slot for every tensor of ``base``, and a spare one for each of ``double_buffered``.

    Double-buffered tensors come first and fill whole huge pages, in the spare just as in the live part, so that the two
    can change places by their page tables. All others follow in the base's order.

    Attributes:
        live: the slots whose arrays are handed out. Their addresses never change.
        spare: the slots of the second copy.
    """

    def __init__(self, base: Checkpoint, double_buffered: Sequence[str], widen: bool) -> None:
        twice = set(double_buffered)
        front, front_bytes = _places(base, double_buffered, widen)
        rest, rest_bytes = _places(base, [key for key in base.tensors if key not in twice], widen)
        region = aligned(front_bytes, REGION_ALIGN)
        live, spare = allocate(region + rest_bytes), allocate(region)
        self._halves = live[:region], spare
        self.live = {**_slots(front, live), **_slots(rest, live[region:])}
        self.spare = _slots(front, spare)

    def switch(self) -> None:
        """Exchange the live and the spare bytes. Raises OSError; the bytes are where they were then."""
        arena.switch(*self._halves)


class _Place(NamedTuple):
    stored: StoredTensor
    start: int
    size: int
    widened: bool


def _places(base: Checkpoint, keys: Iterable[str], widen: bool) -> tuple[list[_Place], int]:
    """Where each tensor goes, one behind the other, and the bytes they take together.

    A tensor lies in memory as it lies in its file modulo a cache line: the system copies that three times as fast
    as anything else (16.8 against 5.5 GB/s on two Zen 4 cores).
    """
    places = []
    end = 0
    for key in keys:
        stored = base.tensors[key]
        size = slot_bytes(stored, widen)
        start = aligned(end, TENSOR_ALIGN) + _lead(stored, size)
        places.append(_Place(stored, start, size, is_widened(stored, widen)))
        end = start + size
    return places, end


def _lead(stored: StoredTensor, size: int) -> int:
    """How far behind a cache line's start to begin, so that what is read lies as in the file and the dtype allows."""
    lead = (stored.begin - (size - stored.nbytes)) % TENSOR_ALIGN
    return lead if lead % _WIDEST == 0 else 0


def _slots(places: Iterable[_Place], memory: Bytes) -> dict[str, Slot]:
    return {
        place.stored.key: Slot(place.stored, memory[place.start : place.start + place.size], place.widened)
        for place in places
    }
