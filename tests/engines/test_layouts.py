"""Weights stored in codes, in files, verify and resident memory, under both arithmetics, wherever companions lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import bits
from layout_cases import CASES, RAGGED_CASES, SHAPE, Case, assert_holds, codes, flat, read, scales
from refusals import refused
from safetensors import safe_open
from tensor_files import pair, weight, write

import ltx2c
from ltx2c import Checkpoint, Recipe, ResidentCheckpoint, reference
from ltx2c.engines import comparison, fuser, many, units
from ltx2c.engines import file as engine
from ltx2c.layouts import reference as stored

FP8 = Path(__file__).parents[1] / "data" / "goldens_fp8"
Tensors = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
    """Files in a folder, and what they must become."""

    base: Path
    adapters: list[tuple[Path, float]]
    before: Tensors
    wanted: Tensors
    options: dict[str, str]


@pytest.fixture(params=["ltx", "f32"])
def arithmetic(request: pytest.FixtureRequest) -> str:
    return request.param


ALL_CASES = CASES | RAGGED_CASES


@pytest.fixture(params=ALL_CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return ALL_CASES[request.param]


def model(folder: Path, case: Case, arithmetic: str, order: Callable[[str], Any] = lambda key: 0) -> Model:
    """Two weights of a layout, one of plain values, one that nobody touches; keys in the file by ``order``."""
    modules = {"a": case.make(1), "b": case.make(5), "c": {"weight": weight(40, 30)}, "kept": {"weight": weight(9, 9)}}
    shapes = {"a": case.shape, "b": case.shape, "c": (40, 30)}
    adapters: list[tuple[Path, float]] = []
    terms: dict[str, list] = {module: [] for module in shapes}
    for number, (taking, strength) in enumerate([("abc", 0.8), ("bc", -0.3)]):
        factors: Tensors = {}
        for at, module in enumerate(taking):
            out, into = shapes[module]
            two = pair(module, out, 5, into, seed=10 * number + at, dtype=np.float32)
            factors |= two
            terms[module].append((*two.values(), strength))
        adapters.append((write(folder / f"lora{number}.safetensors", factors), strength))
    wanted = {module: case.expected(modules[module], terms[module], arithmetic) for module in "ab"}
    wanted["c"] = {"weight": reference.fuse_tensor(modules["c"]["weight"], terms["c"], arithmetic=arithmetic)}
    before = flat(modules) | {"a.input_scale": np.array([0.25], np.float32)}  # nobody's: it passes through
    before = {key: before[key] for key in sorted(before, key=order)}
    base = write(folder / "base.safetensors", before)
    return Model(base, adapters, before, before | flat(wanted), case.options)


def is_codes(made: Model, key: str) -> bool:
    return key in ("a.weight", "b.weight")


def changed(made: Model, key: str) -> int:
    before, after = (bits(tensors[key]) for tensors in (made.before, made.wanted))
    if "weight_scale_2" not in "".join(made.before):
        return int((before != after).sum())
    return int((before >> 4 != after >> 4).sum() + (before & 15 != after & 15).sum())


def small_blocks(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", nbytes)
    for module in (comparison, many, units):
        monkeypatch.setattr(module, "BLOCK_BYTES", nbytes)
    monkeypatch.setattr(many, "_SMALLEST_BLOCK", 1)
    monkeypatch.setattr(fuser, "WORKING_BYTES", nbytes)


def weights_first(key: str) -> bool:
    return "scale" in key


def weights_last(key: str) -> bool:
    return "scale" not in key


@pytest.mark.parametrize("block_bytes", [500, 20_000, 16 << 20])
@pytest.mark.parametrize("order", [weights_first, weights_last])
def test_files_and_verify(
    case: Case, arithmetic: str, order: Callable, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch, block_bytes)
    made = model(tmp_path, case, arithmetic, order)
    options = {"arithmetic": arithmetic, **made.options}
    out = tmp_path / "out.safetensors"
    report = ltx2c.fuse_checkpoint(made.base, made.adapters, out, sha256=True, **options)
    assert_holds(read(out), made.wanted)
    assert report.loss.encoded.changed == sum(changed(made, key) for key in made.before if is_codes(made, key))
    assert report.loss.encoded.elements == 2 * case.shape[0] * case.shape[1] and report.loss.size.in_steps > 0
    with safe_open(out, "numpy") as by_others:
        assert set(by_others.keys()) == set(made.before)
    assert report.sha256[str(out)] == hashlib.sha256(out.read_bytes()).hexdigest()
    for sample in (1.0, 0.3):
        assert ltx2c.verify_checkpoint(out, made.base, made.adapters, sample=sample, **options).equal
    for key in made.wanted:
        if "scale" in key:
            spoilt = {name: value.copy() for name, value in made.wanted.items()}
            spoilt[key].reshape(-1)[-1:].view(np.uint8)[0] ^= 1
            found = ltx2c.verify_checkpoint(write(out, spoilt), made.base, made.adapters, **options)
            assert [difference.key for difference in found.differences] == [key]
            assert found.differences[0].fused is (key != "a.input_scale")


@pytest.mark.parametrize("order", [weights_first, weights_last])
def test_companions_in_another_shard(case: Case, arithmetic: str, order: Callable, tmp_path: Path) -> None:
    made = model(tmp_path, case, arithmetic)
    folder = tmp_path / "sharded"
    folder.mkdir()
    parts = {f"model-{number}.safetensors": number for number in (1, 2)}
    weight_map = {key: f"model-{1 + order(key)}.safetensors" for key in made.before}
    for name in parts:
        write(folder / name, {key: value for key, value in made.before.items() if weight_map[key] == name})
    if len(set(weight_map.values())) == 1:
        pytest.skip("this layout has no companions")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    options = {"arithmetic": arithmetic, **made.options}
    ltx2c.fuse_checkpoint(folder, made.adapters, tmp_path / "out", sha256=True, **options)
    assert_holds(read(tmp_path / "out"), made.wanted)
    assert ltx2c.verify_checkpoint(tmp_path / "out", folder, made.adapters, **options).equal


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_resident(case: Case, arithmetic: str, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 20_000)
    made = model(tmp_path, case, arithmetic)
    recipe = Recipe.named("a2vid_two_stage", distilled_lora=made.adapters[0][0])
    phases = [recipe.phases[0], dataclasses.replace(recipe.phases[1], state=tuple(made.adapters))]
    recipe = dataclasses.replace(recipe, phases=tuple(phases))
    with ResidentCheckpoint.open(
        made.base, recipe, arithmetic=arithmetic, memory_budget=budget, **made.options
    ) as resident:
        for phase in (0, 1, "base", 1, 0, 1):
            report = resident.bind(phase)
            assert_holds(dict(resident.tensors), made.wanted if phase == 1 else made.before)
            assert report.kept + report.restored + report.fused + report.switched == len(made.before)


EXECUTE = """
import sys, ltx2c
for folder in sys.argv[1:]:
    with open(f"{folder}/plan.json") as plan:
        ltx2c.execute(ltx2c.Plan.from_json(plan.read()), f"{folder}/out")
