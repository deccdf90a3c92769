"""The node pack for ComfyUI, against stand-ins with the signatures of ComfyUI's sources; not inside the real thing."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fusing import adapter, assert_same, load, save, small_model, values
from refusals import refused

import ltx2c
from ltx2c.files import remembered
from ltx2c.progress import Progress

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACK = Path(__file__).parents[1] / "integrations" / "comfyui"
STANDINS = Path(__file__).parent / "standins" / "comfyui"
# What ComfyUI's functions take, at the commits that are named there; no code of theirs.
SIGNATURES = json.loads((Path(__file__).parent / "data" / "comfyui.json").read_text())["signatures"]
READ_WHOLE = "a125cd84b054a57729b5eecab930ca9408719832"


class Comfy:
    """ComfyUI with the pack in it: its folders, modules and nodes."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.modules = {name: importlib.import_module(name) for name in ("calls", "comfy.sd", "comfy.utils")}
        self.management = importlib.import_module("comfy.model_management")
        self.folders = importlib.import_module("folder_paths").folder_names_and_paths
        self.folders.clear()
        for kind in ("checkpoints", "diffusion_models", "loras"):
            (models / kind).mkdir(parents=True)
            self.folders[kind] = ([str(models / kind)], {".safetensors", ".sft", ".ckpt"})
        pack = self._load_pack()
        nodes = asyncio.run(asyncio.run(pack.comfy_entrypoint()).get_node_list())
        self.nodes = {node.define_schema().node_id: node for node in nodes}

    @staticmethod
    def _load_pack() -> ModuleType:
        """As ComfyUI does: by path, the module's name made of that."""
        name = str(PACK).replace(".", "_x_")
        spec = importlib.util.spec_from_file_location(name, PACK / "__init__.py")
        assert spec and spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def loras(self, *given: tuple[str, float]) -> Any:
        """What a chain of LoRA nodes gives."""
        chained: Any = None
        for name, strength in given:
            before = {} if chained is None else {"before": chained}
            (chained,) = self.nodes["Ltx2cLoraToFuse"].execute(lora=name, strength=strength, **before).args
        return chained

    def load(self, base: str, loras: Any, **changed: Any) -> Any:
        """What the fusing node gives, with its own defaults."""
        node = self.nodes["Ltx2cFusedModel"]
        given = {one.id: getattr(one, "default", None) for one in node.define_schema().inputs}
        (model,) = node.execute(**(given | {"base": base, "loras": loras} | changed)).args
        return model

    def files(self) -> set[Path]:
        return set(self.models.rglob("*"))


@pytest.fixture
def comfy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Comfy]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SETTLED_NS", -1)
    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield Comfy(tmp_path / "models")
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith((str(STANDINS), str(PACK))):
            del sys.modules[name]


@pytest.fixture
def model(comfy: Comfy) -> tuple[Comfy, list[tuple[str, float]], dict[str, Any]]:
    """A base and two LoRAs in ComfyUI's folders; what fusing them must give."""
    base, adapters, wanted = small_model(comfy.models)
    base.rename(comfy.models / "checkpoints" / "base.safetensors")
    for path, _ in adapters:
        path.rename(comfy.models / "loras" / path.name)
    return comfy, [(path.name, strength) for path, strength in adapters], wanted


def test_the_stand_ins_have_upstreams_signatures(comfy: Comfy) -> None:
    rows = [row for row in SIGNATURES if row["commit"] == READ_WHOLE]
    assert len(rows) == 22 and len({row["name"] for row in SIGNATURES}) == 22
    for row in rows:
        assert parameters(standin(row["name"])) == {**row, "name": None, "file": None, "commit": None}, row["name"]


def test_every_call_of_the_pack_fits_each_version_that_was_read(model: Any) -> None:
    comfy, loras, _ = model
    calls = comfy.modules["calls"].CALLS
    comfy.load("checkpoints/base.safetensors", comfy.loras(*loras))
    (comfy.models / "checkpoints" / "base.safetensors").rename(comfy.models / "diffusion_models" / "base.safetensors")
    comfy.load("diffusion_models/base.safetensors", comfy.loras(*loras))
    called = {name for name, *_ in calls}
    assert called == {row["name"] for row in SIGNATURES if not row["name"].endswith(NOT_CALLED)}
    for name, words, named in calls:
        for row in SIGNATURES:
            if row["name"] == name:
                signature(row).bind(*words, **named)


