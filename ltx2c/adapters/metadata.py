"""What an adapter's ``__metadata__`` says that matters to a fuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ltx2c.adapters.pair import Pair
from ltx2c.errors import RefusedError, printable
from ltx2c.files import TensorFile

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


def alpha_notes(metadata: Mapping[str, str], pairs: Sequence[Pair], adapter: Path) -> tuple[str, ...]:
    """What to tell a user whose adapter states an alpha in metadata only, where it is not applied.

    An alpha equal to its rank asks for nothing and gets no note.
    """
    bare = [pair for pair in pairs if pair.alpha is None]
    if not bare:
        return ()
    notes = []
    if len(bare) < len(pairs):
        notes.append(f"{len(bare)} of {len(pairs)} pairs hold no .alpha and are fused by strength alone")
    for alpha_key, rank_key in ALPHA_KEYS.items():
        alpha = metadata.get(alpha_key)
        rank = metadata.get(rank_key, str(max(pair.rank for pair in bare)))
        if alpha is not None and not _same_number(alpha, rank):
            notes.append(
                f"metadata says {alpha_key} {printable(alpha)} at rank {printable(rank)}, with no .alpha tensors: "
                "fused by strength alone"
            )
    return tuple(f"{printable(adapter)}: {note}" for note in notes)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False
