"""Matching an adapter's names to a base's: nothing is lost without being named, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from tensor_files import pair, weight, write

from ltx2c import Adapter, Checkpoint, plan_fuse
from ltx2c.adapters.formats import ENDINGS, NOT_FUSED
from ltx2c.errors import RefusedError
from ltx2c.plan.match import find_targets

MODULES = ("blocks.0.to_q", "blocks.0.to_out.0", "a_b.c", "a.b_c", "adaln_single.linear", "x.qkv", "x.q", "norm")
PREFIXES = ("", "diffusion_model.", "transformer.", "base_model.model.", "lora_unet_", "lycoris_", "lora_te_", "junk.")

# Pairs make files that can be matched likely; single endings make all that is odd about one.
_PAIR = st.sampled_from([(".lora_A.weight", ".lora_B.weight"), (".lora_down.weight", ".lora_up.weight"), (".diff",)])
_ONE = st.sampled_from([*ENDINGS, *NOT_FUSED, ".weight", ".bias", ".odd", ""]).map(lambda ending: (ending,))
_NAMED = st.tuples(st.sampled_from(PREFIXES), st.sampled_from([*MODULES, "nowhere"]))


@st.composite
def key_sets(draw: st.DrawFn) -> dict[str, np.ndarray]:
    tensors = {}
    for (prefix, module), endings in draw(st.lists(st.tuples(_NAMED, st.one_of(_PAIR, _PAIR, _ONE)), max_size=8)):
        spelled = module.replace(".", "_") if prefix.endswith("_") else module
        for ending in endings:
            square = weight(4, 4, seed=len(tensors))
            shape = np.ones((), np.float32) if ending == ".alpha" else square
            tensors[f"{prefix}{spelled}{ending}" or "x"] = shape
    return tensors


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=key_sets())
def test_every_key_is_matched_or_named_or_the_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "key-sets"
    folder.mkdir(exist_ok=True)
    base = folder / "base.safetensors"
    if not base.exists():
        write(base, {f"model.diffusion_model.{module}.weight": weight(4, 4) for module in MODULES})
    try:
        adapter = Adapter.open(write(folder / "lora.safetensors", tensors))
    except RefusedError:
        return
    with adapter, Checkpoint.open(base) as checkpoint:
        try:
            matches = find_targets(checkpoint, adapter)
        except RefusedError as error:
            assert error.code == "ambiguous-weight"
            return
        named = set(matches.unmatched)
        fused = {tensor.key for placed in matches.placed.values() for one in placed for tensor in one.delta.tensors}
        assert not named & fused
        modules = {one.delta.module for placed in matches.placed.values() for one in placed}
        assert set(tensors) == named | fused | {key for module in modules for key in adapter.keys[module]}
        assert matches.matched + sum(not _has_target(delta, matches) for delta in adapter.deltas) == len(adapter.deltas)
        try:
            plan = plan_fuse(checkpoint, [(adapter, 1.0)], unmatched="warn")
        except RefusedError:
            return
        assert {left.key for left in plan.unmatched} == named


def _has_target(delta: object, matches: object) -> bool:
    return any(one.delta is delta for placed in matches.placed.values() for one in placed)


@pytest.mark.parametrize(
    ("base", "adapter", "said"),
    [
        (
            ("transformer_blocks.0.audio_attn1.to_q",),
            "blocks.0.self_attn.q",
            "its names are Wan's, the base is LTX-2: an adapter for another model, not a misspelling",
        ),
        (("blocks.0.self_attn.q",), "double_blocks.0.img_attn.qkv", "its names are Flux's, the base is Wan"),
        (("blocks.0.self_attn.q",), "down_blocks.0.attentions.0.to_q", "its names are Stable Diffusion's"),
    ],
)
def test_an_adapter_for_another_model_is_told_apart_from_a_misspelling(
    tmp_path: Path, base: tuple[str, ...], adapter: str, said: str
) -> None:
    path = write(tmp_path / "base.safetensors", {f"{name}.weight": weight(4, 4) for name in base})
    lora = write(tmp_path / "lora.safetensors", pair(adapter, 4, 2, 4))
    with refused("no-pair-matches", said):
        plan_fuse(path, [(lora, 1.0)])


def test_an_adapter_for_another_version_is_told(tmp_path: Path) -> None:
    names = [f"transformer_blocks.{i}.audio_attn1.to_q" for i in range(4)]
    path = write(tmp_path / "base.safetensors", {f"{name}.weight": weight(4, 4) for name in names})
    lora = {key: value for name in names for key, value in pair(name, 8, 2, 4).items()}
    with refused("shape-mismatch", "4 of 4 deltas do not fit", "another version of the model"):
        plan_fuse(path, [(write(tmp_path / "lora.safetensors", lora), 1.0)])
    with_version = write(tmp_path / "v.safetensors", lora, {"model_version": "2.3.0"})
    base = write(tmp_path / "b.safetensors", {f"{names[0]}.weight": weight(4, 4)}, {"model_version": "2.5.0"})
    with refused("unmatched-key", "made for model_version 2.3.0, the base is 2.5.0"):
        plan_fuse(base, [(with_version, 1.0)])


def test_modules_by_their_other_names_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "base.safetensors", {"adaln_single.linear.weight": weight(4, 4)})
    lora = write(tmp_path / "lora.safetensors", pair("transformer.time_embed.linear", 4, 2, 4))
    assert any("1 modules bear LTX-2's other names" in note for note in plan_fuse(path, [(lora, 1.0)]).notes)