NOT_CALLED = (
    ".get_node_list",
    ".define_schema",
    ".execute",
    ".fingerprint_inputs",  # of the pack, called by ComfyUI
    ".interrupt_current_processing",  # by the user's click
)


def test_what_comfyui_calls_of_the_nodes_is_there(comfy: Comfy) -> None:
    for node in comfy.nodes.values():
        schema = node.define_schema()
        ids = [one.id for one in schema.inputs]
        inspect.signature(node.execute).bind(**dict.fromkeys(ids))
        inspect.signature(node.fingerprint_inputs).bind(**dict.fromkeys(ids))
        assert schema.display_name and schema.category and schema.description and "." not in schema.node_id
        assert list(inspect.signature(node.execute).parameters) == ids


def test_the_fused_file_is_what_fuse_checkpoint_makes_and_comfyuis_loader_reads_it(model: Any, tmp_path: Path) -> None:
    comfy, loras, wanted = model
    base = comfy.models / "checkpoints" / "base.safetensors"
    got = comfy.load("checkpoints/base.safetensors", comfy.loras(*loras))
    assert got.loader == "checkpoint" and Path(got.path).parent == comfy.models / "checkpoints" / "ltx2c"
    assert_same(load(Path(got.path)), wanted)
    other = tmp_path / "other.safetensors"
    ltx2c.fuse_checkpoint(
        base, [(comfy.models / "loras" / name, strength) for name, strength in loras], other, reuse=True
    )
    assert Path(got.path).read_bytes() == other.read_bytes()
    done = comfy.modules["comfy.utils"].BARS[-1].seen
    assert done[0][0] == 0 and done[-1][0] == done[-1][1] > 0


