"""``alpha`` and ``block_weights`` wherever weights are fused: the same bytes in a file and in memory, and on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layout_cases import assert_holds, read
from refusals import refused
from tensor_files import pair, weight, write

import ltx2c
from ltx2c import Checkpoint, Recipe, ResidentCheckpoint, plan_render, reference
from ltx2c.cli import main
from ltx2c.plan.cost import Rates

NAMES = ("blocks.0.a", "blocks.0.b", "blocks.1.a")
RATES = Rates(1e12, 1e10)


def files(folder: Path) -> tuple[Path, Path, Path]:
    """A base, an adapter for its first block with an alpha, and a distilled one for its second."""
    base = write(folder / "base.safetensors", {f"{name}.weight": weight(6, 5, seed=n) for n, name in enumerate(NAMES)})
    first = {**pair(NAMES[0], 6, 2, 5), **pair(NAMES[1], 6, 2, 5, seed=4), f"{NAMES[0]}.alpha": np.ones((), np.float32)}
    style = write(folder / "style.safetensors", first)
    return base, style, write(folder / "distilled.safetensors", pair(NAMES[2], 6, 3, 5, seed=7))


OPTIONS: dict[str, dict[str, Any]] = {
    "block weights": {"block_weights": [("*.0.*", 0.5), ("*.a", 0.25)]},
    "block weights of one phase alone": {"block_weights": {"blocks.1.*": 0.5}},
    "alpha": {"alpha": "ignore"},
    "both": {"alpha": "ignore", "block_weights": [("*", 2.0)]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_phase_in_memory_is_what_a_file_of_it_holds(tmp_path: Path, options: dict[str, Any]) -> None:
    base, style, distilled = files(tmp_path)
    recipe = Recipe.named("ti2vid_two_stages", loras=[(style, 0.8)], distilled_lora=(distilled, 0.5))
    ltx2c.write_phases(base, recipe, tmp_path / "phases", **options)
    written = {
        one["name"]: one["file"] for one in json.loads((tmp_path / "phases" / "phases.json").read_text())["phases"]
    }
    assert len(set(written.values())) == 2
    with ResidentCheckpoint.open(base, recipe, **options) as resident:
        assert resident.options.keys() == options.keys()
        for name, file in written.items():
            resident.bind(name)
            assert_holds(dict(resident.tensors), read(tmp_path / "phases" / file))
        last = dict(resident.tensors)
    ltx2c.fuse_checkpoint(base, [(style, 0.8), (distilled, 0.5)], tmp_path / "both.safetensors", **options)
    assert_holds(last, read(tmp_path / "both.safetensors"))
    ltx2c.fuse_checkpoint(base, [(style, 0.8), (distilled, 0.5)], tmp_path / "plain.safetensors")
    assert (tmp_path / "plain.safetensors").read_bytes() != (tmp_path / "both.safetensors").read_bytes()
    assert plan_render(base, recipe, rates=RATES, **options).as_json()["options"].keys() == options.keys()


def test_a_pattern_that_fits_nothing_of_any_phase_is_refused(tmp_path: Path) -> None:
    base, style, distilled = files(tmp_path)
    recipe = Recipe.named("ti2vid_two_stages", loras=style, distilled_lora=distilled)
    for call in (
        lambda **how: ResidentCheckpoint.open(base, recipe, **how),
        lambda **how: plan_render(base, recipe, rates=RATES, **how),
        lambda **how: ltx2c.write_phases(base, recipe, tmp_path / "out", **how),
    ):
        with refused("block-weight-unused", "blocks.2.*"):
            call(block_weights=[("*.a", 0.5), ("blocks.2.*", 0.5)])


class TestCommand:
    def fuse(self, folder: Path, *words: str) -> int:
        base, style, _ = files(folder)
        return main(["fuse", str(base), "--lora", str(style), "-o", str(folder / "out.safetensors"), "--force", *words])

    @pytest.mark.parametrize("by_file", [False, True])
    def test_factors_multiply_and_are_on_record(self, tmp_path: Path, by_file: bool) -> None:
        given = ["*.0.*=0.5", "blocks.0.a=0.25"]
        (tmp_path / "weights.txt").write_text("# strengths\n\n" + "\n".join(given) + "\n")
        words = [str(tmp_path / "weights.txt")] if by_file else given
        assert self.fuse(tmp_path, *(word for one in words for word in ("--block-weights", one))) == 0
        base, factors = read(tmp_path / "base.safetensors"), read(tmp_path / "style.safetensors")
        with Checkpoint.open(tmp_path / "out.safetensors") as out:
            told = json.loads(out.metadata["ltx2c"])["block_weights"]
            assert told == [["*.0.*", 0.5], ["blocks.0.a", 0.25]]
            for name, strength in ((NAMES[0], 0.5 * 0.25 / 2), (NAMES[1], 0.5)):
                terms = [(factors[f"{name}.lora_A.weight"], factors[f"{name}.lora_B.weight"], strength)]
                expected = reference.fuse_tensor(base[f"{name}.weight"], terms)
                assert out.tensors[f"{name}.weight"].read().tobytes() == expected.tobytes()

    def test_what_fits_nothing_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.fuse(tmp_path, "--block-weights", "*.0.*=0.5", "--block-weights", "nowhere=1") == 2
        said = capsys.readouterr().err
        assert "nowhere" in said and said.count("\n") == 1
        assert not (tmp_path / "out.safetensors").exists()

    @pytest.mark.parametrize("word", ["a=b", "=1", "a=nan", "no-such-file", "a=1e40"])
    def test_what_is_no_factor(self, tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
        try:
            code = self.fuse(tmp_path, "--block-weights", word)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        assert code == 2 and word.split("=")[0] in capsys.readouterr().err

    def test_a_render_is_planned_with_them(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        base, style, distilled = files(tmp_path)
        words = ["plan", "ti2vid_two_stages", str(base), "--lora", str(style), "--distilled-lora", str(distilled)]
        assert main([*words, "--alpha", "ignore", "--block-weights", "*.1.*=0.5", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["options"] == {"alpha": "ignore", "block_weights": [["*.1.*", 0.5]]}
