"""The pipelines' phases as a table: which adapters run in which phase, in fusion order, and at which strength.

Read from Lightricks/LTX-2's pipelines (commit 400fd31), whose file names the recipes bear. A recipe is bound to actual
adapter files with ``Recipe.named``, which enforces what the pipeline requires before any file is opened.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, TypeGuard

from ltx2c.errors import RefusedError, printable
from ltx2c.files.paths import input_path
from ltx2c.files.url import AnyPath
from ltx2c.strength import check_strength

Given = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]
"""An adapter as a caller gives it: its path, or its path and its strength."""

# A pair's second is none of these: two of them are two adapters.
_ADAPTER = (str, os.PathLike, tuple)

# The roles an adapter can have, as the command line's options call them.
USER, DISTILLED, DETAILING = "lora", "distilled-lora", "detailing-lora"


class Part(NamedTuple):
    """All adapters of one role, in the order given; ``strength`` replaces theirs where it is set."""

    role: str
    strength: float | None = None


class Arity(NamedTuple):
    """How many adapters a role takes; ``most`` is None where there is no limit."""

    least: int
    most: int | None

    def __str__(self) -> str:
        if self.most == 0:
            return "no"
        if self.most is None:
            return f"at least {self.least}"
        return f"exactly {self.most}" if self.least == self.most else f"at most {self.most}"

    def allows(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


ANY, SOME, ONE, OPTIONAL, NONE = Arity(0, None), Arity(1, None), Arity(1, 1), Arity(0, 1), Arity(0, 0)


class Pipeline(NamedTuple):
    """A row of the table.

    Attributes:
        phases: per phase, the parts that make its state.
        arity: what each role takes; a role that is absent takes none.
        aliases: other names for it.
        fixed: roles whose phase strength is the only one there is: an adapter given with another is refused. Where
            a phase strength is merely the pipeline's own, the given one is not used and a note says so.
    """

    phases: tuple[tuple[Part, ...], ...]
    arity: dict[str, Arity]
    aliases: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()


_USER, _D, _DETAIL = Part(USER), Part(DISTILLED), Part(DETAILING)
_TWO_STAGES = ((_USER,), (_USER, _D))
_USER_AND_D = {USER: ANY, DISTILLED: SOME}

PIPELINES: dict[str, Pipeline] = {
    "ti2vid_one_stage": Pipeline(((_USER,),), {USER: ANY}, ("one_stage",)),
    "t2a_one_stage": Pipeline(((_USER,),), {USER: ANY}),
    "ti2vid_two_stages": Pipeline(_TWO_STAGES, _USER_AND_D, ("ti2vid_two_stage",)),
    "ti2vid_two_stages_hq": Pipeline(
        ((_USER, Part(DISTILLED, 0.25)), (_USER, Part(DISTILLED, 0.5))),
        {USER: ANY, DISTILLED: ONE},
        ("res2s_two_stage",),
    ),
    "a2vid_two_stage": Pipeline(_TWO_STAGES, _USER_AND_D),
    "keyframe_interpolation": Pipeline(_TWO_STAGES, _USER_AND_D),
    # Later temporal rounds use phase 0's set again.
    "dfr": Pipeline(((_USER, _D), (_USER, _D, _DETAIL)), {**_USER_AND_D, DETAILING: OPTIONAL}),
    "distilled": Pipeline(((_USER,), (_USER,)), {USER: ANY}, ("distilled_two_stage",)),
    "ic_lora": Pipeline(((_USER,), ()), {USER: SOME}),
    "dubit": Pipeline(((_USER,), (_USER,)), {USER: ONE}),
    "hdr_ic_lora": Pipeline(((Part(USER, 1.0),), (Part(USER, 1.0),)), {USER: ONE}, fixed=frozenset({USER})),
    "retake": Pipeline(((_USER,),), {USER: ANY}),
}

_BY_NAME = {alias: name for name, pipeline in PIPELINES.items() for alias in (name, *pipeline.aliases)}


@dataclass(frozen=True)
class Phase:
    """One phase of a recipe: its name, and its state as adapter paths with strengths, in fusion order."""

    name: str
    state: tuple[tuple[AnyPath, float], ...]


@dataclass(frozen=True)
class Recipe:
    """A pipeline bound to adapters: pure data, no file is open.

    Attributes:
        name: upstream's name of the pipeline.
        phases: in the order a render goes through them.
        notes: what a user should be told.
    """

    name: str
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def named(
        cls,
        name: str,
        *,
        loras: Given | Sequence[Given] | None = None,
        distilled_lora: Given | Sequence[Given] | None = None,
        detailing_lora: Given | Sequence[Given] | None = None,
        distilled_strengths: Sequence[float] | None = None,
    ) -> Recipe:
        """Bind adapters to the roles of a pipeline.

        Args:
            name: a pipeline by upstream's name or an alias.
            loras: the user's adapters, also the IC or HDR adapter of the pipelines that take one: a path or
                ``(path, strength)``, or a sequence of such. The strength is 1.0 unless given.
            distilled_lora: the distilled adapter, likewise.
            detailing_lora: the detailing adapter, likewise.
            distilled_strengths: the distilled adapter's strength in each phase, for a pipeline that sets it by phase.

        Raises:
            RefusedError: unknown name, a role that lacks adapters or has too many, a strength that is no number or
                may not be chosen, something that is neither a path nor a path with its strength.
        """
        canonical = _canonical(name)
        given = {
            USER: _adapters(loras),
            DISTILLED: _adapters(distilled_lora),
            DETAILING: _adapters(detailing_lora),
        }
        pipeline = PIPELINES[canonical]
        _check_arity(canonical, pipeline, given)
        if distilled_strengths is not None:
            pipeline = _with_strengths(canonical, pipeline, distilled_strengths, given)
        notes = _unused_strengths(canonical, pipeline, given)
        states = (tuple(_state(parts, given)) for parts in pipeline.phases)
        return cls(canonical, tuple(Phase(f"phase{number}", state) for number, state in enumerate(states)), notes)

    @property
    def paths(self) -> tuple[AnyPath, ...]:
        """Every adapter file once, in order of first use."""
        return tuple(dict.fromkeys(path for phase in self.phases for path, _ in phase.state))

    def index(self, phase: SupportsIndex | str) -> int:
        """The index of a phase given by index (any integer type's, but no bool) or name.

        Raises:
            RefusedError: there is no such phase.
        """
        names = [one.name for one in self.phases]
        if isinstance(phase, str) and phase in names:
            return names.index(phase)
        if isinstance(phase, SupportsIndex) and not isinstance(phase, bool):
            with contextlib.suppress(TypeError):  # an array of several
                if 0 <= (number := operator.index(phase)) < len(names):
                    return number
        raise RefusedError(
            f"recipe {self.name} has no phase {printable(phase)}; it has {', '.join(names)}", code="unknown-phase"
        )


class _Adapter(NamedTuple):
    path: AnyPath
    strength: float
    chosen: bool  # the caller gave the strength


def _canonical(name: str) -> str:
    if name not in _BY_NAME:
        raise RefusedError(
            f"there is no recipe {printable(name)}; the recipes are {', '.join(PIPELINES)}", code="unknown-recipe"
        )
    return _BY_NAME[name]


def _adapters(given: Given | Sequence[Given] | None) -> list[_Adapter]:
    if given is None:
        return []
    if isinstance(given, (str, os.PathLike)) or not isinstance(given, Sequence):
        return [_adapter(given)]
    if _is_pair(given) and not isinstance(given[1], _ADAPTER):
        return [_adapter(given)]
    return [_adapter(one) for one in given]


def _adapter(given: object) -> _Adapter:
    if isinstance(given, (str, os.PathLike)):
        return _Adapter(input_path(given), 1.0, False)
    if _is_pair(given):
        path = input_path(given[0])
        return _Adapter(path, check_strength(given[1], path), True)
    raise RefusedError(
        f"an adapter is a path or (path, strength), not {printable(repr(given))}", code="bad-adapter-argument"
    )


def _is_pair(given: object) -> TypeGuard[tuple[str | os.PathLike[str], Any]]:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], (str, os.PathLike))


def _check_arity(name: str, pipeline: Pipeline, given: dict[str, list[_Adapter]]) -> None:
    wrong = [
        f"{arity} {role}, {len(adapters)} given"
        for role, adapters in given.items()
        if not (arity := pipeline.arity.get(role, NONE)).allows(len(adapters))
    ]
    if wrong:
        raise RefusedError(f"recipe {name} takes {'; '.join(wrong)}", code="recipe-arity")


def _own_strengths(pipeline: Pipeline, role: str) -> list[float]:
    """The strengths that the pipeline itself sets for ``role``, phase by phase; empty where the given ones count."""
    parts = itertools.chain.from_iterable(pipeline.phases)
    return [part.strength for part in parts if part.role == role and part.strength is not None]


def _with_strengths(
    name: str, pipeline: Pipeline, strengths: Sequence[float], given: dict[str, list[_Adapter]]
) -> Pipeline:
    """The pipeline with its own strengths of the distilled adapter replaced."""
    own = _own_strengths(pipeline, DISTILLED)
    if not own or len(strengths) != len(own):
        raise RefusedError(
            f"recipe {name} sets the strength of {DISTILLED} in {len(own)} phases, and {len(strengths)} "
            "distilled_strengths are given",
            code="phase-strengths",
        )
    chosen = iter([check_strength(strength, given[DISTILLED][0].path) for strength in strengths])
    phases = (
        tuple(part._replace(strength=next(chosen)) if part.role == DISTILLED else part for part in parts)
        for parts in pipeline.phases
    )
    return pipeline._replace(phases=tuple(phases))


def _unused_strengths(name: str, pipeline: Pipeline, given: dict[str, list[_Adapter]]) -> tuple[str, ...]:
    """Notes about given strengths that the pipeline's own replace; refused where the role's strength is fixed."""
    notes = []
    for role, adapters in given.items():
        own = _own_strengths(pipeline, role)
        for adapter in adapters:
            if not own or not adapter.chosen or set(own) == {adapter.strength}:
                continue
            what = f"{printable(adapter.path)}: strength {adapter.strength} of {role}"
            sets = f"recipe {name} sets {', '.join(map(str, own))} by phase"
            if role in pipeline.fixed:
                raise RefusedError(f"{what} is refused: {sets}, and no other", code="fixed-strength")
            notes.append(f"{what} is not used: {sets}")
    return tuple(notes)


def _state(parts: Sequence[Part], given: dict[str, list[_Adapter]]) -> Iterator[tuple[AnyPath, float]]:
    for part in parts:
        for adapter in given[part.role]:
            yield adapter.path, adapter.strength if part.strength is None else part.strength
