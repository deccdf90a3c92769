"""The pipelines' phases as a table: which adapters run in which phase, in fusion order, and at which strength.

Read from Lightricks/LTX-2's pipelines (commit 400fd31), whose file names the recipes bear. A recipe is bound to actual
adapter files with ``Recipe.named``, which enforces what the pipeline requires before any file is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ltx2c.errors import RefusedError, printable

Given = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]
"""An adapter as a caller gives it: its path, or its path and its strength. The strength is 1.0 unless given."""

USER, DISTILLED, DETAILING = "loras", "distilled_lora", "detailing_lora"


class Part(NamedTuple):
    """All adapters of one role, in the order given; ``strength`` replaces theirs where it is set."""

    role: str
    strength: float | None = None


class Arity(NamedTuple):
    """How many adapters a role takes; ``most`` is None where there is no limit."""

    least: int
    most: int | None

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return f"exactly {self.least}" if self.least == self.most else f"at most {self.most}"


ANY, SOME, ONE, OPTIONAL, NONE = Arity(0, None), Arity(1, None), Arity(1, 1), Arity(0, 1), Arity(0, 0)


class Pipeline(NamedTuple):
    """A row of the table.

    Attributes:
        phases: per phase, the parts that make its state.
        arity: what each role takes; a role that is absent takes none.
        aliases: other names for it.
        fixed: the role whose strength may not be given as anything but the phases' own, if any.
    """

    phases: tuple[tuple[Part, ...], ...]
    arity: dict[str, Arity]
    aliases: tuple[str, ...] = ()


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
    "hdr_ic_lora": Pipeline(((Part(USER, 1.0),), (Part(USER, 1.0),)), {USER: ONE}),
    "retake": Pipeline(((_USER,),), {USER: ANY}),
}
