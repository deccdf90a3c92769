"""Jobs: units done in any order, again, by others, killed at any step; the result is whole or absent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fp8_models import fp8_base
from fusing import adapter, save, small_model, values
from refusals import refused

import ltx2c
from ltx2c import cli
from ltx2c.files.positional import PositionalFile
from ltx2c.files.staging import Staged
from ltx2c.jobs import finish
from ltx2c.jobs import folder as jobs_folder
from ltx2c.jobs.job import Job
from ltx2c.jobs.marks import Mark
from ltx2c.jobs.units import UnitWorker

Adapters = list[tuple[Path, float]]


class Made:
    """A base, its adapters and the whole result, and a job that makes it again."""

    def __init__(self, folder: Path, base: Path, adapters: Adapters) -> None:
        self.folder, self.base, self.adapters = folder, base, adapters
        ltx2c.fuse_checkpoint(base, adapters, folder / "single", force=True)
        self.whole = (folder / "single").read_bytes()
        (folder / "single").unlink()
        self.out = folder / "out.safetensors"

    def job(self, units: int = 7, **options: object) -> Job:
        return Job.create(
            self.folder / "job", ltx2c.plan_fuse(self.base, self.adapters), self.out, units=units, **options
        )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    base, adapters, _ = small_model(tmp_path)
    return Made(tmp_path, base, adapters)


def test_units_in_any_order_and_again_then_finish(made: Made) -> None:
    job = made.job()
    assert job.status().missing == tuple(range(7))
    for number in (6, 0, 3, 3, 1, 5, 4):
        Job.open(job.path).unit(number, threads=1)
    assert not made.out.exists()
    with refused("job-unfinished", "such as 2"):
        job.finish()
    job.unit(2)
    report = Job.open(job.path).finish()
    assert made.out.read_bytes() == made.whole and not job.path.exists()
    assert report.out == made.out and report.tensors_fused == 4
    assert not [path for path in made.folder.iterdir() if "part" in path.name]
    assert made.out.stat().st_nlink == 1


@pytest.mark.parametrize("companion", [("weight_scale", 1), ("weight_scale", 300, 1), ("weight_scale_inv", 3, 2)])
def test_companions_come_with_their_weights_wherever_they_lie(companion: tuple, tmp_path: Path) -> None:
    made = Made(tmp_path, *fp8_base(tmp_path, *companion, first=True))
    made.job(9).run()
    assert made.out.read_bytes() == made.whole


def test_a_folder_of_shards(made: Made) -> None:
    made.out = made.folder / "out"
    made.job(max_shard_bytes=20_000).run(threads=1)
    ltx2c.fuse_checkpoint(made.base, made.adapters, made.folder / "shards", max_shard_bytes=20_000)
    expected = {path.name: path.read_bytes() for path in (made.folder / "shards").iterdir()}
    assert {path.name: path.read_bytes() for path in made.out.iterdir()} == expected


def test_a_value_that_overflows_in_one_unit_refuses_the_whole(tmp_path: Path) -> None:
    base = save(tmp_path / "base", {"m.weight": values(2, 600, 8)})
    factors = adapter({"m": (600, 2, 8)}, 5)
    factors["diffusion_model.m.lora_B.weight"][[0, 599]] = 3e38
    factors["diffusion_model.m.lora_A.weight"][:] = 3e38
    plan = ltx2c.plan_fuse(base, [(save(tmp_path / "lora", factors), 1.0)])
    job = Job.create(tmp_path / "job", plan, tmp_path / "out", units=4)
    assert len(job.order.units) == 4
    found = [sum(job.unit(number).nonfinite.values()) for number in range(4)]
    assert found[0] and found[3]  # in several units of one weight
    with refused("nonfinite", f"{sum(found)} infinite or NaN"):
        job.finish()
    assert not (tmp_path / "out").exists() and job.status().missing == ()


def test_bytes_that_are_not_as_marked_are_refused(made: Made) -> None:
    job = made.job()
    for number in range(7):
        job.unit(number)
    part = next((job.path / "parts").iterdir())
    with PositionalFile(part) as file:
        file.write(job.order.units[3].begin, memoryview(b"\1\2\3"))
    with refused("job-damaged", "unit 3"):
        job.finish()
    assert not made.out.exists()
    job.unit(3)
    job.finish()
    assert made.out.read_bytes() == made.whole


class Killed(BaseException):
    """In the place of SIGKILL: nothing of the program's own cleans up after it, but for what Python itself does."""


