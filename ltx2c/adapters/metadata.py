"""What an adapter's ``__metadata__`` says that matters to a fuse."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ltx2c.adapters.config import PACKED, unpacked
from ltx2c.adapters.deltas import Delta, LowRank
from ltx2c.adapters.scaling import AlphaMode, Scaling
from ltx2c.errors import RefusedError, printable
from ltx2c.files import TensorFile
from ltx2c.files.url import AnyPath

DOWNSCALE = "reference_downscale_factor"
TEMPORAL_SCALE = "reference_temporal_scale_factor"

# Where writers put alpha and the rank it belongs to. Without ``.alpha`` tensors upstream fuses by strength alone.
ALPHA_KEYS = {"lora_alpha": "lora_rank", "ss_network_alpha": "ss_network_dim"}

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


def stated_scaling(metadata: Mapping[str, str], alpha: AlphaMode, rank: int) -> Scaling:
    """What metadata says of a delta of ``rank`` that states no alpha itself: nothing, unless ``alpha`` is ``"file"``.

    The first of ``ALPHA_KEYS`` that holds a number counts, over the delta's own rank.
    """
    if alpha != "file":
        return Scaling()
    for name in ALPHA_KEYS:
        value = _number(metadata.get(name))
        if value is not None:
            return Scaling(value, rank, False, f"metadata {name}")
    return Scaling()


def alpha_notes(
    metadata: Mapping[str, str], deltas: Sequence[Delta], adapter: AnyPath, alpha: AlphaMode
) -> tuple[str, ...]:
    """What to tell a user whose adapter states an alpha that is not applied.

    An alpha equal to the rank asks for nothing and gets no note. The rank is the largest that a pair has: extracted
    adapters cut it down where a side of the weight is smaller.
    """
    pairs = [delta for delta in deltas if isinstance(delta, LowRank)]
    bare = [pair for pair in pairs if pair.scaling.alpha is None]
    if not bare or alpha != "stated":
        return ()
    notes = []
    if len(bare) < len(pairs):
        notes.append(f"{len(bare)} of {len(pairs)} pairs hold no .alpha and are fused by strength alone")
    if unpacked(metadata.get(PACKED, "{}")) is None:
        notes.append(f"metadata {PACKED} is no JSON object: fused by strength alone, whatever alpha it means")
    largest = max(pair.rank for pair in bare)
    for stated in _plain(metadata):
        if not stated.asks_nothing_of(largest):
            notes.append(
                f"metadata says {stated}, the pairs' largest rank is {largest}, with no .alpha tensors: fused by "
                "strength alone; --alpha file applies it"
            )
            break
    return tuple(f"{printable(adapter)}: {note}" for note in notes)


class _Stated(NamedTuple):
    """An alpha that metadata states, under ``name``, and the rank that it states with it."""

    name: str
    alpha: str
    rank: str | None

    def __str__(self) -> str:
        at = "" if self.rank is None else f" at rank {printable(self.rank)}"
        return f"{printable(self.name)} {printable(self.alpha)}{at}"

    def asks_nothing_of(self, rank: int) -> bool:
        return all(_number(value) == rank for value in (self.alpha, self.rank) if value is not None)


def _plain(metadata: Mapping[str, str]) -> Iterator[_Stated]:
    for alpha, rank in ALPHA_KEYS.items():
        if alpha in metadata:
            yield _Stated(alpha, metadata[alpha], metadata.get(rank))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
