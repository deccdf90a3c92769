"""Which tensors of the base each delta of an adapter enters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn, get_args

from ltx2c.adapters import Adapter, Delta
from ltx2c.adapters import keys as adapter_keys
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.files.url import AnyPath
from ltx2c.layouts import ADVICE, foreign_modules
from ltx2c.plan.models import other_model
from ltx2c.plan.nearest import nearest_name
from ltx2c.plan.targets import Place, Targets

OnUnmatched = Literal["error", "warn"]

# How many unmatched keys a refusal names.
_NAMED = 3


def check_on_unmatched(given: str) -> None:
    """Refuse anything but the two choices: taken for the other one, a misspelt ``"error"`` would drop deltas."""
    if given not in get_args(OnUnmatched):
        raise RefusedError(
            f"unmatched is one of {', '.join(get_args(OnUnmatched))}, not {printable(given)}", code="bad-unmatched"
        )


@dataclass(frozen=True)
class UnmatchedKey:
    """An adapter's key that no tensor of the base fits, left out because the caller asked to go on without it.

    Of a delta whose module the base does not have, or of a kind that is not read.
    """

    adapter: AnyPath
    key: str


class Placed(NamedTuple):
    """One delta, or some of its rows, and where it goes."""

    delta: Delta
    place: Place


@dataclass(frozen=True)
class Matches:
    """One adapter against one base.

    Attributes:
        placed: target key -> the deltas that enter it, in fusion order.
        unmatched: keys that no tensor of the base fits, in the file's order, each with the name that its target would
            have.
        matched: how many of the adapter's deltas have a target.
        notes: what a user should be told of how they were found.
    """

    placed: dict[str, list[Placed]] = field(default_factory=dict)
    unmatched: dict[str, str] = field(default_factory=dict)
    matched: int = 0
    notes: tuple[str, ...] = ()


def match_deltas(base: Checkpoint, adapter: Adapter, on_unmatched: OnUnmatched) -> Matches:
    """Find the targets of every delta of ``adapter``.

    Raises:
        RefusedError: no delta has a target; a key has none and ``on_unmatched`` is ``"error"``; a delta has two, or
            shares one with another module's.
    """
    matches = find_targets(base, adapter)
    if matches.unmatched and (not matches.matched or on_unmatched == "error"):
        _refuse_unmatched(base, adapter, matches)
    for key, placed in matches.placed.items():
        _check_one_module(key, placed)
    return matches


def check_fits(base: Checkpoint, adapter: Adapter, matches: Matches, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse (``shape-mismatch``) a delta that does not fit its target. ``shapes``: of the targets' values, by key."""
    wrong = {
        one: key for key, placed in matches.placed.items() for one in placed if not _fits(one, shapes[key], matches)
    }
    for one, key in wrong.items():
        keys = " and ".join(printable(tensor.key) for tensor in reversed(one.delta.tensors[:2]))
        count = f" ({len(wrong)} of {len(adapter.deltas)} deltas do not fit)" if len(wrong) > 1 else ""
        raise RefusedError(
            f"{printable(one.delta.adapter)}: the delta of {keys} is {list(one.delta.shape)}, the weight "
            f"{printable(key)} in {printable(base.path)} is {list(shapes[key])}{count}"
            f"{_transposed(one.delta, shapes[key]) or other_model(base, adapter, len(wrong))}",
            code="shape-mismatch",
        )
    for key, placed in matches.placed.items():
        for magnitude in (one.delta.magnitude for one in placed):
            if magnitude is not None and not magnitude.fits(shapes[key]):
                raise RefusedError(
                    f"{printable(adapter.path)}: the magnitude {printable(magnitude.tensor.key)} is "
                    f"{list(magnitude.tensor.shape)}, the weight {printable(key)} in {printable(base.path)} is "
                    f"{list(shapes[key])}",
                    code="shape-mismatch",
                )


def _transposed(delta: Delta, shape: tuple[int, ...]) -> str:
    if len(shape) == 2 and delta.fits(shape[::-1]):
        return "; it is stored transposed, [in, out], and ltx2c fuses weights [out, in]"
    return ""


def find_targets(base: Checkpoint, adapter: Adapter) -> Matches:
    """Where every delta of ``adapter`` would go, and the keys that would be left; whether shapes fit is not asked.

    Raises:
        RefusedError: ``ambiguous-weight``: a name is of several targets.
    """
    targets = targets_of(base)
    matches = Matches()
    matched: dict[Delta, bool] = {}
    renamed = 0
    for delta in adapter.deltas:
        found = targets.find(delta)
        if found.candidates:
            _refuse_ambiguous(base, delta, found.candidates)
        matched[delta] = bool(found.places)
        renamed += found.renamed
        for place in found.places:
            matches.placed.setdefault(place.key, []).append(Placed(delta, place))
    unmatched = dict(_unmatched(adapter, matched))
    note = (
        f"{printable(adapter.path)}: {renamed} modules bear LTX-2's other names than {printable(base.path)}'s: mapped"
    )
    return Matches(matches.placed, unmatched, sum(matched.values()), (note,) if renamed else ())