def test_the_second_time_nothing_is_written(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    comfy, loras, _ = model
    caplog.set_level(logging.INFO)
    first = Path(comfy.load("checkpoints/base.safetensors", comfy.loras(*loras)).path)
    before = first.stat(), comfy.files()
    assert "4 of 8 tensors fused" in caplog.text and "reused" not in caplog.text
    assert comfy.load("checkpoints/base.safetensors", comfy.loras(*loras)).path == str(first)
    assert (first.stat(), comfy.files()) == before and "reused" in caplog.text


def test_a_split_model_goes_through_its_own_loader_and_lies_beside_the_base(model: Any, tmp_path: Path) -> None:
    comfy, loras, wanted = model
    more = tmp_path / "other disk"
    more.mkdir()
    comfy.folders["diffusion_models"][0].append(str(more))
    (comfy.models / "checkpoints" / "base.safetensors").rename(more / "base.safetensors")
    got = comfy.load("diffusion_models/base.safetensors", comfy.loras(*loras))
    assert got.loader == "diffusion model" and Path(got.path).parent == more / "ltx2c"
    assert_same(load(Path(got.path)), wanted)


def test_each_choice_has_a_file_of_its_own(model: Any) -> None:
    comfy, loras, _ = model
    (name, strength), (second, _) = loras
    chains = [loras, loras[::-1], [(name, strength + 2**-20), loras[1]], [(name, strength)], [(second, strength)]]
    paths = {comfy.load("checkpoints/base.safetensors", comfy.loras(*chain)).path for chain in chains}
    paths.add(comfy.load("checkpoints/base.safetensors", comfy.loras(*loras), arithmetic="f32").path)
    assert len(paths) == 6 and all(Path(path).name.startswith("base+lora") for path in paths)


def test_cancel_leaves_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    comfy, loras, _ = model
    save(
        comfy.models / "checkpoints" / "large.safetensors",
        {"model.diffusion_model.a.weight": values(1, 33, 65)} | LARGE,
    )
    loras, before = [loras[0]], comfy.files()
    given = ("checkpoints/large.safetensors", comfy.loras(*loras))
    bar = comfy.modules["comfy.utils"].ProgressBar
    update, clicked, seen = bar.update_absolute, [0], []

    def click(self: Any, *words: Any, **named: Any) -> None:
        seen.append(words)
        update(self, *words, **named)
        if len(seen) == clicked[0]:
            comfy.management.interrupt_current_processing()

    monkeypatch.setattr(bar, "update_absolute", click)
    path = Path(comfy.load(*given, unmatched="warn").path)
    done = [value for value, _ in seen]
    writing = next(at for at, value in enumerate(done) if value)
    assert writing > 2 and writing + 1 < len(done)  # steps while inputs are read, and between those of the writing
    path.unlink()
    path.parent.rmdir()
    for clicked[0] in (1, writing, writing + 1, len(done) - 1):
        seen.clear()
        shutil.rmtree(comfy.models.parent / "cache", ignore_errors=True)  # digests are taken again
        with pytest.raises(comfy.management.InterruptProcessingException):
            comfy.load(*given, unmatched="warn")
        assert comfy.files() == before and len(seen) == clicked[0]
    comfy.management.interrupt_current_processing()
    with pytest.raises(comfy.management.InterruptProcessingException):
        comfy.load(*given, unmatched="warn")
    assert comfy.files() == before and len(seen) == clicked[0]


LARGE = {f"left.{at}": np.zeros(12 << 20, np.uint8) for at in range(4)}


def test_a_file_of_another_request_is_refused_and_replaced_where_asked(model: Any) -> None:
    comfy, loras, _ = model
    first = comfy.load("checkpoints/base.safetensors", comfy.loras(*loras), name="mine")
    kept = Path(first.path).read_bytes()
    assert Path(first.path).name == "mine.safetensors"
    with refused("output-other-request", "mine.safetensors", "the input 'replace'"):
        comfy.load("checkpoints/base.safetensors", comfy.loras(loras[0]), name="mine")
    assert Path(first.path).read_bytes() == kept
    again = comfy.load("checkpoints/base.safetensors", comfy.loras(loras[0]), name="mine", replace=True)
    assert again.path == first.path and Path(first.path).read_bytes() != kept


def test_errors_are_one_line_in_the_nodes_words_and_leave_nothing(model: Any) -> None:
    comfy, _, _ = model
    save(comfy.models / "loras" / "odd.safetensors", adapter({"nowhere": (9, 3, 9), "a": (33, 3, 65)}, 7))
    before = comfy.files()
    with refused("unmatched-key", "odd.safetensors", "'warn' as the input 'unmatched'"):
        comfy.load("checkpoints/base.safetensors", comfy.loras(("odd.safetensors", 1.0)))
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        comfy.load("checkpoints/base.safetensors", comfy.loras(("gone.safetensors", 1.0)))
    assert comfy.files() == before


def test_unmatched_keys_may_pass_and_are_said(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    comfy, _, _ = model
    save(comfy.models / "loras" / "odd.safetensors", adapter({"nowhere": (9, 3, 9), "a": (33, 3, 65)}, 7))
    comfy.load("checkpoints/base.safetensors", comfy.loras(("odd.safetensors", 1.0)), unmatched="warn")
    assert "nowhere" in caplog.text


@pytest.mark.parametrize("folder", ["..", "../loras", "/tmp", "link"])
def test_nothing_is_written_outside_comfyuis_folders(model: Any, folder: str, tmp_path: Path) -> None:
    comfy, loras, _ = model
    (tmp_path / "elsewhere").mkdir()
    (comfy.models / "checkpoints" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="in none of ComfyUI's folders") as caught:
        comfy.load("checkpoints/base.safetensors", comfy.loras(*loras), folder=folder)
    assert "\n" not in str(caught.value) and not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["a/b", "..", "a\\b", "../../x.safetensors"])
def test_a_name_is_a_plain_name(model: Any, name: str) -> None:
    comfy, loras, _ = model
    with pytest.raises(ValueError, match="no plain file name"):
        comfy.load("checkpoints/base.safetensors", comfy.loras(*loras), name=name)


def test_a_known_folder_by_its_full_path_and_long_names(model: Any, tmp_path: Path) -> None:
    comfy, _, _ = model
    (tmp_path / "more").mkdir()
    comfy.folders["checkpoints"][0].append(str(tmp_path / "more"))
    long = "é" * 110 + ".safetensors"
    save(comfy.models / "loras" / long, adapter({"a": (33, 3, 65)}, 7))
    got = comfy.load(
        "checkpoints/base.safetensors", comfy.loras((long, 0.5)), folder=str(tmp_path / "more" / "x" / "y")
    )
    assert Path(got.path).parent == tmp_path / "more" / "x" / "y" and len(os.fsencode(Path(got.path).name)) < 200


def test_the_choices_are_files_that_ltx2c_reads(model: Any) -> None:
    comfy, _, _ = model
    (comfy.models / "checkpoints" / "old.ckpt").touch()
    (comfy.models / "diffusion_models" / "split.sft").touch()
    bases, loras = (
        comfy.nodes[name].define_schema().inputs[0].options for name in ("Ltx2cFusedModel", "Ltx2cLoraToFuse")
    )
    assert bases == ["checkpoints/base.safetensors", "diffusion_models/split.sft"]
    assert loras == ["lora0.safetensors", "lora1.safetensors"]


def test_a_changed_file_runs_the_node_again(model: Any) -> None:
    comfy, loras, _ = model
    for node, given, path in (
        ("Ltx2cFusedModel", {"base": "checkpoints/base.safetensors", "loras": None}, "checkpoints/base.safetensors"),
        ("Ltx2cLoraToFuse", {"lora": loras[0][0], "strength": 1.0, "before": None}, f"loras/{loras[0][0]}"),
    ):
        first = comfy.nodes[node].fingerprint_inputs(**given)
        assert comfy.nodes[node].fingerprint_inputs(**given) == first
        os.utime(comfy.models / path, ns=(1, 1))
        assert comfy.nodes[node].fingerprint_inputs(**given) != first


def test_the_text_says_that_bytes_differ_from_comfyuis_and_why(comfy: Comfy) -> None:
    told = comfy.nodes["Ltx2cFusedModel"].define_schema().description
    for text in (told, (PACK / "README.md").read_text()):
        for words in ("float16", "6e-5", "65504", "contract"):
            assert words in text


def test_what_the_registry_reads() -> None:
    project = tomllib.loads((PACK / "pyproject.toml").read_text())
    told = project["project"]
    assert told["version"] == ltx2c.__version__ and "comfyui" not in told["name"].lower()
    assert told["license"] == {"file": "LICENSE"} and (PACK / "LICENSE").read_text().lstrip().startswith(
        "Apache License"
    )
    assert told["dependencies"] == (PACK / "requirements.txt").read_text().split() == [f"ltx2c>={ltx2c.__version__}"]
    assert project["tool"]["comfy"].keys() >= {"PublisherId", "DisplayName"}


def standin(name: str) -> Any:
    """The stand-in of a full name."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[:at]))
    return found


def parameters(function: Any) -> dict[str, Any]:
    """A signature in the form of the data."""
    told: dict[str, Any] = {"name": None, "file": None, "commit": None, "required": [], "optional": []}
    for name, one in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if one.kind == one.VAR_POSITIONAL:
            told["rest"] = name
        elif one.kind == one.VAR_KEYWORD:
            told["others"] = name
        elif one.kind == one.KEYWORD_ONLY:
            told.setdefault("keywords", []).append(name)
        else:
            told["required" if one.default is one.empty else "optional"].append(name)
    return told


def signature(row: dict[str, Any]) -> inspect.Signature:
    kinds = inspect.Parameter
    made = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in row["required"]]
    made += [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None) for name in row["optional"]]
    made += [kinds(row["rest"], kinds.VAR_POSITIONAL)] if "rest" in row else []
    made += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in row.get("keywords", ())]
    return inspect.Signature(made)


def test_progress_has_the_fields_that_the_pack_reads() -> None:
    assert {"bytes_done", "bytes_total"} <= set(Progress._fields)
