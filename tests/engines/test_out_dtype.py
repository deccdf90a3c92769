"""Results that store weights otherwise than the base: dequantised, or quantised, in files, verify, ranges and jobs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from engines.test_layouts import CASES, SHAPE, Model, assert_holds, bits, flat, model, read, small_blocks
from refusals import refused
from safetensors import safe_open
from tensor_files import pair, weight, write

import ltx2c
from ltx2c import layouts, reference
from ltx2c.cli import main
from ltx2c.engines.units import UnitFuser
from ltx2c.files import Checkpoint
from ltx2c.layouts import reference as stored
from ltx2c.plan.opened import reopened

BF16, F32, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float16)
PLAIN = {"bf16": BF16, "f16": F16, "f32": F32}
TERMS: dict[str, list[tuple[int, float]]] = {"a": [(0, 0.8)], "b": [(0, 0.8), (1, -0.3)]}


def decoded(case: Any, tensors: dict[str, np.ndarray], arithmetic: str) -> np.ndarray:
    """What the codes stand for, before anything is added, by the reference's own rule: it encodes what it is given."""
    seen: list[np.ndarray] = []

    def add(values: np.ndarray) -> np.ndarray:
        seen.append(values.astype(np.float32))
        return np.ones_like(seen[0])

    case.fuse(tensors, add, arithmetic)
    return seen[0]


def fused(values: np.ndarray, terms: list, arithmetic: str, wide: bool) -> np.ndarray:
    """The total before it is stored: float32, of bfloat16 numbers under ``ltx``."""
    if arithmetic == "f32":
        return reference.fuse_tensor(values, terms, arithmetic="f32") if terms else values
    return reference.bf16(reference.aggregate(terms) + values if terms else values)


def factors(made: Model, module: str) -> list:
    terms = []
    for number, strength in TERMS.get(module, []):
        held = read(made.adapters[number][0])
        terms.append((held[f"{module}.lora_A.weight"], held[f"{module}.lora_B.weight"], strength))
    return terms


@pytest.fixture(params=["ltx", "f32"])
def arithmetic(request: pytest.FixtureRequest) -> str:
    return request.param


def with_untouched(made: Model, case: Any, folder: Path) -> dict[str, np.ndarray]:
    """The model with one more weight in codes that no adapter touches, and marks as ComfyUI has them."""
    more = {f"z.{name}": value for name, value in case.make(17).items()}
    mark = np.frombuffer(b'{"format": "x"}', np.uint8)
    tensors = made.before | more | {"z.input_scale": np.ones((), np.float32), "kept.comfy_quant": mark}
    write(folder / "base.safetensors", tensors, {"config": "{}"})
    return tensors


