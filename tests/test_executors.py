"""A fuse by the workers of an executor: the same bytes, put in place once; what goes wrong leaves nothing."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fp8_models import fp8_base
from fusing import adapter, save, small_model, values
from model_folders import make_adapter, pipeline, tree
from refusals import refused

import ltx2c
from ltx2c import kernels
from ltx2c.files import remembered
from ltx2c.files.staging import Staged
from ltx2c.jobs import hidden, kept, units
from ltx2c.jobs.job import Job
from ltx2c.jobs.run import work_unit

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "SMALLEST_UNIT_BYTES", 10_000)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_processes_make_the_same_file_and_it_is_put_in_place_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "single")
    before = names(tmp_path)
    placed: list[Staged] = []
    place = Staged.place
    monkeypatch.setattr(Staged, "place", lambda staged: placed.append(staged) or place(staged))
    seen: list[ltx2c.progress.Progress] = []
    with ProcessPoolExecutor(2, mp_context=SPAWN) as processes:
        report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=processes, progress=seen.append)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "single").read_bytes()
    assert names(tmp_path) == {*before, "out"} and (tmp_path / "out").stat().st_nlink == 1
    assert len(placed) == 1 and len(seen) > 5
    assert seen[-1].bytes_done == seen[-1].bytes_total and seen[-1].macs_done == seen[-1].macs_total > 0
    assert report.threads == 1 and any("1 thread for each unit" in note for note in report.notes)


@pytest.mark.parametrize("options", [{"max_shard_bytes": 20_000}, {"sha256": True}, {"reuse": True}, {"card": True}])
def test_options_mean_what_they_mean_without(
    options: dict[str, Any], tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SETTLED_NS", -1)
    base, adapters, _ = small_model(tmp_path)
    results = []
    for name in ("single", "divided"):
        (tmp_path / name).mkdir()
        chosen = {"executor": executor} if name == "divided" else {}
        report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / name / "out", **options, **chosen)
        again = ltx2c.fuse_checkpoint(base, adapters, tmp_path / name / "out", **{**options, **chosen, "force": True})
        assert again.reused == ("reuse" in options)
        digests = {Path(path).name: digest for path, digest in report.sha256.items()}
        results.append((tree(tmp_path / name), digests, report.loss))
    assert results[0] == results[1] and len(results[0][0]) > ("card" in options)
    assert bool(results[0][1]) == ("sha256" in options)


def test_a_pipelines_folder_with_what_stands_beside_its_weights(tmp_path: Path, executor: Executor) -> None:
    base = pipeline(tmp_path / "base")
    lora, _ = make_adapter(tmp_path / "lora.safetensors")
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], tmp_path / "single", card=True)
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], tmp_path / "out", card=True, executor=executor)
    assert tree(tmp_path / "out") == tree(tmp_path / "single")


def test_the_loss_of_quantised_weights_is_summed_over_units(tmp_path: Path, executor: Executor) -> None:
    base, adapters = fp8_base(tmp_path, "weight_scale", 300, 1, first=True)
    single = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "single")
    divided = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=executor)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "single").read_bytes()
    assert divided.loss.encoded == single.loss.encoded and divided.loss.encoded.elements
    assert divided.loss.size.delta == pytest.approx(single.loss.size.delta, rel=1e-12)


def overflowing(folder: Path) -> tuple[Path, list[tuple[Path, float]]]:
    """Infinite in the first and the last rows of a weight, which lie in different units."""
    base = save(folder / "base", {"m.weight": values(2, 6000, 8)})
    factors = adapter({"m": (6000, 2, 8)}, 5)
    factors["diffusion_model.m.lora_B.weight"][[0, 5999]] = 3e38
    factors["diffusion_model.m.lora_A.weight"][:] = 3e38
    return base, [(save(folder / "lora", factors), 1.0)]


@pytest.mark.parametrize("resume", [False, True])
def test_overflows_in_several_units_are_summed_and_refused(resume: bool, tmp_path: Path, executor: Executor) -> None:
    base, adapters = overflowing(tmp_path)
    before = names(tmp_path)
    with refused("nonfinite", "m.weight has 16 infinite"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=executor, resume=resume)
    assert names(tmp_path) == before
    report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=executor, allow_nonfinite=True)
    assert report.nonfinite == {"m.weight": 16}


def failing(*_: object) -> None:
    raise OSError(5, "the disk is on fire")


def test_a_unit_that_always_fails_leaves_nothing_and_is_named(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    before = names(tmp_path)
    do = units.UnitWorker.do
    monkeypatch.setattr(units.UnitWorker, "do", lambda self, number: failing() if number == 4 else do(self, number))
    with pytest.raises(OSError, match=r"unit 4 \(bytes \d+ to \d+ of .*/out\): the disk is on fire") as caught:
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=executor)
    assert caught.value.errno == 5 and names(tmp_path) == before


class Remote(Executor):
    """As Dask's: a call that is cancelled says so at once and goes on all the same, and nobody is ever notified."""

    def __init__(self, tardy: threading.Event) -> None:
        self.threads: list[threading.Thread] = []
        self._tardy = tardy

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        first = not self.threads

        def run() -> None:
            try:
                if not first:
                    self._tardy.wait()
                result = call(*args, **options)
                future.set_result(result)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        return future


