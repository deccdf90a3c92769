"""Every input that ``ltx2c fuse`` refuses: one line that names the fault, exit code 2, and nothing touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tensor_files import pair, weight, write

from ltx2c.cli import main

BASE = {"model.diffusion_model.m.q.weight": weight(6, 5), "model.diffusion_model.m.bias": weight(6)}
ADAPTER = pair("diffusion_model.m.q", 6, 2, 5)
A, B = ADAPTER


class Case:
    """A folder with a base and an adapter that fit, for a test to spoil."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = write(folder / "base.safetensors", BASE)
        self.lora = write(folder / "lora.safetensors", ADAPTER)
        self.out = folder / "out.safetensors"
        self.more: list[str] = []

    def adapter(self, values: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
        write(self.lora, values, metadata)

    def also(self, *arguments: object) -> None:
        self.more += map(str, arguments)

    def command(self) -> list[str]:
        return ["fuse", str(self.base), "--lora", str(self.lora), *self.more, "-o", str(self.out)]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def linked(case: Case, make: Callable[[Path, Path], None], source: str) -> None:
    make(getattr(case, source), case.out)
    case.also("--force")


def second(case: Case, values: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    case.also("--lora", write(case.folder / "second.safetensors", values, metadata))


def spoil_bytes(content: bytes) -> Callable[[Case], object]:
    return lambda case: case.lora.write_bytes(content)


def scaled(case: Case, one: str, other: str) -> None:
    case.adapter(ADAPTER, {"reference_downscale_factor": one})
    second(case, ADAPTER, {"reference_downscale_factor": other})


def huge(case: Case) -> None:
    case.adapter({A: np.full((2, 5), 1e38, np.float32), B: np.full((6, 2), 1e38, np.float32)})


BAD_A = {B: ADAPTER[B]}


def based_on(case: Case, tensors: Mapping[str, Any], out: int = 6, into: int = 5) -> None:
    write(case.base, tensors)
    case.adapter(pair("m.q", out, 2, into))


def square(key: str, dtype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"m.q.weight": weight(16, 16), key: (dtype, shape), **more}


NVFP4 = {
    "m.q.weight": ("U8", [16, 8]),
    "m.q.weight_scale": ("F8_E4M3", [128, 4]),
    "m.q.weight_scale_2": ("F32", []),
}


def without(key: str) -> dict[str, Any]:
    return {name: spec for name, spec in NVFP4.items() if name != key}


def by_modelopt(case: Case, name: str, text: str) -> None:
    based_on(case, NVFP4, 16, 16)
    case.also("--nvfp4-scales", "linear")
    (case.folder / name).write_text(text)


def overflowing(case: Case) -> None:
    based_on(case, {"m.q.weight": np.ones((6, 5), ml_dtypes.float8_e4m3fn), "m.q.weight_scale": ("F32", [])})
    case.adapter({A: np.full((2, 5), 3e38, np.float32), B: np.full((6, 2), 3e38, np.float32)})
    case.also("--allow-nonfinite")


# name: (how the case is spoiled, what the line must name)
REFUSALS: dict[str, tuple[Callable[[Case], object], list[str]]] = {
    "a key without a target": (
        lambda c: c.adapter({**ADAPTER, **pair("diffusion_model.m.qq", 6, 2, 5)}),
        ["diffusion_model.m.qq", "model.diffusion_model.m.q.weight", "1 of 2"],
    ),
    "no pair matches": (lambda c: c.adapter(pair("other", 6, 2, 5)), ["not an adapter for", "base.safetensors"]),
    "no pair matches, though warned": (
        lambda c: (c.adapter(pair("other", 6, 2, 5)), c.also("--unmatched", "warn")),
        ["not an adapter for"],
    ),
    "no pair at all": (lambda c: c.adapter({"x": weight(3)}), ["lora.safetensors", "no pair"]),
    "A without B": (lambda c: c.adapter({A: ADAPTER[A]}), ["m.q", "no B"]),
    "B without A": (lambda c: c.adapter({B: ADAPTER[B]}), ["m.q", "no A"]),
    "two A": (lambda c: c.adapter({**ADAPTER, "m.q.lora_A.weight": ADAPTER[A]}), ["m.q", "two A"]),
    "delta shape": (lambda c: c.adapter(pair("m.q", 6, 2, 4)), ["[6, 4]", "[6, 5]", "m.q.lora_A", "m.q.weight"]),
    "rank": (lambda c: c.adapter({A: weight(3, 5), B: weight(6, 2)}), ["[3, 5]", "[6, 2]"]),
    "factor not 2-D": (lambda c: c.adapter({A: weight(5), **BAD_A}), [A, "[5]", "BF16"]),
    "factor empty": (lambda c: c.adapter({A: weight(0, 5), B: weight(6, 0)}), [A, "[0, 5]"]),
    "factor of integers": (lambda c: c.adapter({A: ("I64", [2, 5]), **BAD_A}), [A, "I64"]),
    "weight of a dtype without a rule": (
        lambda c: write(c.base, {"m.q.weight": ("F64", [6, 5])}),
        ["m.q.weight", "F64"],
    ),
    "truncated": (lambda c: c.lora.write_bytes(c.lora.read_bytes()[:-1]), ["lora.safetensors"]),
    "pickle": (spoil_bytes(b"PK\x03\x04" + bytes(200)), ["lora.safetensors", "not a safetensors file"]),
    "git lfs pointer": (spoil_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), ["LFS"]),
    "html": (spoil_bytes(b"<!DOCTYPE html><html><body>not found</body></html>"), ["HTML"]),
    "empty file": (spoil_bytes(b""), ["lora.safetensors", "empty"]),
    "the same adapter twice": (lambda c: c.also("--lora", c.lora, "0.5"), ["lora.safetensors", "twice"]),
    "OUT is the base by hard link": (lambda c: linked(c, lambda a, b: b.hardlink_to(a), "base"), ["out.safetensors"]),
    "OUT is the adapter by symbolic link": (
        lambda c: linked(c, lambda a, b: b.symlink_to(a), "lora"),
        ["out.safetensors"],
    ),
    "OUT is the base": (lambda c: (setattr(c, "out", c.base), c.also("--force")), ["base.safetensors"]),
    "OUT exists": (lambda c: c.out.write_text("mine"), ["out.safetensors", "--force"]),
    "OUT's folder is missing": (lambda c: setattr(c, "out", c.folder / "no" / "out"), [f"{os.sep}no"]),
    "strength nan": (lambda c: c.also("nan"), ["nan"]),
    "strength inf": (lambda c: c.also("inf"), ["inf"]),
    "strength -inf": (lambda c: c.also("-inf"), ["-inf"]),
    "strength beyond float32": (lambda c: c.also("1e39"), ["1e+39"]),
    "strength not a number": (lambda c: c.also("strong"), ["'strong'"]),
    "conflicting metadata": (lambda c: scaled(c, "2", "3"), ["lora.safetensors", "second.safetensors", "2", "3"]),
    "malformed metadata": (
        lambda c: c.adapter(ADAPTER, {"reference_temporal_scale_factor": "2.5"}),
        ["lora.safetensors", "reference_temporal_scale_factor", "2.5"],
    ),
    "base and adapter swapped": (
        lambda c: c.__dict__.update(base=c.lora, lora=c.base),
        ["base.safetensors", "no pair", "swapped"],
    ),
    "BASE is an adapter": (
        lambda c: c.__dict__.update(base=write(c.folder / "other.safetensors", pair("m.k", 6, 2, 5))),
        ["other.safetensors", "only factors", "swapped"],
    ),
    "infinite results": (huge, ["m.q.weight", "30", "--allow-nonfinite"]),
    "a GGUF file": (spoil_bytes(b"GGUF" + bytes(200)), ["lora.safetensors", "GGUF", "bf16", "then quantise"]),
    "a GGUF base": (
        lambda c: c.base.write_bytes(b"GGUF" + bytes(200)),
        ["base.safetensors", "GGUF", "bf16", "then quantise"],
    ),
    "a transposed weight": (
        lambda c: based_on(c, {"m.q.weight": weight(5, 6)}),
        ["[6, 5]", "[5, 6]", "m.q.weight", "transposed"],
    ),
    "a transposed weight of codes": (
        lambda c: based_on(c, {"m.q.weight": ("F8_E4M3", [5, 6]), "m.q.weight_scale": ("F32", [])}),
        ["[6, 5]", "[5, 6]", "transposed"],
    ),
    "INT8": (
        lambda c: based_on(c, {"m.q.weight": ("I8", [6, 5]), "m.q.weight_scale": ("F32", [6, 1])}),
        ["m.q.weight", "integers", "bf16", "then quantise"],
    ),
    "INT8 by bitsandbytes": (
        lambda c: based_on(c, {"m.q.weight": ("I8", [6, 5]), "m.q.SCB": ("F32", [6])}),
        ["m.q.weight", "INT8", "bitsandbytes", "then quantise"],
    ),
    "INT8 by ComfyUI's ConvRot": (
        lambda c: based_on(
            c,
            {
                "m.q.weight": ("I8", [6, 5]),
                "m.q.weight_scale": ("F32", [6, 1]),
                "m.q.comfy_quant": np.frombuffer(b'{"format": "convrot_w4a4"}', np.uint8),
            },
        ),
        ["m.q.weight", "ConvRot", "then quantise"],
    ),
    "SVDQuant, whose weights have other names": (
        lambda c: based_on(c, {"x.weight": weight(2, 2), "m.q.qweight": ("I8", [6, 3]), "m.q.wscales": ("F32", [6])}),
        ["base.safetensors", "m.q", "SVDQuant", "then quantise"],
    ),
    "NVFP4 without one of its scales": (
        lambda c: based_on(c, without("m.q.weight_scale_2"), 16, 16),
        ["base.safetensors", "m.q.weight_scale ", "m.q.weight_scale_2"],
    ),
    "NVFP4 without the other": (
        lambda c: based_on(c, without("m.q.weight_scale"), 16, 16),
        ["base.safetensors", "m.q.weight_scale_2", "m.q.weight_scale "],
    ),
    "a scale alone, beside a weight that is not fused": (
        lambda c: based_on(c, square("m.k.weight_scale", "F32", []), 16, 16),
        ["base.safetensors", "m.k.weight_scale", "m.k.weight "],
    ),
    "one scale of two, beside a weight that is not fused": (
        lambda c: based_on(
            c, square("m.k.weight_scale", "F8_E4M3", [128, 4], **{"m.k.weight": ("U8", [16, 8])}), 16, 16
        ),
        ["base.safetensors", "m.k.weight_scale ", "m.k.weight_scale_2"],
    ),
    "NVFP4 without the order of its scales": (
        lambda c: based_on(c, NVFP4, 16, 16),
        ["m.q.weight_scale", "--nvfp4-scales swizzled|linear"],
    ),
    "NVFP4 by ModelOpt": (
        lambda c: by_modelopt(c, "hf_quant_config.json", '{"producer": {"name": "modelopt", "version": "0.33"}}'),
        ["m.q.weight", "ModelOpt", "hf_quant_config.json", "low half"],
    ),
    "NVFP4 by ModelOpt, as its model's configuration says": (
        lambda c: by_modelopt(c, "config.json", '{"quantization_config": {"quant_method": "modelopt"}}'),
        ["m.q.weight", "ModelOpt", "config.json", "low half"],
    ),
    "values that have no scale, though allowed": (overflowing, ["m.q.weight", "30"]),
    "no threads": (lambda c: c.also("--threads", "0"), ["threads", "0"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_one_line_and_nothing_touched(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = REFUSALS[name]
    case = Case(tmp_path)
    spoil(case)
    before = snapshot(tmp_path)

    assert main(case.command()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ltx2c: error: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == [], err
    assert snapshot(tmp_path) == before


def test_no_adapter_at_all_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(tmp_path)
    assert main(["fuse", str(case.base), "-o", str(case.out)]) == 2
    assert "--lora" in capsys.readouterr().err
    assert not case.out.exists()


def test_the_unspoiled_case_is_not_refused(tmp_path: Path) -> None:
    assert main(Case(tmp_path).command()) == 0


def test_infinite_results_can_be_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(tmp_path)
    huge(case)
    case.also("--allow-nonfinite", "--json")

    assert main(case.command()) == 0
    assert json.loads(capsys.readouterr().out)["nonfinite"]


@pytest.mark.parametrize("words", [["", "--lora", "x"], ["x", "--lora", ""], ["x", "--lora", "", "0.5"]])
def test_an_empty_path_is_not_the_current_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", *words, "-o", "out"]) == 2
    assert main(["fuse", "x", "--lora", "x", "-o", ""]) == 2
    assert capsys.readouterr().err.count("an empty path names no file") == 2