@pytest.mark.parametrize(("out_dtype", "block_bytes"), [("bf16", 20_000), ("f16", 16 << 20), ("f32", 20_000)])
@pytest.mark.parametrize("name", CASES)
def test_dequantised(
    name: str, out_dtype: str, block_bytes: int, arithmetic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    small_blocks(monkeypatch, block_bytes)
    made = model(tmp_path, case, arithmetic)
    tensors = with_untouched(made, case, tmp_path)
    wanted = {key: value for key, value in made.wanted.items() if key[0] not in "ab"}
    for module, seed in (("a", 1), ("b", 5), ("z", 17)):
        values = decoded(case, case.make(seed), arithmetic)
        total = fused(values, factors(made, module), arithmetic, case.wide)
        wanted[f"{module}.weight"] = total.astype(PLAIN[out_dtype])
    wanted["kept.comfy_quant"] = tensors["kept.comfy_quant"]
    options = {"arithmetic": arithmetic, "out_dtype": out_dtype, **made.options}
    out = tmp_path / "out.safetensors"
    report = ltx2c.fuse_checkpoint(made.base, made.adapters, out, sha256=True, **options)
    assert_holds(read(out), wanted)
    assert report.tensors == len(wanted) and report.bytes_written == sum(value.nbytes for value in wanted.values())
    assert report.tensors_fused == 3 and report.loss.note == ""
    with safe_open(out, "numpy") as by_others:
        assert json.loads(by_others.metadata()["ltx2c"])["out_dtype"] == out_dtype
        assert by_others.metadata()["config"] == "{}"
    for sample in (1.0, 0.3):
        assert ltx2c.verify_checkpoint(out, made.base, made.adapters, sample=sample, **options).equal
    for key in ("b.weight", "z.weight"):
        if out_dtype == "bf16":
            spoilt = {name: value.copy() for name, value in wanted.items()}
            spoilt[key].reshape(-1)[-1:].view(np.uint8)[0] ^= 1
            found = ltx2c.verify_checkpoint(write(out, spoilt), made.base, made.adapters, **options)
            assert [difference.key for difference in found.differences] == [key]


def quantised(values: np.ndarray, out_dtype: str) -> tuple[np.ndarray, ...]:
    if out_dtype == "fp8":
        return (stored.to_fp8(values, stored.E4M3),)
    return stored.fuse_fp8_scaled(np.zeros(values.shape, stored.E4M3), np.ones((), F32), lambda _: values)


@dataclasses.dataclass(frozen=True)
class Plain:
    """A base of plain values, two adapters, and what it becomes."""

    base: Path
    adapters: list[tuple[Path, float]]
    wanted: dict[str, np.ndarray]


def plain(folder: Path, dtype: np.dtype, out_dtype: str, arithmetic: str) -> Plain:
    modules = {name: weight(*SHAPE, seed=seed, dtype=dtype) for seed, name in enumerate(("a", "blocks.b", "kept", "c"))}
    before = {f"{name}.weight": value for name, value in modules.items()}
    before |= {"a.bias": weight(256), "norm.weight": weight(4, 4), "t_embedder.weight": weight(9, 3)}
    base = write(folder / "base.safetensors", before, {"_quantization_metadata": '{"layers": {}}'})
    adapters, terms = [], {"a.weight": [], "kept.weight": []}
    for number, strength in enumerate((0.8, -0.3)):
        held = {}
        for at, name in enumerate(("a", "kept")):
            two = pair(name, SHAPE[0], 5, SHAPE[1], seed=7 * number + at)
            held |= two
            terms[f"{name}.weight"].append((*two.values(), strength))
        adapters.append((write(folder / f"lora{number}.safetensors", held), strength))
    wanted: dict[str, np.ndarray] = {}
    for key, value in before.items():
        if key in ("a.weight", "blocks.b.weight", "c.weight"):
            total = fused(value.astype(F32), terms.get(key, []), arithmetic, False)
            names = (key, key.replace("weight", "weight_scale"))
            wanted |= dict(zip(names, quantised(total, out_dtype), strict=False))
        else:
            wanted[key] = value
    wanted["kept.weight"] = reference.fuse_tensor(before["kept.weight"], terms["kept.weight"], arithmetic=arithmetic)
    return Plain(base, adapters, wanted)


@pytest.mark.parametrize(("dtype", "block_bytes"), [(BF16, 80_000), (F16, 16 << 20), (F32, 80_000)], ids=str)
@pytest.mark.parametrize("out_dtype", ["fp8", "fp8-scaled"])
def test_quantised(
    out_dtype: str,
    dtype: np.dtype,
    block_bytes: int,
    arithmetic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_blocks(monkeypatch, block_bytes)
    made = plain(tmp_path, dtype, out_dtype, arithmetic)
    options: dict[str, Any] = {"arithmetic": arithmetic, "out_dtype": out_dtype, "keep": ["kept.*"]}
    out = tmp_path / "out.safetensors"
    ltx2c.fuse_checkpoint(made.base, made.adapters, out, sha256=True, **options)
    assert_holds(read(out), made.wanted)
    with Checkpoint.open(out) as result:
        kept = json.loads(result.metadata["ltx2c"])
        assert (kept["out_dtype"], kept["keep"]) == (out_dtype, ["kept.*"])
        found = {
            key: layouts.detect(result.tensors, key, metadata=result.metadata)
            for key in result.tensors
            if key.endswith(".weight")
        }
        assert {key for key, one in found.items() if one.layout.name == out_dtype} == {
            "a.weight",
            "blocks.b.weight",
            "c.weight",
        }
        declared = json.loads(result.metadata.get("_quantization_metadata", '{"layers": {}}'))["layers"]
        scaled = {"a", "blocks.b", "c"} if out_dtype == "fp8-scaled" else set()
        assert declared == {name: {"format": "float8_e4m3fn"} for name in scaled}
    assert ltx2c.verify_checkpoint(out, made.base, made.adapters, **options).equal
    for key in [key for key in made.wanted if "scale" in key] or ["c.weight"]:
        spoilt = {name: value.copy() for name, value in made.wanted.items()}
        spoilt[key].reshape(-1)[-1:].view(np.uint8)[0] ^= 1
        report = ltx2c.verify_checkpoint(write(out, spoilt), made.base, made.adapters, **options)
        assert [difference.key for difference in report.differences] == [key]


@pytest.fixture(params=["fp8-block to bf16", "nvfp4 to f32", "bf16 to fp8-scaled", "nvfp4", "fp8-scaled"])
def converted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[tuple[Path, float]], dict[str, Any]]:
    """A base, adapters and options; of some the layout stays, whose results are made by the same two passes."""
    source, _, target = request.param.partition(" to ")
    if not target:
        made = model(tmp_path, CASES[source], "ltx")
        return made.base, made.adapters, CASES[source].options
    if source == "bf16":
        made = plain(tmp_path, BF16, target, "ltx")
        return made.base, made.adapters, {"out_dtype": target}
    quantised_model = model(tmp_path, CASES[source], "ltx")
    with_untouched(quantised_model, CASES[source], tmp_path)
    return quantised_model.base, quantised_model.adapters, {"out_dtype": target, **quantised_model.options}


@pytest.mark.parametrize("block_bytes", [80_000, 16 << 20])
def test_plans_ranges_units_and_many_outputs_come_to_the_same(
    converted: Any, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch, block_bytes)
    base, adapters, options = converted
    out = tmp_path / "out.safetensors"
    ltx2c.fuse_checkpoint(base, adapters, out, **options)
    whole = out.read_bytes()
    plan = ltx2c.Plan.from_json(ltx2c.plan_fuse(base, adapters, **options).to_json())
    again = ltx2c.execute(plan, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == whole
    chance = np.random.default_rng(0)
    for begin, end in [(0, len(whole)), *(sorted(chance.integers(0, len(whole), 2)) for _ in range(30))]:
        assert ltx2c.fused_bytes(plan, int(begin), int(end)) == whole[begin:end]
    with reopened(plan) as opened:
        from ltx2c.engines.outputs import lay_out

        layout = lay_out(opened)
        fuser, found = UnitFuser(opened, layout, 2), bytearray(layout.files[0].header.ljust(len(whole), b"\xee"))
        for unit in reversed(fuser.cut(9)):

            def put(name: str, offset: int, data: memoryview) -> None:
                found[offset : offset + len(data)] = data

            fuser.make(unit, put)
        assert bytes(found) == whole
    many = {tmp_path / "one": adapters, tmp_path / "other": adapters[:1], tmp_path / "third": adapters[::-1]}
    ltx2c.fuse_many(base, many, **options)
    assert (tmp_path / "one").read_bytes() == whole
    for place, taken in many.items():
        ltx2c.fuse_checkpoint(base, taken, tmp_path / "alone", force=True, **options)
        assert place.read_bytes() == (tmp_path / "alone").read_bytes()
    assert again.bytes_read > 0


def test_sharded_and_sharded_anew(converted: Any, tmp_path: Path) -> None:
    base, adapters, options = converted
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", **options)
    folder = tmp_path / "sharded"
    ltx2c.fuse_checkpoint(base, adapters, folder, max_shard_bytes=30_000, **options)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_holds(read(folder), read(tmp_path / "out"))
    assert ltx2c.verify_checkpoint(folder, base, adapters, **options).equal


def test_no_adapter_at_all_converts(tmp_path: Path) -> None:
    case = CASES["fp8-row"]
    made = model(tmp_path, case, "ltx")
    ltx2c.fuse_checkpoint(made.base, [], tmp_path / "out", out_dtype="bf16")
    found = read(tmp_path / "out")
    for module, seed in (("a", 1), ("b", 5)):
        wanted = decoded(case, case.make(seed), "ltx").astype(BF16)
        assert np.array_equal(bits(found[f"{module}.weight"]), bits(wanted))
    assert not [key for key in found if "weight_scale" in key or key == "a.input_scale"]


def test_marks_of_what_is_in_codes_no_more_leave(tmp_path: Path) -> None:
    mark = np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8)
    tensors = {"scaled_fp8": np.zeros(2, stored.E4M3)}
    for name in ("x", "y"):
        tensors |= {f"{name}.weight": np.ones((4, 4), stored.E4M3), f"{name}.scale_weight": np.ones((), F32)}
        tensors |= {f"{name}.scale_input": np.ones((), F32), f"{name}.comfy_quant": mark}
    layers = {"layers": {name: {"format": "float8_e4m3fn"} for name in ("x", "y")}}
    base = write(tmp_path / "base", tensors, {"_quantization_metadata": json.dumps(layers)})
    ltx2c.fuse_checkpoint(base, [], tmp_path / "out", out_dtype="f16")
    with Checkpoint.open(tmp_path / "out") as result:
        assert list(result.tensors) == ["x.weight", "y.weight"] and "_quantization_metadata" not in result.metadata
    ltx2c.fuse_checkpoint(base, [], tmp_path / "one", out_dtype="f16", keep=["y.*"])
    with Checkpoint.open(tmp_path / "one") as result:
        assert set(result.tensors) == set(tensors) - {"x.scale_weight", "x.scale_input", "x.comfy_quant"}
        assert json.loads(result.metadata["_quantization_metadata"])["layers"] == {"y": {"format": "float8_e4m3fn"}}


@pytest.mark.parametrize(("keep", "named"), [((), False), (["b.*"], True)])
def test_a_folder_no_longer_calls_quantised_what_is_not(keep: list[str], named: bool, tmp_path: Path) -> None:
    """``config.json`` of a component, ModelOpt's file, and an entry of a file's metadata."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    case = CASES["fp8-row"]
    tensors = flat({"a": case.make(1), "b": case.make(5)})
    declared = json.dumps({"quant_method": "fp8"})
    write(folder / "model.safetensors", tensors, {"quantization_config": declared, "format": "pt"})
    config = {"hidden": 3, "quantization_config": {"quant_method": "fp8"}, "name": "é"}
    for place in ("", "sub/"):  # what lies deeper is another component's
        (folder / place / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text("{}")
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    options: dict[str, Any] = {"out_dtype": "bf16", "keep": keep}
    for out, report in [
        (tmp_path / "one", ltx2c.fuse_checkpoint(folder, [], tmp_path / "one", **options)),
        (tmp_path / "many", ltx2c.fuse_many(folder, {tmp_path / "many": []}, **options)[tmp_path / "many"]),
    ]:
        written = json.loads((out / "config.json").read_text())
        assert written == config if named else written == {"hidden": 3, "name": "é"}
        assert (out / "hf_quant_config.json").exists() == named
        assert json.loads((out / "sub" / "config.json").read_text()) == config
        with Checkpoint.open(out) as result:
            assert ("quantization_config" in result.metadata) == named and result.metadata["format"] == "pt"
        (note,) = [note for note in report.notes if "quantisation" in note]
        assert "config.json" in note and "hf_quant_config.json" in note and ("left in codes" in note) == named
    plain = ltx2c.fuse_checkpoint(folder, [], tmp_path / "as-it-was")
    assert (tmp_path / "as-it-was" / "config.json").read_bytes() == before[folder / "config.json"]
    assert not [note for note in plain.notes if "quantisation" in note]
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    again = ltx2c.fuse_checkpoint(folder, [], tmp_path / "reused", reuse=True, **options)
    assert not again.reused and ltx2c.fuse_checkpoint(folder, [], tmp_path / "reused", reuse=True, **options).reused


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(tmp_path, CASES["fp8-row"], "ltx")
    for code, options, words in [
        ("bad-out-dtype", {"out_dtype": "int4"}, ["int4", "fp8-scaled"]),
        ("keep-unconverted", {"keep": ["a.*"]}, ["a.*", "--out-dtype"]),
        ("bad-keep", {"keep": "a.*", "out_dtype": "bf16"}, ["a.*"]),
        ("keep-unused", {"keep": ["c.weight"], "out_dtype": "bf16"}, ["c.weight", "bf16"]),
        ("already-quantised", {"out_dtype": "fp8"}, ["fp8-row", "a.weight", "--out-dtype bf16"]),
    ]:
        with refused(code, *words):
            ltx2c.plan_fuse(made.base, made.adapters, **options)
    odd = write(tmp_path / "odd", {"x.qweight": np.zeros((4, 4), np.int32), "y.weight": weight(4, 4)})
    with refused("no-fuse-rule", "x", "integers", "then quantise"):
        ltx2c.plan_fuse(odd, [], out_dtype="bf16")
    odd = write(tmp_path / "odd", {"x.weight": ("I8", [4, 4]), "y.weight": weight(4, 4)})
    with refused("no-fuse-rule", "x.weight"):
        ltx2c.plan_fuse(odd, [], out_dtype="bf16")
    before = set(tmp_path.iterdir())
    command = ["fuse", str(made.base), "--lora", str(made.adapters[0][0]), "-o", str(tmp_path / "out")]
    assert main([*command, "--out-dtype", "fp8-scaled"]) == 2
    assert "--out-dtype bf16, then quantise" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before
    assert main([*command, "--out-dtype", "bf16", "--keep", "b.*"]) == 0
    verify = ["verify", str(tmp_path / "out"), *command[1:4]]
    assert main([*verify, "--out-dtype", "bf16", "--keep", "b.*"]) == 0
    assert main([*verify, "--out-dtype", "bf16"]) == 1


def test_infinities_are_refused_and_may_be_allowed(tmp_path: Path) -> None:
    base = write(tmp_path / "base", {"m.weight": np.ones((4, 4), stored.E4M3), "m.weight_scale": np.full((), 1e5, F32)})
    with refused("nonfinite", "m.weight", "16"):
        ltx2c.fuse_checkpoint(base, [], tmp_path / "out", out_dtype="f16")
    ltx2c.fuse_checkpoint(base, [], tmp_path / "out", out_dtype="f16", allow_nonfinite=True)
    assert np.isinf(read(tmp_path / "out")["m.weight"].astype(F32)).all()
    base = write(tmp_path / "base", {"m.weight": np.full((4, 4), np.inf, F32)})
    with refused("nonfinite", "m.weight"):
        ltx2c.fuse_checkpoint(base, [], tmp_path / "no", out_dtype="fp8-scaled", allow_nonfinite=True)
