"""Opening adapter files: pairs, alpha, metadata, and everything that makes a file no adapter."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from refusals import refused
from tensor_files import pair, weight, write

from ltx2c import Adapter
from ltx2c.dtypes import FUSIBLE
from ltx2c.errors import RefusedError

E2E = Path(__file__).parents[1] / "data" / "e2e"


def opened(path: Path) -> Adapter:
    with Adapter.open(path) as adapter:
        return adapter


def test_pairs_hold_factors_in_file_order_with_their_own_ranks() -> None:
    adapter = opened(E2E / "adapter0.safetensors")
    assert len(adapter.deltas) == 38
    first = adapter.deltas[0]
    assert first.module == "adaln_single.linear"
    assert (first.a.shape, first.b.shape, first.rank, first.scaling.alpha) == ((10, 48), (432, 10), 10, None)
    assert {pair.rank for pair in adapter.deltas} == {2, 8, 10}
    assert adapter.notes == ()


def test_read_gives_the_factors_as_stored(tmp_path: Path) -> None:
    tensors = pair("diffusion_model.x", 3, 2, 5)
    with Adapter.open(write(tmp_path / "a.safetensors", tensors)) as adapter:
        ((a, b, _),) = adapter.deltas[0].load().terms(1.0)
    assert a.tobytes() == tensors["diffusion_model.x.lora_A.weight"].tobytes() and a.shape == (2, 5)
    assert b.tobytes() == tensors["diffusion_model.x.lora_B.weight"].tobytes() and b.shape == (3, 2)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
def test_namespaces_are_removed(tmp_path: Path, prefix: str) -> None:
    adapter = opened(write(tmp_path / "a.safetensors", pair(f"{prefix}blocks.0.to_q", 3, 2, 5)))
    assert [pair.module for pair in adapter.deltas] == ["blocks.0.to_q"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_alpha_is_read_per_pair(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    tensors = {**pair("x", 4, 2, 4), "x.alpha": np.full(shape, 3, np.dtype(dtype)), **pair("y", 4, 2, 4)}
    x, y = opened(write(tmp_path / "a.safetensors", tensors)).deltas
    assert (x.scaling.alpha, y.scaling.alpha) == (3.0, None)


def test_scale_is_strength_times_alpha_over_that_pairs_rank_rounded_once(tmp_path: Path) -> None:
    alpha = np.array(0.1, np.float64)
    tensors = {**pair("x", 4, 3, 4), "x.alpha": alpha, **pair("y", 4, 2, 4), "y.alpha": alpha, **pair("z", 4, 2, 4)}
    x, y, z = opened(write(tmp_path / "a.safetensors", tensors)).deltas
    assert x.effective_strength(0.3) == float(np.float32(0.3 * 0.1 / 3))
    assert y.effective_strength(0.3) == float(np.float32(0.3 * 0.1 / 2))
    assert z.effective_strength(0.3) == float(np.float32(0.3)) != 0.3
    # Rounding the strength, or alpha / rank, to float32 on the way gives another number.
    assert x.effective_strength(0.3) != float(np.float32(float(np.float32(0.3)) * 0.1 / 3))
    assert x.effective_strength(0.3) != float(np.float32(0.3 * float(np.float32(0.1 / 3))))
    assert math.copysign(1, z.effective_strength(-0.0)) == 1


@pytest.mark.parametrize(
    ("present", "missing"), [(["lora_A"], "no B"), (["lora_B"], "no A"), (["alpha"], "no A and no B")]
)
def test_a_module_with_a_side_missing(tmp_path: Path, present: list[str], missing: str) -> None:
    tensors = {**pair("ok", 4, 2, 4), **pair("half", 4, 2, 4), "half.alpha": np.ones((), np.float32)}
    kept = {key: value for key, value in tensors.items() if "half" not in key or any(p in key for p in present)}
    with refused("missing-factor", "a.safetensors", "half", missing):
        Adapter.open(write(tmp_path / "a.safetensors", kept))


def test_two_a_for_one_module(tmp_path: Path) -> None:
    tensors = {**pair("diffusion_model.x", 4, 2, 4), **pair("x", 4, 2, 4)}
    with refused("duplicate-factor", "two A", "diffusion_model.x.lora_A.weight", " x.lora_A.weight"):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


def test_two_alphas_for_one_module(tmp_path: Path) -> None:
    alpha = np.ones((), np.float32)
    tensors = {**pair("diffusion_model.x", 4, 2, 4), "diffusion_model.x.alpha": alpha, "x.alpha": alpha}
    with refused("duplicate-factor", "two alpha", "diffusion_model.x.alpha"):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


def test_rank_of_a_and_b_differs(tmp_path: Path) -> None:
    tensors = {"x.lora_A.weight": weight(3, 4), "x.lora_B.weight": weight(5, 2)}
    with refused("rank-mismatch", "x.lora_B.weight", "[5, 2]", "x.lora_A.weight", "[3, 4]"):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize(
    "stored",
    [
        ("BF16", [4]),
        ("BF16", []),
        ("BF16", [0, 4]),
        ("BF16", [4, 0]),
        ("F8_E4M3", [4, 4]),
        ("I64", [4, 4]),
        ("F64", [4, 4]),
    ],
)
def test_what_cannot_be_a_factor(tmp_path: Path, side: str, stored: tuple[str, list[int]]) -> None:
    tensors = {**pair("x", 4, 4, 4), f"x.lora_{side}.weight": stored}
    with refused("bad-factor", f"x.lora_{side}.weight", f"factor {side}", f"shape {stored[1]}", f"dtype {stored[0]}"):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


def test_halves_of_loha_of_two_shapes(tmp_path: Path) -> None:
    shapes = {"hada_w1_a": [4, 2], "hada_w1_b": [2, 6], "hada_w2_a": [4, 2], "hada_w2_b": [2, 5]}
    tensors = {f"x.{role}": ("BF16", shape) for role, shape in shapes.items()}
    with refused("halves-mismatch", "x.hada_w1_a", "[4, 6]", "[4, 5]"):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


@pytest.mark.parametrize("dtype", FUSIBLE)
def test_factors_of_every_allowed_dtype_open(tmp_path: Path, dtype: str) -> None:
    tensors = {"x.lora_A.weight": (dtype, [2, 4]), "x.lora_B.weight": (dtype, [4, 2])}
    assert opened(write(tmp_path / "a.safetensors", tensors)).deltas[0].a.dtype == dtype


@pytest.mark.parametrize(
    ("alpha", "said"),
    [
        (np.array(np.nan, np.float32), "nan"),
        (np.array([np.inf], np.float32), "inf"),
        (np.ones(2, np.float32), "shape [2]"),
        (("F32", [0]), "shape [0]"),
        (("BOOL", []), "dtype BOOL"),
    ],
)
def test_what_cannot_be_an_alpha(tmp_path: Path, alpha: np.ndarray, said: str) -> None:
    with refused("bad-alpha", "x.alpha", said):
        Adapter.open(write(tmp_path / "a.safetensors", {**pair("x", 4, 2, 4), "x.alpha": alpha}))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("x.lora_C.weight", "whole weight"),
        ("x.lora_A.other.weight", "another spelling"),
        ("x.lokr_w3", "LoKr in another spelling"),
        ("x.weight", "whole weight"),
        ("x.bias", "whole bias"),
        ("x.something", "nothing an adapter holds"),
    ],
)
def test_a_pair_with_a_part_that_is_not_read_is_refused(tmp_path: Path, key: str, said: str) -> None:
    path = write(tmp_path / "a.safetensors", {**pair("diffusion_model.x", 4, 2, 4), key: weight(4)})
    with refused("unknown-adapter-key", key, said, "1 such"):
        Adapter.open(path)


def test_keys_that_are_not_read_and_belong_to_no_pair_are_kept_in_mind(tmp_path: Path) -> None:
    keys = ("text_encoder.x.weight", "xx.something", "y.weight")
    path = write(tmp_path / "a.safetensors", {**pair("x", 4, 2, 4), **{key: weight(4) for key in keys}})
    with Adapter.open(path) as adapter:
        assert adapter.unread == keys


def test_a_base_given_as_an_adapter() -> None:
    with refused("no-pair", "base.safetensors", "model.diffusion_model.adaln_single.linear.weight", "swapped"):
        Adapter.open(E2E / "base.safetensors")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "0 tensors"),
        ({"x.alpha": ("F32", [])}, "1 tensors"),
        ({"x.something": ("F32", [4, 4])}, "x.something looks like nothing"),
    ],
)
def test_a_file_that_holds_no_pair(tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], said: str) -> None:
    with refused("no-pair", "holds no pair", said):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))


def test_names_cannot_forge_a_second_line(tmp_path: Path) -> None:
    with refused("unknown-adapter-key", "x.evil\\nltx2c: done"):
        Adapter.open(write(tmp_path / "a.safetensors", {**pair("x", 4, 2, 4), "x.evil\nltx2c: done": weight(4)}))


def shards(folder: Path, name: str, values: tuple[str | None, str | None]) -> Path:
    """An adapter of two shards, with metadata ``name`` of these values."""
    weight_map = {}
    for at, value in enumerate(values):
        tensors = pair(f"x{at}", 4, 2, 4)
        path = write(folder / f"{at}.safetensors", tensors, None if value is None else {name: value})
        weight_map.update(dict.fromkeys(tensors, path.name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("name", ["reference_downscale_factor", "reference_temporal_scale_factor"])
class TestReferenceScale:
    def test_is_read(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / "a.safetensors", pair("x", 4, 2, 4), {name: "12"})
        assert getattr(opened(path), name) == 12

    def test_is_one_when_absent(self, tmp_path: Path, name: str) -> None:
        assert getattr(opened(write(tmp_path / "a.safetensors", pair("x", 4, 2, 4))), name) == 1

    @pytest.mark.parametrize("value", ["two", "0", "-3", "2.5", "", " 2", "2 ", "+2", "1e1", "\u0663", "9" * 5000])
    def test_malformed_is_refused(self, tmp_path: Path, name: str, value: str) -> None:
        path = write(tmp_path / "a.safetensors", pair("x", 4, 2, 4), {name: value})
        with refused("bad-reference-scale", "a.safetensors", name, f"'{value[:100]}"):
            Adapter.open(path)

    @pytest.mark.parametrize("values", [("2", "1"), ("1", "2"), ("2", None), (None, "2"), ("2", "2")])
    def test_is_read_from_any_shard(self, tmp_path: Path, name: str, values: tuple[str | None, str | None]) -> None:
        assert getattr(opened(shards(tmp_path, name, values)), name) == 2

    @pytest.mark.parametrize("values", [("2", "3"), ("3", "2")])
    def test_shards_that_conflict_are_refused(self, tmp_path: Path, name: str, values: tuple[str, str]) -> None:
        said = (f"{values[0]} in {tmp_path / '0.safetensors'}", f"{values[1]} in {tmp_path / '1.safetensors'}")
        with refused("reference-scale-conflict", name, *said):
            Adapter.open(shards(tmp_path, name, values))

    @pytest.mark.parametrize(("values", "bad"), [(("two", "2"), 0), (("2", "two"), 1)])
    def test_malformed_in_any_shard_is_refused(
        self, tmp_path: Path, name: str, values: tuple[str, str], bad: int
    ) -> None:
        with refused("bad-reference-scale", f"{bad}.safetensors", name, "'two'"):
            Adapter.open(shards(tmp_path, name, values))


def packed(**config: object) -> dict[str, str]:
    """Metadata as diffusers writes it."""
    return {"lora_adapter_metadata": json.dumps(config)}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"lora_alpha": "16", "lora_rank": "2"}, ["lora_alpha 16 at rank 2"]),
        ({"lora_alpha": "16"}, ["lora_alpha 16, the pairs' largest rank is 2"]),
        ({"lora_alpha": "32", "lora_rank": "32"}, ["lora_alpha 32 at rank 32, the pairs' largest rank is 2"]),
        ({"lora_alpha": "2", "lora_rank": "32"}, ["lora_alpha 2 at rank 32, the pairs' largest rank is 2"]),
        ({"ss_network_alpha": "1.0", "ss_network_dim": "2"}, ["ss_network_alpha 1.0 at rank 2"]),
        ({"lora_alpha": "much"}, ["lora_alpha much"]),
        ({"lora_alpha": "2.0", "lora_rank": "2"}, []),
        ({"lora_alpha": "2"}, []),
        ({"lora_rank": "64"}, []),
        (packed(r=64, lora_alpha=None), []),
        ({"lora_adapter_metadata": "{"}, ["lora_adapter_metadata is no JSON object"]),
        ({"lora_adapter_metadata": "[16]"}, ["lora_adapter_metadata is no JSON object"]),
        ({"lora_adapter_metadata": "[" * 100_000}, ["lora_adapter_metadata is no JSON object"]),
    ],
)
def test_alpha_in_metadata_alone_is_not_applied_and_noted(
    tmp_path: Path, metadata: dict[str, str], said: list[str]
) -> None:
    adapter = opened(write(tmp_path / "a.safetensors", pair("x", 4, 2, 4), metadata))
    assert adapter.deltas[0].effective_strength(0.5) == 0.5
    assert len(adapter.notes) == len(said)
    for note, words in zip(adapter.notes, said, strict=True):
        assert words in note and "strength alone" in note and "a.safetensors" in note


@pytest.mark.parametrize(
    "metadata", [{"lora_alpha": "450", "lora_rank": "450"}, {"ss_network_alpha": "450", "ss_network_dim": "450"}]
)
def test_pairs_cut_to_a_smaller_side_do_not_make_alpha_another(tmp_path: Path, metadata: dict[str, str]) -> None:
    tensors = {**pair("cut", 8, 8, 500), **pair("whole", 460, 450, 470)}
    assert opened(write(tmp_path / "a.safetensors", tensors, metadata)).notes == ()


def test_alpha_tensors_make_metadata_alpha_moot(tmp_path: Path) -> None:
    tensors = {**pair("x", 4, 2, 4), "x.alpha": np.ones((), np.float32)}
    assert opened(write(tmp_path / "a.safetensors", tensors, {"lora_alpha": "16"})).notes == ()


def test_pairs_without_alpha_beside_pairs_with_one_are_noted(tmp_path: Path) -> None:
    tensors = {**pair("x", 4, 2, 4), "x.alpha": np.ones((), np.float32), **pair("y", 4, 2, 4)}
    (note,) = opened(write(tmp_path / "a.safetensors", tensors)).notes
    assert "1 of 2 pairs hold no .alpha" in note


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"x.lora_A.weight": weight(2, 4)})
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(RefusedError):
        Adapter.open(path)
    assert len(sorted(Path("/proc/self/fd").iterdir())) == len(before)


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Adapter.open(tmp_path / "nowhere.safetensors")