KILLED_AT = {
    "before a unit's bytes": (PositionalFile, "write"),
    "before they are durable": (PositionalFile, "sync"),
    "before a mark": (Mark, "write"),
    "before publishing": (finish, "publish"),
    "while the parts are taken": (Staged, "adopt"),
    "before the job is removed": (jobs_folder.shutil, "rmtree"),
}


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_kill_at_any_step_leaves_the_destination_absent_or_whole_and_the_rest_to_do(at: str, made: Made) -> None:
    """In a forked child, which kills itself."""
    job = made.job()
    for number in range(5):
        job.unit(number)
    where, name = KILLED_AT[at]
    child = os.fork()
    if child == 0:
        setattr(where, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        job.run(threads=1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert not made.out.exists() or made.out.read_bytes() == made.whole
    again = Job.open(job.path)
    done: list[int] = []
    original = UnitWorker.do
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitWorker, "do", lambda self, number: done.append(number) or original(self, number))
        expected = again.missing()
        again.run(threads=1)
    assert done == expected and set(done) <= {5, 6}
    assert made.out.read_bytes() == made.whole and not job.path.exists()
    assert not [path.name for path in made.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors(kind: str, made: Made) -> None:
    executor: Executor
    if kind == "threads":
        executor = ThreadPoolExecutor(2)
    else:
        executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    with executor:
        made.job().run(threads=1, executor=executor)
    assert made.out.read_bytes() == made.whole


def test_a_unit_that_always_fails_leaves_no_output_and_is_named(made: Made) -> None:
    job = made.job()
    next((job.path / "parts").iterdir()).unlink()
    with ThreadPoolExecutor(2) as executor, pytest.raises(OSError, match=r"unit \d+ \(bytes \d+ to \d+ of "):
        job.run(executor=executor)
    assert not made.out.exists() and job.path.exists()
    job.abandon()
    assert not job.path.exists()


def test_an_input_that_changed_is_refused(made: Made) -> None:
    job = made.job()
    made.adapters[0][0].touch()
    with refused("file-changed", "lora0"):
        job.unit(0)
    with refused("bad-unit", "units 0 to 6, not 7"):
        job.unit(7)


def test_the_command(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(made.folder / "j")
    loras = [word for path, strength in made.adapters for word in ("--lora", str(path), str(strength))]
    create = ["job", "create", job, str(made.base), *loras, "-o", str(made.out), "--units", "3"]
    assert cli.main([*create, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == [0, 1, 2]
    assert cli.main(create) == 2
    assert "it exists" in capsys.readouterr().err
    assert cli.main(["job", "unit", job, "1"]) == 0
    assert cli.main(["job", "finish", job]) == 2
    assert cli.main(["job", "status", job]) == 0
    assert "2 of them to do\n  missing: 0, 2" in capsys.readouterr().out
    assert cli.main(["job", "run", job]) == 0
    assert made.out.read_bytes() == made.whole
    assert cli.main(["job", "status", job]) == 2
    assert "no job" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ltx2c_job": 2}', '{"ltx2c_job": 1, "program": "x", "plan": {}}'])
def test_a_damaged_order_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(text)
    with refused("bad-job", "order.json"):
        Job.open(tmp_path)


def test_two_do_not_run_it_at_once(made: Made) -> None:
    job = made.job()
    with job._folder.lease(), refused("job-busy"):
        Job.open(job.path).run()
    assert np.all(job.missing() == list(range(7)))


@pytest.mark.parametrize("ending", ["run", "abandon"])
def test_what_somebody_else_put_into_a_jobs_folder_stays(ending: str, made: Made) -> None:
    job = made.job(2)
    (job.path / "notes.txt").write_text("mine")
    getattr(job, ending)()
    assert [path.name for path in job.path.iterdir()] == ["notes.txt"]
    assert made.out.exists() == (ending == "run")
