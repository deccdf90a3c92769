"""Executing a transition in memory: base bytes are read where they belong, and fused there while still in cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

import numpy as np

from ltx2c.engines.fuser import Fused, Fuser, Part
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.pipeline import Steps, run_pipeline, split_threads
from ltx2c.engines.slot import Slot
from ltx2c.engines.weights import WeightInWork, Work
from ltx2c.plan import Deltas
from ltx2c.plan.transition import Transition

# Base bytes per batch: enough that a batch's overhead does not show, little enough to be in cache when it is fused.
_BATCH_BYTES = 16 << 20

# Each holds a batch's deltas in memory, and so many saturate it.
_MOST_READERS = 8


@dataclass
class _Batch:
    """Whole tensors; those that are fused with what they take."""

    slots: list[tuple[Slot, WeightInWork | None]] = field(default_factory=list)
    nbytes: int = 0

    def read(self, _: None) -> None:
        """The base's bytes into place, and the deltas of what is to be fused."""
        for slot, weight in self.slots:
            slot.read()
            if weight is not None:
                weight.load()


def fill(
    change: Transition,
    work: Work,
    slots: Mapping[str, Slot],
    contents: MutableMapping[str, Deltas | None],
    nonfinite: Nonfinite,
    threads: int,
) -> None:
    """Restore and fuse as ``change`` says. Batches are read ahead of those that are being computed.

    Args:
        work: whose fusions are those of ``change``.
        slots: where each tensor goes.
        contents: what each tensor holds. Kept true throughout: None from before a tensor's first byte changes until
            its last has, so that a failure or an interrupt leaves on record what is whole.
        nonfinite: takes what the weights came to.

    Raises:
        OSError, RefusedError: a file could not be read or ended early. Whatever is raised, nothing is being read
            into the slots any more when it arrives.
    """
    shares = split_threads(threads)
    fuser = Fuser(work.arithmetic, shares)
    readers = min(threads, _MOST_READERS)

    def compute(batch: _Batch, _: None, loaded: None) -> Fused:
        fused = fuser.fuse([_part(slot, weight) for slot, weight in batch.slots if weight is not None])
        for slot, weight in batch.slots:
            slot.settle()
            if weight is not None:
                _write_companions(weight, slots)
        return fused

    batches = run_pipeline(
        _batches(change, work, slots, contents),
        Steps(_Batch.read, compute),
        buffers=[None] * (readers + len(shares)),
        workers=len(shares),
        readers=readers,
    )
    with contextlib.closing(batches):
        for batch, _, fused in batches:
            nonfinite.add(fused)
            for slot, weight in batch.slots:
                contents.update(_held(slot, weight, change))


def _batches(
    change: Transition,
    work: Work,
    slots: Mapping[str, Slot],
    contents: MutableMapping[str, Deltas | None],
) -> Iterator[_Batch]:
    """Tensors in the order their bytes lie in the files, each on record as nobody's once its batch is handed out."""
    batch = _Batch()
    for key in sorted((*change.restore, *change.fuse), key=lambda key: _place(slots[key])):
        slot, weight = slots[key], work.begin(key)
        batch.slots.append((slot, weight))
        batch.nbytes += slot.stored.nbytes
        contents.update(dict.fromkeys(_held(slot, weight, change)))
        if batch.nbytes >= _BATCH_BYTES:
            yield batch
            batch = _Batch()
    if batch.slots:
        yield batch


def _place(slot: Slot) -> tuple[str, int]:
    return str(slot.stored.file.path), slot.stored.begin


def _held(slot: Slot, weight: WeightInWork | None, change: Transition) -> dict[str, Deltas]:
    """What a tensor holds in the end, and its companions."""
    key = slot.stored.key
    if weight is None:
        return {key: ()}
    return dict.fromkeys((key, *(spec.key for spec in weight.stored.companions.values())), change.fuse[key])


def _part(slot: Slot, weight: WeightInWork) -> Part:
    return Part(slot.stored, 0, weight, slot.narrow_bytes)


def _write_companions(weight: WeightInWork, slots: Mapping[str, Slot]) -> None:
    for role, spec in weight.stored.companions.items():
        slots[spec.key].narrow_bytes[...] = np.ascontiguousarray(weight.results[role]).reshape(-1).view(np.uint8)
        slots[spec.key].settle()
