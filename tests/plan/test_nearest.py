from __future__ import annotations

import random

import pytest
from steps import steps

from ltx2c import inventory
from ltx2c.plan.nearest import nearest_name

KEYS = [key for key, _, _ in inventory.base_tensors()]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.diffusion_model.transformer_blocks.7.attn1.to_kk.weight", "transformer_blocks.7.attn1.to_k.weight"),
        ("transformer_blocks.11.ff.net.0.prj.weight", "transformer_blocks.11.ff.net.0.proj.weight"),
        ("diffusion_model.patchify.weight", "patchify_proj.weight"),
    ],
)
def test_a_misspelt_name_finds_what_was_meant(name: str, nearest: str) -> None:
    assert nearest_name(name, KEYS) == f"model.diffusion_model.{nearest}"


def test_among_no_names_none_is_nearest() -> None:
    assert nearest_name("a", []) is None


def test_of_equals_the_first_is_nearest() -> None:
    assert nearest_name("a.b", ["x", "a.c", "a.d"]) == "a.c"


@pytest.mark.parametrize("letter", ["a", ".", "a.", "ab", None], ids=["same", "dots", "parts", "alternating", "random"])
def test_of_an_endless_name_only_the_beginning_is_compared(letter: str | None) -> None:
    chance = random.Random(1)
    endless = [
        (letter or "".join(chance.choices("ab.", k=500))) * (10**6 // len(letter or "x" * 500)) for _ in range(3)
    ]
    assert steps(lambda: nearest_name(endless[0], [*KEYS, *endless])) < 500_000
    assert steps(lambda: nearest_name(KEYS[7] + "x", [*endless, *KEYS])) < 500_000
    assert nearest_name(endless[0], [*KEYS, *endless]) is not None
    assert nearest_name(KEYS[7] + "x", [*endless, *KEYS]) == KEYS[7]


def test_of_a_quarter_of_a_million_names_a_few_are_compared_letter_by_letter() -> None:
    names = [f"model.layers.{i % 61}.mlp.experts.{i // 61}.gate_proj.weight" for i in range(250_000)]
    name = "model.layers.5.mlp.experts.77.gate_prj.weight"
    assert steps(lambda: nearest_name(name, names)) < 6 * len(names)
    assert nearest_name(name, names) == names[77 * 61 + 5]
