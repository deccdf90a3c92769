"""The plan as a value: through JSON into another process, which writes the same bytes or refuses by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fusing import small_model
from refusals import refused

import ltx2c
from ltx2c import Plan, plan_fuse

EXECUTE = """
import sys, ltx2c
ltx2c.execute(ltx2c.Plan.from_json(open(sys.argv[1]).read()), sys.argv[2], threads=1)
"""


def planned(folder: Path) -> tuple[Path, list[tuple[Path, float]], Plan]:
    base, adapters, _ = small_model(folder)
    return base, adapters, plan_fuse(base, adapters)


def test_json_gives_an_equal_plan(tmp_path: Path) -> None:
    _, _, plan = planned(tmp_path)
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.to_json() == plan.to_json()
    assert list(again.fusions) == list(plan.fusions)
    assert pickle.loads(pickle.dumps(again.base)) == plan.base


def test_a_strength_keeps_every_bit(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    odd = [(adapters[0][0], 0.1), (adapters[1][0], -1e-45)]
    plan = plan_fuse(base, odd)
    again = Plan.from_json(plan.to_json())
    strengths = [[one.effective_strength.hex() for one in deltas] for deltas in plan.fusions.values()]
    assert [[one.effective_strength.hex() for one in deltas] for deltas in again.fusions.values()] == strengths


def test_another_process_in_another_folder_writes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = plan_fuse(base.name, [(path.name, strength) for path, strength in adapters])
    (tmp_path / "plan.json").write_text(plan.to_json())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-c", EXECUTE, str(tmp_path / "plan.json"), "there.safetensors"]
    subprocess.run(command, check=True, cwd=elsewhere)
    ltx2c.fuse_checkpoint(base.name, adapters, "here.safetensors")
    assert (elsewhere / "there.safetensors").read_bytes() == (tmp_path / "here.safetensors").read_bytes()


def replace_by_equal_header(path: Path) -> None:
    """Another file of the same size, header and times but for ctime, which nobody can set."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")


def replace_by_another(path: Path) -> None:
    shutil.copy(next(other for other in path.parent.glob("lora*") if other != path), path)


def replace_by_rubbish(path: Path) -> None:
    path.write_bytes(b"rubbish")


CHANGES = [replace_by_equal_header, change_in_place, replace_by_another]


@pytest.mark.parametrize("change", [*CHANGES, replace_by_rubbish])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["base", "first adapter", "second adapter"])
def test_what_was_replaced_is_refused_by_name_and_nothing_is_written(
    change: Callable[[Path], None], which: int, tmp_path: Path
) -> None:
    base, adapters, plan = planned(tmp_path)
    path = [base, *(path for path, _ in adapters)][which]
    text = plan.to_json()
    change(path)
    before = set(tmp_path.iterdir())
    code = "file-changed" if change in CHANGES else "header-too-short"
    with refused(code, path.name):
        ltx2c.execute(Plan.from_json(text), tmp_path / "out")
    assert set(tmp_path.iterdir()) == before


def test_a_changed_index_is_refused(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, [], tmp_path / "sharded", max_shard_bytes=5000)
    plan = plan_fuse(tmp_path / "sharded", adapters)
    ltx2c.execute(plan, tmp_path / "out")
    index = tmp_path / "sharded" / "base.safetensors.index.json"
    index.write_text(index.read_text().replace('"total_size"', '"other"'))
    with refused("file-changed", "sharded", "index_sha256"):
        ltx2c.execute(plan, tmp_path / "again")


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "{}", "null", '{"ltx2c_plan": 99}', '{"ltx2c_plan": 1}', "[" * 100_000],
    ids=lambda text: text[:20],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with refused("bad-plan"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    "damage",
    [
        lambda plan: plan["fusions"]["model.diffusion_model.a.weight"][0].update(key="gone"),
        lambda plan: plan["fusions"].update(gone=[]),
        lambda plan: plan["fusions"]["model.diffusion_model.a.weight"][0].update(adapter=7),
        lambda plan: plan["adapters"][0].update(more=1),
        lambda plan: plan["base"].pop("files"),
        lambda plan: plan.update(fusions=[]),
    ],
)
def test_a_damaged_plan_is_refused(damage: Callable[[dict], None], tmp_path: Path) -> None:
    _, _, plan = planned(tmp_path)
    document = json.loads(plan.to_json())
    damage(document)
    with refused("bad-plan"):
        ltx2c.execute(Plan.from_json(json.dumps(document)), tmp_path / "out")
