"""Every input that ``ltx2c fuse`` refuses: one line that names the fault, exit code 2, and nothing touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

# name: (how the case is spoiled, what the line must name)
REFUSALS: dict[str, tuple[Callable[[Case], object], list[str]]] = {
    "a key with no home": (
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