"""


def test_a_plan_goes_through_json(case: Case, arithmetic: str, tmp_path: Path) -> None:
    made = model(tmp_path, case, arithmetic)
    plan = ltx2c.plan_fuse(made.base, made.adapters, arithmetic=arithmetic, **made.options)
    again = ltx2c.Plan.from_json(plan.to_json())
    assert again == plan
    ltx2c.execute(again, tmp_path / "out")
    assert_holds(read(tmp_path / "out"), made.wanted)


def test_plans_are_executed_by_another_process(tmp_path: Path) -> None:
    """All layouts under both arithmetics, by one process: it takes a while to start."""
    expected = {}
    for name, case in ALL_CASES.items():
        for arithmetic in ("ltx", "f32"):
            folder = tmp_path / f"{name}-{arithmetic}"
            folder.mkdir()
            made = expected[folder] = model(folder, case, arithmetic)
            plan = ltx2c.plan_fuse(made.base, made.adapters, arithmetic=arithmetic, **made.options)
            (folder / "plan.json").write_text(plan.to_json())
    subprocess.run([sys.executable, "-c", EXECUTE, *map(str, expected)], check=True)
    for folder, made in expected.items():
        assert_holds(read(folder / "out"), made.wanted)


@pytest.mark.parametrize("path", sorted(FP8.glob("*.safetensors")), ids=lambda path: path.stem)
def test_upstreams_own_cases(path: Path, tmp_path: Path) -> None:
    with Checkpoint.open(path) as golden:
        tensors = {key: tensor.read() for key, tensor in golden.tensors.items()}
        strengths = json.loads(golden.metadata["strengths"])
    names = [name for name in ("weight_scale", "weight") if name in tensors]
    base = write(tmp_path / "base", {f"m.{name}": tensors[name] for name in names})
    adapters = []
    for i, strength in enumerate(strengths):
        factors = {f"m.lora_{side}.weight": tensors[f"lora_{side}.{i}"] for side in "AB"}
        adapters.append((write(tmp_path / f"lora{i}", factors), strength))
    if any(strengths):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", allow_nonfinite=True)
        found = read(tmp_path / "out")
        for name in names:
            expected = tensors[f"expected.{name}"]
            nan = np.isnan(expected.astype(np.float32))
            assert np.array_equal(bits(found[f"m.{name}"])[~nan], bits(expected)[~nan]), name
        assert ltx2c.verify_checkpoint(tmp_path / "out", base, adapters).equal
        recipe = Recipe.named("ti2vid_one_stage", loras=adapters)
        with ResidentCheckpoint.open(base, recipe, allow_nonfinite=True) as resident:
            assert_holds(dict(resident.tensors), found)


def test_a_result_that_has_no_scale_is_refused_whatever_is_allowed(tmp_path: Path) -> None:
    base = write(tmp_path / "base", {"m.weight": codes(1), "m.weight_scale": scales(1, 1)})
    huge = {key: np.full_like(value, 3e38) for key, value in pair("m", SHAPE[0], 1, SHAPE[1]).items()}
    adapters = [(write(tmp_path / "lora", huge), 1.0)]
    before = set(tmp_path.iterdir())
    with refused("nonfinite", "m.weight"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", allow_nonfinite=True)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("shape", [(300,), (6, 4, 3, 3)], ids=str)
def test_codes_that_are_no_matrix(shape: tuple[int, ...], tmp_path: Path) -> None:
    before = np.random.default_rng(0).integers(0, 120, shape).astype(np.uint8).view(stored.E4M3)
    base = write(tmp_path / "base", {"m.bias": before, "m.weight": weight(3, 3)})
    difference = weight(*shape, seed=2, dtype=np.float32)
    adapter = write(tmp_path / "lora", {"m.diff_b": difference, **pair("m", 3, 1, 3)})
    ltx2c.fuse_checkpoint(base, [(adapter, 0.5)], tmp_path / "out", arithmetic="f32")
    expected = stored.to_fp8(before.astype(np.float32) + np.float32(0.5) * difference, stored.E4M3)
    assert np.array_equal(bits(read(tmp_path / "out")["m.bias"]), bits(expected))
    assert ltx2c.verify_checkpoint(tmp_path / "out", base, [(adapter, 0.5)], arithmetic="f32").equal
