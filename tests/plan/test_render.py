"""plan_render: counts against a table derived by hand, costs against sums by hand, and the naive order."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_model import CASES, IN, OUT, TENSORS, Case, ids, make, recipe_in, schedule
from refusals import refused
from tensor_files import pair, write

from ltx2c import Recipe, plan_render
from ltx2c.plan.cost import Cost, Rates
from ltx2c.recipes import PIPELINES, Phase

RATES = Rates(flops=1e9, bytes=1e6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make(folder)
    return folder


def test_every_recipe_has_a_case() -> None:
    assert {case.name for case in CASES} == set(PIPELINES)


@pytest.mark.parametrize("terminal", ["last", "first", "base"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_counts_over_three_renders(folder: Path, case: Case, terminal: str) -> None:
    plan = plan_render(
        folder / "base.safetensors", recipe_in(folder, case.name, **case.given), 3, terminal, rates=RATES
    )
    assert [(step.render, step.name, (step.fused, step.restored)) for step in plan.steps] == schedule(case, 3, terminal)
    assert all(step.kept + step.restored + step.fused == TENSORS for step in plan.steps)
    assert not any(step.switched or step.unfused for step in plan.steps)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_counts_of_the_naive_order(folder: Path, case: Case) -> None:
    plan = plan_render(folder / "base.safetensors", recipe_in(folder, case.name, **case.given), 3, rates=RATES)
    load, first, there, back = case.naive
    binds = [step for step in plan.naive if step.name != "load"]
    ways = [first, there, back, there, back, there] if there else [first, back, back]
    assert plan.naive[0].fused == load and plan.naive[0].restored == TENSORS - load
    assert [(step.unfused, step.fused) for step in binds] == ways


def test_a_first_render_is_one_pass_where_the_naive_order_makes_three(folder: Path) -> None:
    recipe = recipe_in(folder, "a2vid_two_stage", distilled=["d"])
    plan = plan_render(folder / "base.safetensors", recipe, rates=RATES)
    assert sum(step.fused for step in plan.steps) == 3
    assert sum(step.fused + step.unfused for step in plan.naive) == 3 * 3
    assert Cost.total(step.cost for step in plan.naive).macs == 3 * Cost.total(step.cost for step in plan.steps).macs


def test_costs(folder: Path) -> None:
    recipe = recipe_in(folder, "ti2vid_two_stages", loras=["v"], distilled=["d"])
    plan = plan_render(folder / "base.safetensors", recipe, 2, rates=RATES)
    load, _, there, _, back, *_ = plan.steps
    one = OUT * IN
    rest = 3 * 5 * 4 + OUT * 2
    # v is of rank 3, d of rank 4; factors are bf16; e is F32, f is F16.
    v, d = 3 * (OUT + IN) * 2, 4 * (OUT + IN) * 2
    assert load.cost == Cost(2 * 3 * one, rest + 12 * one + 2 * one - 0 * one + 2 * v, rest + 14 * one)
    assert there.cost == Cost((3 + 3 * 4) * one, (2 + 2 + 4) * one + v + 3 * d, (2 + 2 + 4) * one)
    assert back.cost == Cost(3 * one, (2 + 2 + 4) * one + v, (2 + 2 + 4) * one)
    assert RATES.seconds(there.cost) == pytest.approx(2 * 15 * one / 1e9 + (8 * one + v + 3 * d) / 1e6)
    assert plan.seconds == pytest.approx(sum(RATES.seconds(step.cost) for step in plan.steps))


def test_naive_costs(folder: Path) -> None:
    recipe = recipe_in(folder, "ti2vid_two_stages", loras=["v"], distilled=["d"])
    plan = plan_render(folder / "base.safetensors", recipe, rates=RATES)
    load, to_first, to_second = plan.naive
    one, d = OUT * IN, 4 * (OUT + IN) * 2
    whole = 3 * 5 * 4 + OUT * 2 + 14 * one
    assert load.cost == Cost((2 * 3 + 3 * 4) * one, whole + 2 * 3 * (OUT + IN) * 2 + 3 * d, whole)
    assert to_first.cost == to_second.cost == Cost(3 * 4 * one, 3 * d, 8 * one)


class TestSecondCopy:
    def test_replaces_arithmetic_by_switches(self, folder: Path) -> None:
        recipe = recipe_in(folder, "ti2vid_two_stages", loras=["u", "v"], distilled=["d"])
        plan = plan_render(folder / "base.safetensors", recipe, 2, memory_budget=1 << 30, rates=RATES)
        assert [(step.name, step.fused, step.restored, step.switched) for step in plan.steps] == [
            ("load", 3, 5, 0),
            ("phase0", 0, 0, 0),
            ("phase1", 3, 0, 0),
            ("terminal", 0, 0, 0),
            ("phase0", 0, 0, 3),
            ("phase1", 0, 0, 3),
            ("terminal", 0, 0, 0),
        ]
        without = plan_render(folder / "base.safetensors", recipe, 2, rates=RATES)
        assert plan.second_copy is not None and without.second_copy is None
        assert plan.second_copy.tensors == 3
        assert plan.second_copy.bytes == (2 + 2 + 4) * OUT * IN
        assert plan.second_copy.seconds_saved == pytest.approx(without.seconds - plan.seconds)
        assert plan.second_copy.seconds_saved > 0

    def test_does_not_apply_where_phases_do_not_differ(self, folder: Path) -> None:
        recipe = recipe_in(folder, "distilled", loras=["u"])
        plan = plan_render(folder / "base.safetensors", recipe, memory_budget=1 << 30, rates=RATES)
        assert plan.second_copy is None

    def test_does_not_apply_below_a_huge_page(self, folder: Path) -> None:
        recipe = recipe_in(folder, "a2vid_two_stage", distilled=["d"])
        plan = plan_render(folder / "base.safetensors", recipe, memory_budget=(2 << 20) - 1, rates=RATES)
        assert plan.second_copy is None

    def test_negative_budget(self, folder: Path) -> None:
        with refused("bad-budget", "-1"):
            plan_render(
                folder / "base.safetensors", recipe_in(folder, "distilled", loras=["u"]), memory_budget=-1, rates=RATES
            )


def test_json_holds_it_all(folder: Path) -> None:
    recipe = recipe_in(folder, "ti2vid_two_stages_hq", distilled=[("d", 0.9)])
    plan = plan_render(folder / "base.safetensors", recipe, 2, "base", memory_budget=1 << 30, rates=RATES)
    facts = plan.as_json()
    assert facts["recipe"] == "ti2vid_two_stages_hq" and facts["renders"] == 2 and facts["terminal"] == "base"
    assert [step["name"] for step in facts["steps"]].count("terminal") == 2
    assert facts["total"]["seconds"] == plan.seconds
    assert facts["naive"]["total"]["seconds"] == plan.naive_seconds
    assert facts["second_copy"]["tensors"] == 3
    assert "0.9" in facts["notes"][-1]


def test_rates_are_measured_where_none_are_given(folder: Path) -> None:
    plan = plan_render(folder / "base.safetensors", Recipe.named("retake"))
    assert plan.rates.flops > 1e8 and plan.rates.bytes > 1e8


@pytest.mark.parametrize("renders", [0, -1])
def test_renders_below_one(folder: Path, renders: int) -> None:
    with refused("bad-renders", renders):
        plan_render(folder / "base.safetensors", Recipe.named("retake"), renders)


def test_unknown_terminal_state(folder: Path) -> None:
    with refused("bad-terminal", "middle", "last, first, base"):
        plan_render(folder / "base.safetensors", Recipe.named("retake"), 1, "middle")


def test_one_adapter_in_two_roles_is_refused(folder: Path) -> None:
    recipe = recipe_in(folder, "a2vid_two_stage", loras=["d"], distilled=["d"])
    with refused("same-adapter-twice", "d.safetensors"):
        plan_render(folder / "base.safetensors", recipe)


def test_reference_scales_may_not_conflict_between_phases(folder: Path, tmp_path: Path) -> None:
    factors = pair("diffusion_model.a", OUT, 2, IN)
    two, three = (
        write(tmp_path / f"by{value}.safetensors", factors, {"reference_downscale_factor": value}) for value in "23"
    )
    parts = (Phase("phase0", ((two, 1.0),)), Phase("phase1", ((three, 1.0),)))
    with refused("reference-scale-conflict", "by2.safetensors", "by3.safetensors"):
        plan_render(folder / "base.safetensors", Recipe("retake", parts), rates=RATES)