def test_workers_that_go_on_after_a_failure_hold_up_nothing_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    before = names(tmp_path)
    do = units.UnitWorker.do
    monkeypatch.setattr(units.UnitWorker, "do", lambda self, number: do(self, number) if number else failing())
    remote = Remote(tardy := threading.Event())
    with pytest.raises(OSError, match="on fire"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=remote)
    assert names(tmp_path) == before
    tardy.set()
    for thread in remote.threads:
        thread.join()
    assert names(tmp_path) == before


class Touching(ThreadPoolExecutor):
    """Changes an input before the first unit is begun."""

    def __init__(self, path: Path) -> None:
        super().__init__(1)
        self._processes = ProcessPoolExecutor(1, mp_context=SPAWN)
        self._path = path

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._path.touch()
        return self._processes.submit(call, *args, **options)


def test_a_workers_refusal_reaches_the_caller_with_its_code(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with Touching(adapters[1][0]) as processes, refused("file-changed", "unit 0 ", "lora1", "mtime_ns was"):
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=processes)
    processes._processes.shutdown()
    assert not [name for name in names(tmp_path) if "out" in name]


class Dying(ThreadPoolExecutor):
    """Processes, of which one dies in its third unit."""

    def __init__(self) -> None:
        super().__init__(1)
        self._processes = ProcessPoolExecutor(1, mp_context=SPAWN)
        self._left = 2

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._left -= 1
        return self._processes.submit(*((call, *args) if self._left >= 0 else (os._exit, 1)))


@pytest.mark.parametrize("resume", [False, True])
def test_a_worker_that_dies_is_told_in_one_line(resume: bool, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "single")
    before = names(tmp_path)
    with Dying() as processes, pytest.raises(OSError, match=r"unit \d+ \(bytes .*BrokenProcessPool") as caught:
        ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=processes, resume=resume)
    processes._processes.shutdown()
    assert "\n" not in str(caught.value)
    assert (names(tmp_path) == before) is not resume  # what is done stays only where it is to be resumed
    report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", resume=resume)
    assert [note for note in report.notes if "resumed" in note] == ["resumed: 2 of 10 units had been done"] * resume
    assert (tmp_path / "out").read_bytes() == (tmp_path / "single").read_bytes()
    assert names(tmp_path) == {*before, "out"}


@pytest.mark.parametrize(("threads", "expected"), [(2, 2), (None, 1)])
def test_threads_are_as_asked_whatever_the_environment_says(
    threads: int | None, expected: int, tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    seen = []
    fuser = units.UnitFuser
    monkeypatch.setattr(units, "UnitFuser", lambda *given, **options: seen.append(given[2]) or fuser(*given, **options))
    report = ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out", executor=executor, threads=threads)
    assert set(seen) == {expected} and report.threads == expected


def test_a_worker_opens_a_runs_inputs_once_and_lets_go_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapters, _ = small_model(tmp_path)
    job = Job.create(tmp_path / "job", ltx2c.plan_fuse(base, adapters), tmp_path / "out", units=4)
    opened: list[int] = []
    closed: list[int] = []
    working = kept.working

    @contextlib.contextmanager
    def counted(*given: Any) -> Iterator[units.UnitWorker]:
        opened.append(len(opened))
        try:
            with working(*given) as worker:
                yield worker
        finally:
            closed.append(len(opened))

    monkeypatch.setattr(kept, "working", counted)
    first, second = (kept.Run(str(job.path), 1, attempt) for attempt in ("first", "second"))
    for number in (0, 1, 1):
        work_unit(first, number)
    assert len(opened) == 1 and not closed
    with kept.unit_worker(first) as one, kept.unit_worker(first) as other:  # two threads of a process
        assert one is not other and len(opened) == 2
    work_unit(second, 2)
    assert len(opened) == 3 and len(closed) == 2
    adapters[0][0].touch()
    with refused("file-changed"):
        work_unit(second, 3)
    assert len(closed) == 3 and not kept._idle
    monkeypatch.setattr(kept, "_SECONDS", 0.01)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "single")
    job = Job.create(tmp_path / "another", ltx2c.plan_fuse(base, adapters), tmp_path / "out", units=4)
    work_unit(kept.Run(str(job.path), 1, "third"), 0)
    deadline = time.monotonic() + 20
    while len(closed) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not kept._idle and len(closed) == 4


def test_two_workers_on_one_unit_with_different_kernels_make_the_same_bytes(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "single")
    job = Job.create(tmp_path / "job", ltx2c.plan_fuse(base, adapters), tmp_path / "out", units=4)
    command = [sys.executable, "-m", "ltx2c", "job", "unit", str(job.path), "1", "--json"]
    at_work = [
        subprocess.Popen(command, env={**os.environ, "LTX2C_KERNEL": kernel}, stdout=subprocess.PIPE)
        for kernel in kernels.available()
    ]
    marks = [json.loads(process.communicate()[0])["xxh3"] for process in at_work]
    assert len(marks) > 1 and len(set(marks)) == 1
    job.run()
    assert (tmp_path / "out").read_bytes() == (tmp_path / "single").read_bytes()
