"""Every kind of delta on weights that are stored in codes: in a file, in verify and in resident memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layout_cases import CASES, SHAPE, Case, assert_holds, flat, read
from tensor_files import pair, weight, write

import ltx2c
from ltx2c import Recipe, ResidentCheckpoint, reference
from ltx2c.adapters.deltas import reference as deltas
from ltx2c.layouts import reference as stored
from ltx2c.terms import FullTerm

Tensors = dict[str, np.ndarray]
STRENGTH = 0.8


def loha() -> tuple[Tensors, Any, None]:
    shapes = [(SHAPE[0], 3), (3, SHAPE[1]), (SHAPE[0], 3), (3, SHAPE[1])]
    factors = [weight(*shape, seed=number) for number, shape in enumerate(shapes)]
    names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    return dict(zip(names, factors, strict=True)), FullTerm(deltas.loha(*factors), STRENGTH), None


def lokr() -> tuple[Tensors, Any, None]:
    one, two = weight(16, 12, seed=4, dtype=np.float32), weight(16, 16, seed=5, dtype=np.float32)
    return {"lokr_w1": one, "lokr_w2": two}, FullTerm(deltas.lokr(one, two), STRENGTH), None


def diff() -> tuple[Tensors, Any, None]:
    values = weight(*SHAPE, seed=6)
    return {"diff": values}, FullTerm(values, STRENGTH), None


def dora(by_column: bool) -> tuple[Tensors, Any, Any]:
    """LyCORIS': the strength scales the step, and the delta enters whole."""
    length = SHAPE[1] if by_column else SHAPE[0]
    magnitudes = np.abs(weight(length, seed=7, dtype=np.float32)) * 40
    two = {name.removeprefix("m."): value for name, value in pair("m", SHAPE[0], 4, SHAPE[1], seed=8).items()}
    shaped = magnitudes.reshape((1, length) if by_column else (length, 1))
    return {**two, "dora_scale": shaped}, (*two.values(), 1.0), (magnitudes, by_column)


KINDS = {
    "loha": loha,
    "lokr": lokr,
    "diff": diff,
    "dora by row": lambda: dora(False),
    "dora by column": lambda: dora(True),
}


def entering(case: Case, terms: list[Any], magnitude: Any, arithmetic: str) -> stored.Sum:
    """What becomes of decoded values: the deltas in, the lengths given, and one rounding to bf16 where there is one."""

    def enter(values: np.ndarray) -> np.ndarray:
        wide = values.astype(np.float32)
        if arithmetic == "f32":
            total = reference.fuse_tensor(wide, terms, arithmetic="f32")
        else:
            total = wide + reference.aggregate(terms)
        if magnitude:
            lengths, by_column = magnitude
            total = deltas.rescaled(total, lengths, by_column=by_column, step=float(np.float32(STRENGTH)))
        return total if arithmetic == "f32" or case.wide else reference.bf16(total)

    return enter


@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", CASES)
def test_is_its_reference_everywhere(tmp_path: Path, layout: str, kind: str, arithmetic: str) -> None:
    case = CASES[layout]
    before = case.make(3)
    tensors, term, magnitude = KINDS[kind]()
    first = pair("m", SHAPE[0], 5, SHAPE[1], seed=9)
    adapters = [
        (write(tmp_path / "first.safetensors", first), 0.5),
        (write(tmp_path / "second.safetensors", {f"m.{role}": value for role, value in tensors.items()}), STRENGTH),
    ]
    add = entering(case, [(*first.values(), 0.5), term], magnitude, arithmetic)
    wanted = flat({"m": dict(zip(before, case.fuse(before, add, arithmetic), strict=True))})
    base = write(tmp_path / "base.safetensors", flat({"m": before}))
    how = {"arithmetic": arithmetic, **case.options}
    out = tmp_path / "out.safetensors"
    ltx2c.fuse_checkpoint(base, adapters, out, **how)
    assert_holds(read(out), wanted)
    assert ltx2c.verify_checkpoint(out, base, adapters, **how).equal
    with ResidentCheckpoint.open(base, Recipe.named("distilled", loras=adapters), **how) as resident:
        assert_holds(dict(resident.tensors), wanted)