def targets_of(base: Checkpoint) -> Targets:
    """The base's tensors by all their names."""
    return Targets({key: tensor.shape for key, tensor in base.tensors.items()})


def _unmatched(adapter: Adapter, matched: dict[Delta, bool]) -> Iterator[tuple[str, str]]:
    """Keys of deltas without a target, with all that belongs to a module of which nothing matches; then unread ones."""
    modules = {delta.module for delta, has_target in matched.items() if has_target}
    for delta, has_target in matched.items():
        if not has_target:
            whole = delta.module not in modules
            keys = adapter.keys[delta.module] if whole else [tensor.key for tensor in delta.tensors]
            yield from ((key, f"{delta.module}.{delta.target}") for key in keys)
    yield from ((key, key) for key in adapter.unread)


def _refuse_ambiguous(base: Checkpoint, delta: Delta, candidates: tuple[str, ...]) -> NoReturn:
    raise RefusedError(
        f"{printable(delta.adapter)}: {printable(delta.tensors[0].key)} fits several tensors of "
        f"{printable(base.path)}: {' and '.join(map(printable, candidates))}",
        code="ambiguous-weight",
    )


def _check_one_module(key: str, placed: list[Placed]) -> None:
    """Refuse two modules for the same rows of one target."""
    for index, one in enumerate(placed):
        for other in placed[:index]:
            if one.delta.module != other.delta.module and _overlap(one, other):
                raise RefusedError(
                    f"{printable(one.delta.adapter)}: {printable(other.delta.tensors[0].key)} and "
                    f"{printable(one.delta.tensors[0].key)} are both for {printable(key)}",
                    code="duplicate-target",
                )


def _overlap(one: Placed, other: Placed) -> bool:
    (begin, end), (other_begin, other_end) = _rows(one), _rows(other)
    return begin < other_end and other_begin < end


def _rows(placed: Placed) -> tuple[int, int]:
    """The rows of the target that it enters."""
    begin, end = placed.place.rows or (0, placed.delta.shape[0] if placed.delta.shape else 1)
    return placed.place.at, placed.place.at + end - begin


def _fits(placed: Placed, shape: tuple[int, ...], matches: Matches) -> bool:
    delta, place = placed
    if place.rows is None:
        return delta.fits(shape)
    if not shape or not delta.shape or math.prod(delta.shape[1:]) != math.prod(shape[1:]):
        return False
    begin, end = _rows(placed)
    if end - begin == shape[0]:  # its share of a fused projection's rows
        siblings = (one.place for placed in matches.placed.values() for one in placed if one.delta is delta)
        return max(sibling.rows[1] for sibling in siblings if sibling.rows) == delta.shape[0]
    return end <= shape[0] and shape[0] % (end - begin) == 0 and begin % (end - begin) == 0  # one of several alike


def _refuse_unmatched(base: Checkpoint, adapter: Adapter, matches: Matches) -> NoReturn:
    keys = list(matches.unmatched)
    where, there = printable(adapter.path), printable(base.path)
    of = f"{matches.matched} of {len(adapter.deltas)} deltas matched"
    first = ", ".join(map(printable, keys[:_NAMED])) + (" ..." if len(keys) > _NAMED else "")
    _refuse_foreign(base, matches.unmatched)
    nearest = _nearest(base, matches.unmatched[keys[0]])
    if not matches.matched:
        raise RefusedError(
            f"{where}: not an adapter for {there}: {of}; {first} ({len(keys)} keys) fit no tensor there, {nearest}"
            f"{other_model(base, adapter, len(adapter.deltas))}",
            code="no-pair-matches",
            keys=tuple(keys),
        )
    looks = f"it looks like {adapter_keys.looks_like(keys[0])}, " if keys[0] in adapter.unread else ""
    raise RefusedError(
        f"{where}: {first} ({len(keys)} keys) fit no tensor in {there}, {looks}{nearest}; {of}"
        f"{other_model(base, adapter, len(adapter.deltas) - matches.matched)}; --unmatched warn goes on with those",
        code="unmatched-key",
        keys=tuple(keys),
    )


def _refuse_foreign(base: Checkpoint, unmatched: Mapping[str, str]) -> None:
    """Where a module has no ``.weight`` because it is quantised in a way that stores it under another name: say so."""
    foreign = {
        adapter_keys.without_prefix(module): (module, kind) for module, kind in foreign_modules(base.tensors).items()
    }
    if not foreign:
        return
    for name in unmatched.values():
        module, kind = foreign.get(adapter_keys.without_prefix(name).removesuffix(".weight"), ("", ""))
        if module:
            raise RefusedError(
                f"{printable(base.path)}: {printable(module)} is {kind}, and there is no rule to fuse that: {ADVICE}",
                code="no-fuse-rule",
            )


def _nearest(base: Checkpoint, name: str) -> str:
    nearest = nearest_name(name, base.tensors)
    return f"nearest is {printable(nearest)}" if nearest else "which holds no tensor"
