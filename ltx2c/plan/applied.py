"""How a delta that has its target enters it, and what cannot enter one weight together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ltx2c.adapters import Delta
from ltx2c.errors import RefusedError, printable
from ltx2c.plan.match import Placed
from ltx2c.plan.plan import AppliedDelta
from ltx2c.plan.sources import DeltaRef, Source


def applied_delta(placed: Placed, source: Source, strength: float) -> AppliedDelta:
    """A placed delta at a user's strength.

    Raises:
        RefusedError: ``bad-strength``: the effective strength passes float32's range; ``whole-strength``: a tensor
            that replaces the base's, at a strength other than 1.
    """
    delta, place = placed
    effective = delta.effective_strength(strength)
    if not math.isfinite(effective):
        raise RefusedError(
            f"{printable(delta.adapter)}: {delta.strength_reason(strength)} of module {printable(delta.module)} is "
            "beyond float32",
            code="bad-strength",
        )
    if delta.replaces and strength != 1:
        raise RefusedError(
            f"{printable(delta.adapter)}: {printable(delta.tensors[0].key)} was trained whole and replaces the base's "
            f"{printable(place.key)}: that is possible at strength 1 alone, not at {strength}",
            code="whole-strength",
        )
    macs = delta.macs
    if place.rows is not None:
        macs = macs * (place.rows[1] - place.rows[0]) // delta.shape[0]
    magnitude = delta.magnitude
    return AppliedDelta(
        DeltaRef(source, delta.tensors[0].key, macs, delta.nbytes),
        effective,
        rows=place.rows,
        at=place.at,
        step=strength if magnitude and magnitude.scales_the_step else None,
        whole=magnitude is not None and magnitude.by_column,
    )


def check_together(key: str, together: Sequence[tuple[Delta, AppliedDelta]]) -> None:
    """Refuse what has no meaning in this order on one weight.

    Raises:
        RefusedError: ``delta-after-dora``: DoRA rescales the sum of weight and deltas, so nothing can follow it, and it
            takes the weight in whole; ``whole-and-delta``: a replaced tensor takes no delta.
    """
    for index, (delta, applied) in enumerate(together):
        if delta.magnitude is not None and (index < len(together) - 1 or applied.rows is not None or applied.at):
            after = together[min(index + 1, len(together) - 1)][0]
            raise RefusedError(
                f"{printable(delta.adapter)}: DoRA's {printable(delta.tensors[0].key)} rescales {printable(key)} as a "
                f"whole, and {printable(after.tensors[0].key)} of {printable(after.adapter)} would come after it; give "
                "the DoRA last, or fuse twice",
                code="delta-after-dora",
            )
        if delta.replaces and len(together) > 1:
            other = together[1 - index if index < 2 else 0][0]
            raise RefusedError(
                f"{printable(delta.adapter)}: {printable(delta.tensors[0].key)} replaces {printable(key)}, for which "
                f"{printable(other.adapter)} has a delta, {printable(other.tensors[0].key)}",
                code="whole-and-delta",
            )
