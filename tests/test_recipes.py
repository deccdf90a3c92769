"""The recipes: each row of the table by hand, and what each pipeline requires."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from ltx2c import Recipe
from ltx2c.recipes import PIPELINES

# The table once more, written by hand for one set of adapters: u and v are the user's, d distilled, t detailing.
USER = {"loras": [("u", 0.5), "v"]}
D = {"distilled_lora": ("d", 0.75)}
U = [("u", 0.5), ("v", 1.0)]
EXPECTED = {
    "ti2vid_one_stage": (USER, [U]),
    "t2a_one_stage": (USER, [U]),
    "ti2vid_two_stages": ({**USER, **D}, [U, [*U, ("d", 0.75)]]),
    "ti2vid_two_stages_hq": ({**USER, "distilled_lora": "d"}, [[*U, ("d", 0.25)], [*U, ("d", 0.5)]]),
    "a2vid_two_stage": ({**USER, **D}, [U, [*U, ("d", 0.75)]]),
    "keyframe_interpolation": ({**USER, **D}, [U, [*U, ("d", 0.75)]]),
    "dfr": ({**USER, **D, "detailing_lora": "t"}, [[*U, ("d", 0.75)], [*U, ("d", 0.75), ("t", 1.0)]]),
    "distilled": (USER, [U, U]),
    "ic_lora": (USER, [U, []]),
    "dubit": ({"loras": [("u", 0.5)]}, [[("u", 0.5)], [("u", 0.5)]]),
    "hdr_ic_lora": ({"loras": ["u"]}, [[("u", 1.0)], [("u", 1.0)]]),
    "retake": (USER, [U]),
}


def states(recipe: Recipe) -> list[list[tuple[str, float]]]:
    return [[(str(path), strength) for path, strength in phase.state] for phase in recipe.phases]


def test_there_are_twelve() -> None:
    assert set(PIPELINES) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_phases(name: str) -> None:
    given, expected = EXPECTED[name]
    recipe = Recipe.named(name, **given)
    assert states(recipe) == expected
    assert recipe.name == name
    assert [phase.name for phase in recipe.phases] == ["phase0", "phase1"][: len(expected)]
    assert recipe.notes == ()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("one_stage", "ti2vid_one_stage"),
        ("ti2vid_two_stage", "ti2vid_two_stages"),
        ("res2s_two_stage", "ti2vid_two_stages_hq"),
        ("distilled_two_stage", "distilled"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    given, _ = EXPECTED[name]
    assert Recipe.named(alias, **given) == Recipe.named(name, **given)


def test_the_distilled_adapter_is_repeatable() -> None:
    recipe = Recipe.named("a2vid_two_stage", distilled_lora=["d", ("e", 0.5)])
    assert states(recipe) == [[], [("d", 1.0), ("e", 0.5)]]


def test_detailing_is_optional() -> None:
    assert states(Recipe.named("dfr", distilled_lora="d")) == [[("d", 1.0)], [("d", 1.0)]]


def test_paths_are_listed_once_in_order_of_first_use() -> None:
    given, _ = EXPECTED["ti2vid_two_stages_hq"]
    assert Recipe.named("ti2vid_two_stages_hq", **given).paths == (Path("u"), Path("v"), Path("d"))


class TestArity:
    @pytest.mark.parametrize("name", ["ti2vid_two_stages", "ti2vid_two_stages_hq", "a2vid_two_stage", "dfr"])
    def test_distilled_is_missing(self, name: str) -> None:
        with refused("recipe-arity", name, "1 distilled-lora, 0 given"):
            Recipe.named(name, loras=["u"])

    @pytest.mark.parametrize("name", ["ic_lora", "dubit", "hdr_ic_lora"])
    def test_user_adapter_is_missing(self, name: str) -> None:
        with refused("recipe-arity", name, "1 lora, 0 given"):
            Recipe.named(name)

    @pytest.mark.parametrize("name", ["dubit", "hdr_ic_lora"])
    def test_one_user_adapter_too_many(self, name: str) -> None:
        with refused("recipe-arity", name, "exactly 1 lora, 2 given"):
            Recipe.named(name, loras=["u", "v"])

    @pytest.mark.parametrize(
        "name",
        ["ti2vid_one_stage", "t2a_one_stage", "distilled", "ic_lora", "dubit", "hdr_ic_lora", "retake"],
    )
    def test_distilled_is_surplus(self, name: str) -> None:
        with refused("recipe-arity", name, "no distilled-lora, 1 given"):
            Recipe.named(name, loras=["u"], distilled_lora="d")

    @pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"dfr"}))
    def test_detailing_is_surplus(self, name: str) -> None:
        given, _ = EXPECTED[name]
        with refused("recipe-arity", name, "no detailing-lora, 1 given"):
            Recipe.named(name, **given, detailing_lora="t")

    def test_hq_takes_one_distilled(self) -> None:
        with refused("recipe-arity", "ti2vid_two_stages_hq", "exactly 1 distilled-lora, 2 given"):
            Recipe.named("res2s_two_stage", distilled_lora=["d", "e"])

    def test_dfr_takes_one_detailing(self) -> None:
        with refused("recipe-arity", "at most 1 detailing-lora, 2 given"):
            Recipe.named("dfr", distilled_lora="d", detailing_lora=["t", "s"])

    def test_everything_wrong_is_said_at_once(self) -> None:
        with refused("recipe-arity", "exactly 1 lora, 0 given; no distilled-lora, 1 given; no detailing-lora, 1 given"):
            Recipe.named("dubit", distilled_lora="d", detailing_lora="t")


class TestStrengths:
    def test_hq_phase_strengths_are_options(self) -> None:
        recipe = Recipe.named("ti2vid_two_stages_hq", distilled_lora="d", distilled_strengths=[0.1, 0.9])
        assert states(recipe) == [[("d", 0.1)], [("d", 0.9)]]

    def test_hq_does_not_use_the_adapters_own_and_says_so(self) -> None:
        recipe = Recipe.named("ti2vid_two_stages_hq", distilled_lora=("d", 0.8))
        assert states(recipe) == [[("d", 0.25)], [("d", 0.5)]]
        (note,) = recipe.notes
        assert "0.8" in note and "0.25, 0.5" in note

    @pytest.mark.parametrize("strengths", [[], [0.5], [0.1, 0.2, 0.3]])
    def test_hq_takes_one_strength_per_phase(self, strengths: list[float]) -> None:
        with refused("phase-strengths", "in 2 phases", f"{len(strengths)} distilled_strengths"):
            Recipe.named("ti2vid_two_stages_hq", distilled_lora="d", distilled_strengths=strengths)

    @pytest.mark.parametrize("strengths", [[], [0.5]])
    def test_others_take_none(self, strengths: list[float]) -> None:
        with refused("phase-strengths", "a2vid_two_stage", "in 0 phases"):
            Recipe.named("a2vid_two_stage", distilled_lora="d", distilled_strengths=strengths)

    def test_hdr_is_fixed(self) -> None:
        assert states(Recipe.named("hdr_ic_lora", loras=[("u", 1.0)]))[0] == [("u", 1.0)]
        with refused("fixed-strength", "u: strength 0.5 of lora is refused", "1.0"):
            Recipe.named("hdr_ic_lora", loras=[("u", 0.5)])

    @pytest.mark.parametrize("strength", [math.nan, math.inf, "0.5"])
    def test_must_be_numbers(self, strength: float) -> None:
        with refused("bad-strength", strength):
            Recipe.named("retake", loras=[("u", strength)])
        with refused("bad-strength", strength):
            Recipe.named("ti2vid_two_stages_hq", distilled_lora="d", distilled_strengths=[0.5, strength])


def test_unknown_recipe() -> None:
    with refused("unknown-recipe", "two_stage_deluxe", *PIPELINES):
        Recipe.named("two_stage_deluxe")


@pytest.mark.parametrize("phase", [2, -1, "phase2", "", 0.0, None, True, np.int64(2), np.array([0, 1])])
def test_unknown_phase(phase: object) -> None:
    with refused("unknown-phase", "distilled", f"no phase {phase}", "phase0, phase1"):
        Recipe.named("distilled").index(phase)


def test_phases_by_index_and_name() -> None:
    recipe = Recipe.named("distilled")
    assert [recipe.index(phase) for phase in (0, 1, "phase0", "phase1")] == [0, 1, 0, 1]
    assert [recipe.index(phase) for phase in (np.int64(0), np.uint8(1))] == [0, 1]


@pytest.mark.parametrize(
    "loras",
    [
        (("u", 0.5), ("v", 1.0)),
        (("u", 0.5), "v"),
        [("u", 0.5), Path("v")],
        deque([("u", 0.5), "v"]),
    ],
)
def test_any_sequence_of_adapters(loras: Sequence[Any]) -> None:
    assert states(Recipe.named("retake", loras=loras)) == [U]


@pytest.mark.parametrize("loras", [("u", "v"), ["u", "v"], (Path("u"), ("v", 1))])
def test_two_paths_are_two_adapters(loras: Sequence[Any]) -> None:
    assert states(Recipe.named("retake", loras=loras)) == [[("u", 1.0), ("v", 1.0)]]


@pytest.mark.parametrize(
    "loras", [7, ["u", 0.5], [("u",)], (("u", 0.5, 1),), ("u", 0.5, 1), [None], b"u", [b"u"], {"u": 1}]
)
def test_what_is_no_adapter_is_refused(loras: Any) -> None:
    with refused("bad-adapter-argument", "an adapter is a path or (path, strength), not "):
        Recipe.named("retake", loras=loras)
