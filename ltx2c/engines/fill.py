"""Carrying a transition out in memory: base bytes are read where they belong, and fused there while still in cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from typing import NamedTuple

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.crew import Crew
from ltx2c.engines.slot import Slot
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.plan import Deltas
from ltx2c.plan.sources import DeltaRef
from ltx2c.plan.transition import Transition

Load = Callable[[DeltaRef], LoadedDelta]

# Base bytes per batch: enough that a batch's overhead does not show, little enough to be in cache when it is fused.
_BATCH_BYTES = 16 << 20

# Each holds a batch's factors in memory, and so many saturate it.
_MOST_READERS = 8


class _Item(NamedTuple):
    key: str
    slot: Slot
    deltas: Deltas


def carry_out(
    change: Transition,
    slots: Mapping[str, Slot],
    contents: MutableMapping[str, Deltas | None],
    load: Load,
    threads: int,
) -> dict[str, int]:
    """Restore and fuse as ``change`` says. Batches are read ahead of the one that is being computed.

    Args:
        slots: where each tensor goes.
        contents: what each tensor holds. Kept true throughout: None from before a tensor's first byte changes until
            its last has, so that a failure or an interrupt leaves on record what is whole.
        load: reads a delta.

    Returns:
        Key -> how many values became inf or NaN where the base's were finite; only keys with any.

    Raises:
        OSError, RefusedError: a file could not be read or ended early. Whatever is raised, nothing is being read
            into the slots any more when it arrives.
    """
    if not change.changed:
        return {}
    nonfinite: dict[str, int] = {}
    ahead: deque[tuple[list[_Item], Future[list[Job]]]] = deque()
    reader_count = min(threads, _MOST_READERS)
    with Crew(reader_count, "ltx2c-read") as readers:
        try:
            for batch in _batches(change, slots):
                contents.update((item.key, None) for item in batch)
                ahead.append((batch, readers.submit(_read, batch, load)))
                if len(ahead) > reader_count:
                    nonfinite |= _finish(*ahead.popleft(), contents, threads)
            while ahead:
                nonfinite |= _finish(*ahead.popleft(), contents, threads)
        finally:
            readers.cancel()
    return nonfinite


def _batches(change: Transition, slots: Mapping[str, Slot]) -> Iterator[list[_Item]]:
    """Items in the order their bytes lie in the files."""
    keys = sorted(change.changed, key=lambda key: _place(slots[key]))
    batch: list[_Item] = []
    size = 0
    for key in keys:
        batch.append(_Item(key, slots[key], change.fuse.get(key, ())))
        size += slots[key].stored.nbytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _place(slot: Slot) -> tuple[str, int]:
    return str(slot.stored.file.path), slot.stored.begin


def _read(batch: list[_Item], load: Load) -> list[Job]:
    """Read the batch's base bytes into place, and the deltas of what is to be fused."""
    jobs = []
    for item in batch:
        item.slot.read()
        if item.deltas:
            weight = item.slot.narrow
            terms = [kernel for one in item.deltas for kernel in load(one.delta).terms(one.effective_strength)]
            jobs.append(Job(weight, terms, weight))
        else:
            item.slot.settle()
    return jobs


def _finish(
    batch: list[_Item], read: Future[list[Job]], contents: MutableMapping[str, Deltas | None], threads: int
) -> dict[str, int]:
    jobs = read.result()
    fused = [item for item in batch if item.deltas]
    counts = fuse_jobs(jobs, threads=threads) if jobs else []
    for item in fused:
        item.slot.settle()
    contents.update((item.key, item.deltas) for item in batch)
    return {item.key: count for item, count in zip(fused, counts, strict=True) if count}
