"""Which weight of the base each pair of an adapter belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from ltx2c.adapters import Adapter, Pair
from ltx2c.adapters import keys as adapter_keys
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.plan.nearest import nearest_name
from ltx2c.rules import rule_for

OnUnmatched = Literal["error", "warn"]


@dataclass(frozen=True)
class UnmatchedPair:
    """A pair whose module the base does not have, left out because the caller asked to go on without it."""

    adapter: Path
    key: str


class Matches(NamedTuple):
    """One adapter against one base: weight key -> its pair, and the pairs with no home."""

    homes: dict[str, Pair]
    unmatched: tuple[UnmatchedPair, ...]


def match_pairs(base: Checkpoint, adapter: Adapter, on_unmatched: OnUnmatched) -> Matches:
    """Find the home of every pair of ``adapter``.

    Raises:
        RefusedError: no pair has a home; one has none and ``on_unmatched`` is ``"error"``; one has two, or shares its
            home; a delta does not fit its weight, or there is no rule to fuse that weight.
    """
    homes: dict[str, Pair] = {}
    homeless: list[Pair] = []
    for pair in adapter.pairs:
        found = adapter_keys.weight_keys(pair.module, base.tensors)
        if not found:
            homeless.append(pair)
            continue
        _check_one_home(base, pair, found, homes)
        homes[found[0]] = pair
    if not homes or (homeless and on_unmatched == "error"):
        _refuse_homeless(base, adapter, homeless[0], len(homes))
    for key, pair in homes.items():
        _check_fits(base, key, pair)
    return Matches(homes, tuple(UnmatchedPair(adapter.path, pair.a.key) for pair in homeless))


def _check_one_home(base: Checkpoint, pair: Pair, found: list[str], homes: dict[str, Pair]) -> None:
    where = printable(pair.adapter)
    if len(found) > 1:
        raise RefusedError(
            f"{where}: {printable(pair.a.key)} fits two weights of {printable(base.path)}: "
            f"{' and '.join(map(printable, found))}",
            code="ambiguous-weight",
        )
    if found[0] in homes:
        raise RefusedError(
            f"{where}: {printable(homes[found[0]].a.key)} and {printable(pair.a.key)} are both for the one weight "
            f"{printable(found[0])}",
            code="doubled-factor",
        )


def _refuse_homeless(base: Checkpoint, adapter: Adapter, pair: Pair, matched: int) -> NoReturn:
    where, key = printable(adapter.path), printable(pair.a.key)
    nearest = nearest_name(f"{pair.module}.weight", base.tensors)
    hint = f"nearest is {printable(nearest)}" if nearest else "which holds no tensor"
    of = f"{matched} of {len(adapter.pairs)} pairs matched"
    if not matched:
        raise RefusedError(
            f"{where}: not an adapter for {printable(base.path)}: {of}; {key} has no home there, {hint}",
            code="no-pair-matches",
        )
    raise RefusedError(
        f"{where}: {key} has no home in {printable(base.path)}, {hint}; {of}; unmatched=warn goes on with those",
        code="unmatched-key",
    )


def _check_fits(base: Checkpoint, key: str, pair: Pair) -> None:
    weight = base.tensors[key]
    if weight.shape != pair.delta_shape:
        raise RefusedError(
            f"{printable(pair.adapter)}: the delta of {printable(pair.b.key)} and {printable(pair.a.key)} is "
            f"{list(pair.delta_shape)}, the weight {printable(key)} in {printable(base.path)} is {list(weight.shape)}",
            code="shape-mismatch",
        )
    rule_for(weight, base.tensors)
