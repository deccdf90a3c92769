"""A recipe's phases as files, and the README's snippet that gives them to LTX-2's pipelines."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from destinations import temporaries
from fusing import adapter, assert_same, expected, load, save, small_model, values
from model_folders import fused, make_adapter, pipeline, transformer, tree
from refusals import refused

import ltx2c
from ltx2c import Recipe
from ltx2c.cli import main

# What LTX-2's sources at that commit take and hold; no code of theirs.
UPSTREAM = json.loads((Path(__file__).parent / "data" / "ltx_pipelines_400fd31.json").read_text())


def files_of(out: Path) -> dict[str, str]:
    table = json.loads((out / "phases.json").read_text())
    assert table.keys() == {"recipe", "phases"}
    return {phase["name"]: phase["file"] for phase in table["phases"]}


def test_each_distinct_state_is_a_file(tmp_path: Path) -> None:
    tensors = {"model.diffusion_model.a.weight": values(1, 33, 65), "model.diffusion_model.b.weight": values(2, 40, 24)}
    base = save(tmp_path / "base.safetensors", tensors)
    factors = [adapter({"a": (33, 7, 65)}, 5), adapter({"a": (33, 3, 65), "b": (40, 2, 24)}, 9)]
    user, distilled = (save(tmp_path / f"{at}.safetensors", one) for at, one in enumerate(factors))
    recipe = Recipe.named("ti2vid_two_stages_hq", loras=(user, 0.7), distilled_lora=distilled)
    report = ltx2c.write_phases(base, recipe, tmp_path / "out")
    assert files_of(tmp_path / "out") == {"phase0": "phase0.safetensors", "phase1": "phase1.safetensors"}
    assert {phase.name: phase.file for phase in report.phases} == files_of(tmp_path / "out")
    for name, strength in (("phase0", 0.25), ("phase1", 0.5)):
        wanted = expected(tensors, [(factors[0], 0.7), (factors[1], strength)])
        assert_same(load(tmp_path / "out" / f"{name}.safetensors"), wanted)
    assert report.bytes_written == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_phases_of_one_state_share_a_file_and_the_base_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    ltx2c.write_phases("base.safetensors", Recipe.named("distilled", loras="lora0.safetensors"), "same")
    assert set(files_of(tmp_path / "same").values()) == {"phase0.safetensors"}
    assert {path.name for path in (tmp_path / "same").iterdir()} == {"phase0.safetensors", "phases.json"}
    ltx2c.write_phases("base.safetensors", Recipe.named("ti2vid_two_stages", distilled_lora="lora0.safetensors"), "two")
    assert files_of(tmp_path / "two") == {"phase0": str(tmp_path / "base.safetensors"), "phase1": "phase1.safetensors"}
    ltx2c.write_phases("base.safetensors", Recipe.named("distilled"), "none")
    assert {path.name for path in (tmp_path / "none").iterdir()} == {"phases.json"}


def test_a_folder_gives_folders(tmp_path: Path) -> None:
    base = pipeline(tmp_path / "in", shards=2)
    lora, factors = make_adapter(tmp_path / "lora.safetensors")
    ltx2c.write_phases(base, Recipe.named("ti2vid_two_stages", distilled_lora=(lora, 0.8)), tmp_path / "out")
    assert files_of(tmp_path / "out") == {"phase0": str(base), "phase1": "phase1"}
    got = load(tmp_path / "out" / "phase1" / "transformer")
    assert_same({key: got[key] for key in transformer()}, fused(factors))
    assert tree(tmp_path / "out" / "phase1").keys() == tree(base).keys()


def test_what_exists_is_refused_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    recipe = Recipe.named("distilled", loras=adapters)
    (tmp_path / "out").mkdir()
    with refused("output-exists", tmp_path / "out"):
        ltx2c.write_phases(base, recipe, tmp_path / "out")
    (tmp_path / "out").rmdir()

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ltx2c.write_phases(base, recipe, tmp_path / "out", progress=stop)
    assert not (tmp_path / "out").exists() and not temporaries(tmp_path / "out")


def test_progress_tells_of_all_files_together(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    recipe = Recipe.named("ti2vid_two_stages", loras=adapters[0], distilled_lora=adapters[1])
    told: list[Any] = []
    ltx2c.write_phases(base, recipe, tmp_path / "out", progress=told.append)
    assert [one.bytes_done for one in told] == sorted(one.bytes_done for one in told)
    assert told[-1].bytes_done == told[-1].bytes_total == told[0].bytes_total
    assert told[-1].macs_done == told[-1].macs_total > 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_model(tmp_path)
    words = ["phases", "ti2vid_two_stages", str(tmp_path / "base.safetensors"), "--distilled-lora"]
    words += [str(tmp_path / "lora0.safetensors"), "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert "phase1: phase1.safetensors" in capsys.readouterr().out
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "output-exists"


def signature(facts: dict[str, list[str]]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = [inspect.Parameter(name, kind) for name in facts["required"]]
    return inspect.Signature([*required, *(inspect.Parameter(name, kind, default=None) for name in facts["optional"])])


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in of upstream's class, where a snippet imports it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(Path(__file__).parent / "standins" / "ltx2")
    yield importlib.import_module("ltx_pipelines.utils.blocks").DiffusionStage
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "ltx_pipelines":
            del sys.modules[name]


def test_the_stand_in_has_upstreams_signature(stage: Any) -> None:
    wanted = signature(UPSTREAM["DiffusionStage.from_checkpoint"]).parameters
    taken = inspect.signature(stage.from_checkpoint).parameters
    assert list(taken) == list(wanted)
    assert [one.default is one.empty for one in taken.values()] == [one.default is one.empty for one in wanted.values()]


def test_the_snippet_gives_each_stage_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Any) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (snippet,) = (block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "DiffusionStage" in block)
    small_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.named("ti2vid_two_stages", distilled_lora="lora0.safetensors")
    ltx2c.write_phases("base.safetensors", recipe, "phases")
    facts = UPSTREAM["pipelines"]["ti2vid_two_stages"]
    assert facts["has"] == ["device", "dtype"] and facts["class"] in readme
    signature(facts["init"]).bind("model_paths", distilled_lora=[], loras=[], spatial_upsampler_path="x")

    class Pipeline:
        dtype, device = "bf16", "cpu"

    assert 'set_stages(pipeline, "phases", ' + ", ".join(f'"{stage}"' for stage in facts["stages"]) in snippet
    made: Any = Pipeline()
    exec(compile(snippet, "README.md", "exec"), {"pipeline": made})
    given = [made.stage_1.given, made.stage_2.given]
    rest = stage.from_checkpoint("path", "bf16", "cpu").given
    assert given == [
        rest | {"checkpoint_path": str(path)}
        for path in (tmp_path / "base.safetensors", Path("phases/phase1.safetensors"))
    ]


def test_every_recipe_of_stages_is_called_as_upstream_calls_it() -> None:
    for name, facts in UPSTREAM["pipelines"].items():
        phases = ltx2c.recipes.PIPELINES[name].phases
        assert len(facts["stages"]) == len(phases), name
