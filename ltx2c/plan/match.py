"""Which weight of the base each pair of an adapter belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args

from ltx2c.adapters import Adapter, LowRank
from ltx2c.adapters import keys as adapter_keys
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.plan.nearest import nearest_name

OnUnmatched = Literal["error", "warn"]


def check_on_unmatched(given: str) -> None:
    """Refuse anything but the two choices: taken for the other one, a misspelt ``"error"`` would drop pairs."""
    if given not in get_args(OnUnmatched):
        raise RefusedError(
            f"unmatched is one of {', '.join(get_args(OnUnmatched))}, not {printable(given)}", code="bad-unmatched"
        )


@dataclass(frozen=True)
class UnmatchedKey:
    """An adapter's key with no home in the base, left out because the caller asked to go on without it.

    Either A's of a pair whose module the base does not have, or one of a kind that is not read.
    """

    adapter: Path
    key: str


class Matches(NamedTuple):
    """One adapter against one base: weight key -> its pair, and the keys with no home."""

    homes: dict[str, LowRank]
    unmatched: tuple[UnmatchedKey, ...]


def match_pairs(base: Checkpoint, adapter: Adapter, on_unmatched: OnUnmatched) -> Matches:
    """Find the home of every pair of ``adapter``.

    Raises:
        RefusedError: no pair has a home; a key has none and ``on_unmatched`` is ``"error"``; a pair has two homes, or
            shares one.
    """
    homes: dict[str, LowRank] = {}
    for pair in adapter.deltas:
        if found := adapter_keys.weight_keys(pair.module, base.tensors):
            _check_one_home(base, pair, found, homes)
            homes[found[0]] = pair
    homeless = homeless_keys(base, adapter)
    if homeless and (not homes or on_unmatched == "error"):
        _refuse_homeless(base, adapter, homeless, len(homes))
    return Matches(homes, tuple(UnmatchedKey(adapter.path, key) for key in homeless))


def homeless_keys(base: Checkpoint, adapter: Adapter) -> dict[str, str]:
    """Keys of ``adapter`` with no home in ``base``, each with the name that comes closest to what its home would be.

    A's of each pair whose module the base does not have, then those of kinds that are not read.
    """
    pairs = (pair for pair in adapter.deltas if not adapter_keys.weight_keys(pair.module, base.tensors))
    return {pair.a.key: f"{pair.module}.weight" for pair in pairs} | {key: key for key in adapter.unread}


def _check_one_home(base: Checkpoint, pair: LowRank, found: list[str], homes: dict[str, LowRank]) -> None:
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


def _refuse_homeless(base: Checkpoint, adapter: Adapter, homeless: dict[str, str], matched: int) -> NoReturn:
    key, name = next(iter(homeless.items()))
    where, there = printable(adapter.path), printable(base.path)
    of = f"{matched} of {len(adapter.deltas)} pairs matched"
    if not matched:
        raise RefusedError(
            f"{where}: not an adapter for {there}: {of}; {printable(key)} has no home there, {_nearest(base, name)}",
            code="no-pair-matches",
        )
    looks = f"it looks like {adapter_keys.looks_like(key)}, " if key in adapter.unread else ""
    raise RefusedError(
        f"{where}: {printable(key)} has no home in {there}, {looks}{_nearest(base, name)}; {of}; --unmatched warn goes "
        "on with those",
        code="unmatched-key",
    )


def _nearest(base: Checkpoint, name: str) -> str:
    nearest = nearest_name(name, base.tensors)
    return f"nearest is {printable(nearest)}" if nearest else "which holds no tensor"
