"""plan_fuse: what is fused with what, at which cost, and every refusal that headers can tell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from steps import steps
from tensor_files import pair, weight, write

from ltx2c import Adapter, Checkpoint, Plan, plan_fuse

E2E = Path(__file__).parents[1] / "data" / "e2e"
PREFIX = "model.diffusion_model."


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Checkpoint]:
    tensors = {
        f"{PREFIX}scale": weight(4),
        f"{PREFIX}blocks.0.to_k.weight": weight(6, 5),
        f"{PREFIX}blocks.0.to_q.weight": weight(6, 5),
        f"{PREFIX}blocks.1.to_q.weight": weight(6, 5, dtype=np.float32),
    }
    with Checkpoint.open(write(tmp_path / "base.safetensors", tensors, {"model_version": "2.5.0"})) as checkpoint:
        yield checkpoint


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[Callable[..., Adapter]]:
    """Make an adapter of the given modules, with ``A [2, 5]`` and ``B [6, 2]`` each."""
    opened = []

    def make(name: str, *modules: str, metadata: dict[str, str] | None = None, **more: np.ndarray) -> Adapter:
        tensors = {
            key: value for module in modules for key, value in pair(f"diffusion_model.{module}", 6, 2, 5).items()
        }
        opened.append(Adapter.open(write(tmp_path / f"{name}.safetensors", {**tensors, **more}, metadata)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


Make = Callable[..., Adapter]


def fused(plan: Plan) -> tuple[int, ...]:
    """Per adapter, how many of its deltas take part."""
    return tuple(adapter.deltas_fused for adapter in plan.adapters)


def test_terms_stand_in_base_order_and_in_fusion_order(base: Checkpoint, adapter: Make) -> None:
    one, two = adapter("one", "blocks.1.to_q", "blocks.0.to_k"), adapter("two", "blocks.0.to_k")
    plan = plan_fuse(base, [(one, 0.8), (two, 0.5)])
    assert list(plan.fusions) == [f"{PREFIX}blocks.0.to_k.weight", f"{PREFIX}blocks.1.to_q.weight"]
    shared = plan.fusions[f"{PREFIX}blocks.0.to_k.weight"]
    assert [term.delta.adapter.path for term in shared] == [one.path, two.path]
    assert [term.effective_strength for term in shared] == [float(np.float32(0.8)), 0.5]
    assert fused(plan) == (2, 1)
    assert [(used.source.path, used.strength) for used in plan.adapters] == [(one.path, 0.8), (two.path, 0.5)]
    swapped = plan_fuse(base, [(two, 0.5), (one, 0.8)])
    assert [term.effective_strength for term in swapped.fusions[f"{PREFIX}blocks.0.to_k.weight"]] == [
        0.5,
        float(np.float32(0.8)),
    ]


def test_cost(base: Checkpoint, adapter: Make) -> None:
    plan = plan_fuse(
        base, [(adapter("one", "blocks.1.to_q", "blocks.0.to_k"), 1), (adapter("two", "blocks.0.to_k"), 1)]
    )
    whole = 4 * 2 + 2 * 30 * 2 + 30 * 4
    assert plan.macs == 3 * 6 * 2 * 5
    assert plan.bytes_written == whole
    assert plan.bytes_read == whole + 3 * (2 * 5 + 6 * 2) * 2


def test_an_f32_weight_that_is_fused_is_noted(base: Checkpoint, adapter: Make) -> None:
    assert plan_fuse(base, [(adapter("q", "blocks.0.to_q"), 1)]).notes == ()
    (note,) = plan_fuse(base, [(adapter("f", "blocks.1.to_q"), 1)]).notes
    assert "ltx rounds 1 F32 weight through BF16" in note


def test_a_base_without_namespace(tmp_path: Path, adapter: Make) -> None:
    with Checkpoint.open(write(tmp_path / "bare.safetensors", {"blocks.0.to_k.weight": weight(6, 5)})) as bare:
        assert list(plan_fuse(bare, [(adapter("one", "blocks.0.to_k"), 1)]).fusions) == ["blocks.0.to_k.weight"]


def test_zero_beside_others_takes_part_and_can_be_first(base: Checkpoint, adapter: Make) -> None:
    zero, one = adapter("zero", "blocks.0.to_k"), adapter("one", "blocks.0.to_k")
    plan = plan_fuse(base, [(zero, 0.0), (one, 1.0)])
    assert [term.effective_strength for term in plan.fusions[f"{PREFIX}blocks.0.to_k.weight"]] == [0.0, 1.0]
    assert fused(plan) == (1, 1)


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, 1e-60])
def test_all_zero_is_the_base_state(base: Checkpoint, adapter: Make, zero: float) -> None:
    plan = plan_fuse(base, [(adapter("one", "blocks.0.to_k"), zero), (adapter("two", "blocks.0.to_q"), 0.0)])
    assert (dict(plan.fusions), plan.macs, fused(plan)) == ({}, 0, (0, 0))


def test_no_adapter_is_the_base_state(base: Checkpoint) -> None:
    assert not plan_fuse(base, []).fusions


def test_terms_are_equal_when_pair_and_scale_are(base: Checkpoint, adapter: Make) -> None:
    one = adapter("one", "blocks.0.to_k")
    first, again, other = (plan_fuse(base, [(one, strength)]).fusions for strength in (0.25, 0.25, 0.5))
    assert dict(first) == dict(again) != dict(other)
    assert len({*first.values(), *again.values(), *other.values()}) == 2


class TestUnmatched:
    def test_is_refused_with_the_nearest_key_and_the_count(self, base: Checkpoint, adapter: Make) -> None:
        one = adapter("one", "blocks.0.to_k", "blocks.0.to_qq")
        with refused(
            "unmatched-key",
            "one.safetensors: diffusion_model.blocks.0.to_qq.lora_A.weight, ",
            "to_qq.lora_B.weight (2 keys)",
            f"nearest is {PREFIX}blocks.0.to_q.weight",
            "1 of 2 deltas matched",
        ):
            plan_fuse(base, [(one, 1)])

    def test_warn_goes_on_and_lists_it(self, base: Checkpoint, adapter: Make) -> None:
        one = adapter("one", "blocks.0.to_k", "blocks.0.to_qq")
        plan = plan_fuse(base, [(one, 1)], unmatched="warn")
        assert list(plan.fusions) == [f"{PREFIX}blocks.0.to_k.weight"]
        assert [(left.adapter, left.key) for left in plan.unmatched] == [
            (one.path, f"diffusion_model.blocks.0.to_qq.lora_{side}.weight") for side in "AB"
        ]
        assert fused(plan) == (1,)

    @pytest.mark.parametrize("unmatched", ["Error", "ignore", "", None, True, ["warn"]])
    def test_there_is_no_third_way(self, base: Checkpoint, adapter: Make, unmatched: object) -> None:
        with refused("bad-unmatched", f"error, warn, not {unmatched}"):
            plan_fuse(base, [(adapter("a", "blocks.0.to_q", "nowhere"), 1.0)], unmatched=unmatched)

    def test_a_key_of_a_kind_that_is_not_read_is_no_different(self, base: Checkpoint, adapter: Make) -> None:
        key = "lora_te_text.something"
        one = adapter("one", "blocks.0.to_k", **{key: weight(4)})
        with refused("unmatched-key", f"one.safetensors: {key}", "text encoder", "nearest is", "1 of 1 deltas matched"):
            plan_fuse(base, [(one, 1)])
        assert [left_out.key for left_out in plan_fuse(base, [(one, 1)], unmatched="warn").unmatched] == [key]

    @pytest.mark.parametrize("unmatched", ["error", "warn"])
    def test_no_match_at_all_is_no_adapter_for_this_base(self, base: Checkpoint, adapter: Make, unmatched: str) -> None:
        one = adapter("one", "elsewhere.0")
        with refused("no-pair-matches", "one.safetensors", "not an adapter for", "base.safetensors", "0 of 1 deltas"):
            plan_fuse(base, [(one, 1)], unmatched=unmatched)

    def test_against_an_empty_base(self, tmp_path: Path, adapter: Make) -> None:
        with (
            Checkpoint.open(write(tmp_path / "empty.safetensors", {})) as empty,
            refused("no-pair-matches", "holds no tensor"),
        ):
            plan_fuse(empty, [(adapter("one", "x"), 1)])

    def test_among_the_full_models_keys_is_told_in_few_steps(self, tmp_path: Path, adapter: Make) -> None:
        names = [
            f"{PREFIX}transformer_blocks.{i}.{part}_{j}.to_q.weight"
            for i in range(48)
            for j in range(9)
            for part in ("attn", "audio_attn", "audio_to_video_attn", "ff.net", "video_to_audio_attn")
            for _ in range(2)
        ]
        names = [*dict.fromkeys(names), *(f"{name}.{i}" for name in names[:800] for i in range(3))]
        assert len(names) > 4349
        with Checkpoint.open(write(tmp_path / "big.safetensors", dict.fromkeys(names, ("BF16", [1])))) as big:
            one = adapter("one", "transformer_blocks.17.audio_atn_3.to_q")

            def told() -> None:
                with refused("no-pair-matches", f"{PREFIX}transformer_blocks.17.audio_attn_3.to_q.weight"):
                    plan_fuse(big, [(one, 1)])

            assert steps(told) < 1_000_000


def test_delta_of_another_shape(base: Checkpoint, tmp_path: Path) -> None:
    with (
        Adapter.open(write(tmp_path / "a.safetensors", pair("blocks.0.to_k", 5, 2, 6))) as one,
        refused(
            "shape-mismatch",
            "blocks.0.to_k.lora_B.weight",
            "blocks.0.to_k.lora_A.weight",
            "[5, 6]",
            f"{PREFIX}blocks.0.to_k.weight",
            "[6, 5]",
        ),
    ):
        plan_fuse(base, [(one, 1)])


@pytest.mark.parametrize("shape", [[30], [5, 6, 1], [1, 6, 5]])
def test_a_weight_that_is_not_a_matrix(tmp_path: Path, adapter: Make, shape: list[int]) -> None:
    with (
        Checkpoint.open(write(tmp_path / "b.safetensors", {"x.weight": ("BF16", shape)})) as odd,
        refused("shape-mismatch", "[6, 5]", f"{shape}"),
    ):
        plan_fuse(odd, [(adapter("one", "x"), 1)])


@pytest.mark.parametrize("dtype", ["U8", "F64", "I64", "BOOL"])
def test_a_weight_without_a_rule(tmp_path: Path, adapter: Make, dtype: str) -> None:
    with (
        Checkpoint.open(write(tmp_path / "b.safetensors", {"x.weight": (dtype, [6, 5])})) as odd,
        refused("no-fuse-rule", "b.safetensors", "x.weight"),
    ):
        plan_fuse(odd, [(adapter("one", "x"), 1)])


@pytest.mark.parametrize("dtype", ["F8_E5M2", "BF16"])
@pytest.mark.parametrize("sibling", ["x.weight_scale", "x.weight_scale_inv", "x.weight_scale_2", "x.scale_weight"])
def test_a_weight_with_a_scale_beside_it(tmp_path: Path, adapter: Make, dtype: str, sibling: str) -> None:
    tensors = {"x.weight": (dtype, [6, 5]), sibling: ("F32", [])}
    with (
        Checkpoint.open(write(tmp_path / "b.safetensors", tensors)) as scaled,
        refused("companion-missing" if sibling.endswith("_2") else "no-fuse-rule", "x.weight"),
    ):
        plan_fuse(scaled, [(adapter("one", "x"), 1)])


def test_a_weight_without_a_rule_that_no_pair_touches_is_nobodys_business(tmp_path: Path, adapter: Make) -> None:
    tensors = {"x.weight": weight(6, 5), "y.weight": ("F64", [6, 5])}
    with Checkpoint.open(write(tmp_path / "b.safetensors", tensors)) as mixed:
        assert list(plan_fuse(mixed, [(adapter("one", "x"), 1)]).fusions) == ["x.weight"]


def test_a_module_that_the_base_holds_twice(tmp_path: Path, adapter: Make) -> None:
    tensors = {"x.weight": weight(6, 5), f"{PREFIX}x.weight": weight(6, 5)}
    with (
        Checkpoint.open(write(tmp_path / "b.safetensors", tensors)) as twice,
        refused("ambiguous-weight", "one.safetensors", f"{PREFIX}x.weight", " x.weight"),
    ):
        plan_fuse(twice, [(adapter("one", "x"), 1)])


def test_two_modules_for_one_weight(base: Checkpoint, adapter: Make) -> None:
    one = adapter("one", "blocks.0.to_k", **pair("lora_unet_blocks_0_to_k", 6, 2, 5))
    with refused("duplicate-target", "one.safetensors", f"{PREFIX}blocks.0.to_k.weight", "lora_unet_blocks_0_to_k"):
        plan_fuse(base, [(one, 1)])


class TestSameAdapterTwice:
    def link(self, path: Path, how: str) -> Path:
        other = path.with_name("other.safetensors")
        if how == "same":
            return path
        if how == "symbolic":
            other.symlink_to(path)
        else:
            os.link(path, other)
        return other

    @pytest.mark.parametrize("how", ["same", "symbolic", "hard"])
    def test_is_refused_by_any_name(self, base: Checkpoint, adapter: Make, how: str) -> None:
        one = adapter("one", "blocks.0.to_k")
        path = self.link(one.path, how)
        with Adapter.open(path) as again, refused("same-adapter-twice", one.path.name, path.name):
            plan_fuse(base, [(one, 1), (again, 0.5)])

    def test_equal_files_are_two_adapters(self, base: Checkpoint, adapter: Make) -> None:
        plan = plan_fuse(base, [(adapter("one", "blocks.0.to_k"), 1), (adapter("two", "blocks.0.to_k"), 1)])
        assert fused(plan) == (1, 1)


class TestStrength:
    @pytest.mark.parametrize("strength", [math.nan, math.inf, -math.inf, 1e39, -1e39, "0.5", None, True, 1j, [1.0]])
    def test_that_is_no_finite_float32(self, base: Checkpoint, adapter: Make, strength: object) -> None:
        with refused("bad-strength", "one.safetensors", strength):
            plan_fuse(base, [(adapter("one", "blocks.0.to_k"), strength)])

    def test_that_alpha_takes_beyond_float32(self, base: Checkpoint, adapter: Make) -> None:
        alpha = {"diffusion_model.blocks.0.to_k.alpha": np.full((), 1e30, np.float32)}
        with refused("bad-strength", "blocks.0.to_k", "strength 1000000000.0 times alpha 1.00000001", "rank 2"):
            plan_fuse(base, [(adapter("one", "blocks.0.to_k", **alpha), 1e9)])

    @pytest.mark.parametrize("strength", [1, -2.5, np.float32(0.5), np.float64(0.5), np.int64(2)])
    def test_that_is_any_real_number(self, base: Checkpoint, adapter: Make, strength: float) -> None:
        (terms,) = plan_fuse(base, [(adapter("one", "blocks.0.to_k"), strength)]).fusions.values()
        assert terms[0].effective_strength == float(strength)


class TestReferenceScales:
    @pytest.mark.parametrize("name", ["reference_downscale_factor", "reference_temporal_scale_factor"])
    def test_two_above_one_conflict(self, base: Checkpoint, adapter: Make, name: str) -> None:
        state = [(adapter(f"with{value}", "blocks.0.to_k", metadata={name: value}), 0.0) for value in ("2", "1", "3")]
        with refused("reference-scale-conflict", name, "2 in", "with2.safetensors", "3 in", "with3.safetensors"):
            plan_fuse(base, state)

    def test_one_never_conflicts(self, base: Checkpoint, adapter: Make) -> None:
        values = [
            {"reference_downscale_factor": "2"},
            {},
            {"reference_downscale_factor": "1"},
            {"reference_downscale_factor": "2", "reference_temporal_scale_factor": "3"},
        ]
        state = [(adapter(f"a{i}", "blocks.0.to_k", metadata=value), 1) for i, value in enumerate(values)]
        assert fused(plan_fuse(base, state)) == (1, 1, 1, 1)


def test_base_and_adapter_swapped(adapter: Make) -> None:
    one, two = adapter("one", "x"), adapter("two", "x")
    with Checkpoint.open(one.path) as not_a_base, refused("base-is-adapter", "one.safetensors", "x.lora_A", "swapped"):
        plan_fuse(not_a_base, [(two, 1)])


def test_another_model_version_is_noted(base: Checkpoint, adapter: Make) -> None:
    metadata = [{"model_version": "2.3.1"}, {"model_version": "2.5.0"}, {}]
    state = [(adapter(f"a{i}", "blocks.0.to_k", metadata=one), 1) for i, one in enumerate(metadata)]
    (note,) = plan_fuse(base, state).notes
    assert "a0.safetensors" in note and "2.3.1" in note and "2.5.0" in note


def test_adapter_notes_reach_the_plan(base: Checkpoint, adapter: Make) -> None:
    one = adapter("one", "blocks.0.to_k", metadata={"lora_alpha": "16", "lora_rank": "2"})
    (note,) = plan_fuse(base, [(one, 1)]).notes
    assert "lora_alpha 16" in note


class TestEndToEnd:
    @pytest.fixture
    def e2e(self) -> Iterator[tuple[Checkpoint, list[tuple[Adapter, float]]]]:
        adapters = [Adapter.open(E2E / f"adapter{i}.safetensors") for i in range(3)]
        with Checkpoint.open(E2E / "base.safetensors") as base:
            yield base, list(zip(adapters, (0.5, 0.8, -0.3), strict=True))
        for one in adapters:
            one.close()

    def test_is_refused_for_the_key_with_no_home(self, e2e: tuple) -> None:
        with refused(
            "unmatched-key", "adapter1.safetensors", "diffusion_model.not_there.lora_A.weight", "of 16 deltas"
        ):
            plan_fuse(*e2e)

    def test_warn_plans_what_upstream_fused(self, e2e: tuple) -> None:
        plan = plan_fuse(*e2e, unmatched="warn")
        assert [one.key for one in plan.unmatched] == [f"diffusion_model.not_there.lora_{side}.weight" for side in "AB"]
        assert fused(plan) == (38, 15, 5)
        assert len(plan.fusions) == 38
        ff = plan.fusions[f"{PREFIX}transformer_blocks.1.ff.net.2.weight"]
        assert [term.effective_strength for term in ff] == [0.5, float(np.float32(-0.3))]
