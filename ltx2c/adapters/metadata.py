"""What an adapter's ``__metadata__`` says that matters to a fuse."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ltx2c.adapters.deltas import LowRank
from ltx2c.errors import RefusedError, printable
from ltx2c.files import TensorFile

DOWNSCALE = "reference_downscale_factor"
TEMPORAL_SCALE = "reference_temporal_scale_factor"

# Where writers put alpha and the rank it belongs to. Without ``.alpha`` tensors upstream fuses by strength alone.
ALPHA_KEYS = {"lora_alpha": "lora_rank", "ss_network_alpha": "ss_network_dim"}

# diffusers puts PEFT's configuration there, as a JSON object, and these two in it.
PACKED = "lora_adapter_metadata"
PACKED_ALPHA, PACKED_RANK = "lora_alpha", "r"

_MOST_PACKED = 4_000_000  # letters of JSON: parsed, they may take thirty times the memory

_POSITIVE = re.compile(r"[1-9][0-9]{0,8}")


def scale_factor(files: Iterable[TensorFile], name: str) -> int:
    """The reference scale factor that an adapter's files state, 1 when none does. A scale of 1 never conflicts.

    Raises:
        RefusedError: ``bad-reference-scale``: a value is not a positive integer, where upstream takes 1 and renders
            plausibly and wrongly. ``reference-scale-conflict``: two files state different scales.
    """
    factor, stated_in = 1, None
    for file in files:
        value = _positive(file, name)
        if stated_in and value not in (1, factor):
            raise RefusedError(
                f"metadata {name} conflicts: {factor} in {printable(stated_in.path)}, {value} in "
                f"{printable(file.path)}, shards of one adapter",
                code="reference-scale-conflict",
            )
        if value != 1:
            factor, stated_in = value, file
    return factor


def _positive(file: TensorFile, name: str) -> int:
    value = file.metadata.get(name, "1")
    if not _POSITIVE.fullmatch(value):
        raise RefusedError(
            f"{printable(file.path)}: metadata {name} is '{printable(value)}', not a positive integer",
            code="bad-reference-scale",
        )
    return int(value)


def alpha_notes(metadata: Mapping[str, str], pairs: Sequence[LowRank], adapter: Path) -> tuple[str, ...]:
    """What to tell a user whose adapter states an alpha in metadata only, where it is not applied.

    An alpha equal to the rank asks for nothing and gets no note. The rank is the largest that a pair has: extracted
    adapters cut it down where a side of the weight is smaller.
    """
    bare = [pair for pair in pairs if pair.alpha is None]
    if not bare:
        return ()
    notes = []
    if len(bare) < len(pairs):
        notes.append(f"{len(bare)} of {len(pairs)} pairs hold no .alpha and are fused by strength alone")
    packed = _unpacked(metadata.get(PACKED, "{}"))
    if packed is None:
        notes.append(f"metadata {PACKED} is no JSON object: fused by strength alone, whatever alpha it means")
    largest = max(pair.rank for pair in bare)
    stated = (stated for stated in (*_plain(metadata), *_packed(packed or {})) if not stated.asks_nothing_of(largest))
    for alpha in itertools.islice(stated, 1):  # one is enough to know, and JSON can state any number
        notes.append(
            f"metadata says {alpha}, the pairs' largest rank is {largest}, with no .alpha tensors: fused by strength "
            "alone"
        )
    return tuple(f"{printable(adapter)}: {note}" for note in notes)


class _Stated(NamedTuple):
    """An alpha that metadata states, under ``name``, and the rank that it states with it."""

    name: str
    alpha: object
    rank: object | None

    def __str__(self) -> str:
        at = "" if self.rank is None else f" at rank {printable(self.rank)}"
        return f"{printable(self.name)} {printable(self.alpha)}{at}"

    def asks_nothing_of(self, rank: int) -> bool:
        return all(_is_number(value, rank) for value in (self.alpha, self.rank) if value is not None)


def _plain(metadata: Mapping[str, str]) -> Iterator[_Stated]:
    for alpha, rank in ALPHA_KEYS.items():
        if alpha in metadata:
            yield _Stated(alpha, metadata[alpha], metadata.get(rank))


def _packed(packed: Mapping[str, object]) -> Iterator[_Stated]:
    """The alphas in diffusers' JSON, one per component: ``lora_alpha`` and ``r``, each after its component's name."""
    for name, alpha in packed.items():
        component, dot, last = name.rpartition(".")
        if last == PACKED_ALPHA and alpha is not None:
            yield _Stated(f"{PACKED} {name}", alpha, packed.get(f"{component}{dot}{PACKED_RANK}"))


def _unpacked(text: str) -> dict[str, object] | None:
    if len(text) > _MOST_PACKED:
        return None
    try:
        packed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return packed if isinstance(packed, dict) else None


def _is_number(value: object, number: int) -> bool:
    try:
        return float(str(value)) == number
    except ValueError:
        return False
