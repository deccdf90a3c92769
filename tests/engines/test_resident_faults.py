"""Binds that fail, are interrupted, or overlap: the state is known and named, and the next bind repairs it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import bits
from phase_model import PREFIX, expected, make, recipe_in
from refusals import refused
from tensor_files import pair, weight, write

from ltx2c import Recipe, ResidentCheckpoint
from ltx2c.engines import arena, fill, residency, rows
from ltx2c.engines import resident as resident_module
from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile
from ltx2c.files.buffers import HUGE_PAGE, allocate

BUDGET = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make(folder)
    return folder


@pytest.fixture
def recipe(folder: Path) -> Recipe:
    return recipe_in(folder, "ti2vid_two_stages", loras=["u"], distilled=["d"])


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor per batch, so that a bind can stop between two."""
    monkeypatch.setattr(fill, "_BATCH_BYTES", 1)


def holds(resident: ResidentCheckpoint, folder: Path, phase: int | str) -> bool:
    state = [] if phase == "base" else list(resident.recipe.phases[int(phase)].state)
    return all(
        np.array_equal(bits(resident.tensors[key]), bits(value)) for key, value in expected(folder, state).items()
    )


class Failing:
    """A stand-in for ``function`` that raises ``error`` once, at its call number ``at``."""

    def __init__(self, function: Callable[..., Any], error: BaseException, at: int) -> None:
        self.function, self.error, self.at, self.calls = function, error, at, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*args, **kwargs)


def fail_reading(monkeypatch: pytest.MonkeyPatch, at: int) -> type[BaseException]:
    failing = Failing(TensorFile.read_into, OSError(5, "Input/output error", "base"), at)
    monkeypatch.setattr(TensorFile, "read_into", lambda *args: failing(*args))
    return OSError


def fail_fusing(monkeypatch: pytest.MonkeyPatch, at: int) -> type[BaseException]:
    monkeypatch.setattr(rows, "fuse_jobs", Failing(rows.fuse_jobs, KeyboardInterrupt(), at))
    return KeyboardInterrupt


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("fail", [fail_reading, fail_fusing])
class TestFailedBind:
    @pytest.mark.parametrize("at", [1, 2, 3])
    @pytest.mark.parametrize("repair", [0, 1, "base"])
    def test_in_place(
        self,
        folder: Path,
        recipe: Recipe,
        monkeypatch: pytest.MonkeyPatch,
        fail: Callable[..., type[BaseException]],
        at: int,
        repair: int | str,
    ) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:
            before = {key: array.copy() for key, array in resident.tensors.items()}
            with monkeypatch.context() as patch:
                error = fail(patch, at)
                with pytest.raises(error):
                    resident.bind(1)
            assert resident.state.name == "unfinished phase1"
            assert resident.state.adapters == ()
            assert 1 <= len(resident.state.torn) <= 3
            fused = expected(folder, list(recipe.phases[1].state))
            for key, array in resident.tensors.items():
                if key not in resident.state.torn:
                    assert any(np.array_equal(bits(array), bits(whole[key])) for whole in (before, fused)), key
            resident.bind(repair)
            assert resident.state.torn == () and holds(resident, folder, repair)

    @pytest.mark.parametrize("repair", [0, 1, "base"])
    def test_with_a_second_copy_the_live_one_stays_whole(
        self,
        folder: Path,
        recipe: Recipe,
        monkeypatch: pytest.MonkeyPatch,
        fail: Callable[..., type[BaseException]],
        repair: int | str,
    ) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe, memory_budget=BUDGET) as resident:
            with monkeypatch.context() as patch:
                error = fail(patch, 2)
                with pytest.raises(error):
                    resident.bind(1)
            assert resident.state.name == "phase0" and holds(resident, folder, 0)
            resident.bind(repair)
            assert holds(resident, folder, repair)

    def test_at_load(
        self,
        folder: Path,
        recipe: Recipe,
        monkeypatch: pytest.MonkeyPatch,
        fail: Callable[..., type[BaseException]],
    ) -> None:
        open_files = len(list(Path("/proc/self/fd").iterdir()))
        # Headers are read by the same function: each of the three files takes three reads.
        with monkeypatch.context() as patch, pytest.raises(fail(patch, 2 if fail is fail_fusing else 12)):
            ResidentCheckpoint.open(folder / "base.safetensors", recipe)
        assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.usefixtures("small_batches")
def test_nothing_changes_in_place_until_the_second_copy_is_written(
    folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_module, "choose_double_buffered", lambda *args: (f"{PREFIX}d.weight",))
    with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:
        with monkeypatch.context() as patch:
            fail_fusing(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                resident.bind(1)
        assert resident.state.name == "phase0" and holds(resident, folder, 0)


def test_repair_touches_only_what_is_torn_or_differs(
    folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, small_batches: None
) -> None:
    with ResidentCheckpoint.open(folder / "base.safetensors", recipe, threads=1) as resident:
        with monkeypatch.context() as patch:
            fail_fusing(patch, 3)
            with pytest.raises(KeyboardInterrupt):
                resident.bind(1)
        assert resident.state.torn == (f"{PREFIX}e.weight",)
        assert resident.bind(1).fused == 1


class TestNonfinite:
    @pytest.fixture
    def model(self, tmp_path: Path) -> tuple[Path, Recipe]:
        huge = pair("x", 4, 1, 4)
        huge = {key: np.full_like(value, 3e30) for key, value in huge.items()}
        tensors = {"x.weight": weight(4, 4), "y.weight": weight(4, 4)}
        path = write(tmp_path / "base.safetensors", tensors)
        d = write(tmp_path / "d.safetensors", {**huge, **pair("y", 4, 1, 4)})
        return path, Recipe.named("a2vid_two_stage", distilled_lora=d)

    def test_is_refused_by_key_and_count(self, model: tuple[Path, Recipe]) -> None:
        with ResidentCheckpoint.open(*model) as resident:
            with refused("nonfinite", "base.safetensors", "x.weight has 16 infinite or NaN"):
                resident.bind(1)
            assert resident.state.name == "unfinished phase1" and resident.state.torn == ("x.weight",)
            resident.bind(0)
            assert resident.state.name == "phase0" and np.isfinite(resident.tensors["x.weight"]).all()

    def test_never_reaches_the_live_copy_of_a_double_buffered_tensor(self, model: tuple[Path, Recipe]) -> None:
        with ResidentCheckpoint.open(*model, memory_budget=BUDGET) as resident:
            with refused("nonfinite", "x.weight"):
                resident.bind(1)
            assert resident.state.name == "phase0" and np.isfinite(resident.tensors["x.weight"]).all()

    def test_may_be_allowed(self, model: tuple[Path, Recipe]) -> None:
        with ResidentCheckpoint.open(*model, allow_nonfinite=True) as resident:
            resident.bind(1)
            assert resident.state.name == "phase1" and not np.isfinite(resident.tensors["x.weight"]).any()


def run_on_model(folder: Path, program: str) -> None:
    """In a process of its own, so that threads that wait for ever end with it."""
    beginning = """
import os, sys, threading
from ltx2c import Recipe, ResidentCheckpoint
from ltx2c.engines import residency

base, adapter = sys.argv[1:]
resident = ResidentCheckpoint.open(base, Recipe.named("a2vid_two_stage", distilled_lora=adapter))
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", beginning + program]
    subprocess.run([*command, folder / "base.safetensors", folder / "d.safetensors"], check=True, timeout=30)


class TestBackground:
    def test_future_gives_the_report(self, folder: Path, recipe: Recipe) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:
            report = resident.bind_async("phase1").result()
            assert (report.state, report.fused) == ("phase1", 3)
            assert holds(resident, folder, 1)

    def test_future_gives_the_error(self, folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:
            with monkeypatch.context() as patch:
                fail_reading(patch, 1)
                future = resident.bind_async(1)
                with pytest.raises(OSError, match="Input/output"):
                    future.result()
            resident.bind(1)
            assert holds(resident, folder, 1)

    def test_an_unknown_phase_is_refused_at_once(self, folder: Path, recipe: Recipe) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident, refused("unknown-phase"):
            resident.bind_async(5)

    def test_calls_run_in_the_order_they_were_made(self, folder: Path, recipe: Recipe) -> None:
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:
            for phases in [(1, 0, 1, "base"), ("base", 1, 0), (1, 1, 0, 1)]:
                futures = [resident.bind_async(phase) for phase in phases[:-1]]
                resident.bind(phases[-1])
                assert all(future.done() for future in futures)
                assert holds(resident, folder, phases[-1])

    def test_overlapping_calls_are_serialised(
        self, folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        running, most = 0, 0

        def watched(*args: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.001)
            try:
                return fill_memory(*args)
            finally:
                running -= 1

        fill_memory = residency.fill
        monkeypatch.setattr(residency, "fill", watched)
        with ResidentCheckpoint.open(folder / "base.safetensors", recipe) as resident:

            def wander(seed: int) -> None:
                walk = random.Random(seed)
                for _ in range(15):
                    phase = walk.choice([0, 1, "base"])
                    if walk.random() < 0.5:
                        resident.bind(phase)
                    else:
                        resident.bind_async(phase)

            threads = [threading.Thread(target=wander, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            resident.bind_async(1).result()
            assert most == 1
            name = resident.state.name
            assert holds(resident, folder, 1) and name == "phase1"

    def test_close_waits_for_the_bind_that_runs_and_refuses_those_behind_it(
        self, folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resident = ResidentCheckpoint.open(folder / "base.safetensors", recipe)
        started, go_on = threading.Event(), threading.Event()
        fill_memory = residency.fill

        def held_up(*args: Any) -> Any:
            started.set()
            assert go_on.wait(30)
            return fill_memory(*args)

        monkeypatch.setattr(residency, "fill", held_up)
        running = resident.bind_async(1)
        assert started.wait(30)
        waiting = [resident.bind_async(phase) for phase in ("base", 0)]
        closing = threading.Thread(target=resident.close)
        closing.start()
        while True:  # newcomers are refused while close still waits
            try:
                waiting.append(resident.bind_async(0))
            except RefusedError as error:
                assert error.code == "closed"
                break
        assert not running.done()
        go_on.set()
        closing.join()
        assert running.result().state == "phase1"
        for future in waiting:
            with refused("closed"):
                future.result()

    def test_a_callback_may_bind_and_close(self, folder: Path) -> None:
        run_on_model(
            folder,
            """
with resident._turns._turn:  # nothing runs until both are asked for
    future = resident.bind_async(1)
    waiting = resident.bind_async(0)
    states, finished = [], threading.Event()

    def bind_and_close(future):
        states.extend([future.result().state, resident.bind("base").state])
        resident.close()
        finished.set()

    future.add_done_callback(bind_and_close)
finished.wait()
assert states == ["phase1", "base"] and waiting.exception().code == "closed"
""",
        )

    def test_a_forked_child_binds_in_a_background_of_its_own(self, folder: Path) -> None:
        run_on_model(
            folder,
            """
started, go_on, fill_memory = threading.Event(), threading.Event(), residency.fill

def held_up(*args):
    started.set()
    go_on.wait()
    return fill_memory(*args)

residency.fill = held_up
future = resident.bind_async(1)
started.wait()
if not (child := os.fork()):
    residency.fill = fill_memory
    reports = [resident.bind_async("base").result(), resident.bind(1), resident.bind_async(0).result()]
    resident.close()
    os._exit([report.state for report in reports] != ["base", "phase1", "phase0"])
_, status = os.waitpid(child, 0)
go_on.set()
assert status == 0 and future.result().state == "phase1"
""",
        )


@pytest.mark.usefixtures("small_batches")
class TestInputsThatChangeDuringABind:
    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        make(tmp_path)
        return tmp_path

    def bind_while_the_base_is_written(self, resident: ResidentCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        base, read_into = resident.recipe.paths[0].parent / "base.safetensors", TensorFile.read_into

        def spoilt(*args: Any) -> None:
            read_into(*args)
            os.utime(base, ns=(1, 1))

        with monkeypatch.context() as patch, refused("file-changed", "base.safetensors"):
            patch.setattr(TensorFile, "read_into", spoilt)
            resident.bind(1)

    def test_leave_what_was_read_torn(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        recipe = recipe_in(own, "a2vid_two_stage", distilled=["d"])
        with ResidentCheckpoint.open(own / "base.safetensors", recipe) as resident:
            self.bind_while_the_base_is_written(resident, monkeypatch)
            assert resident.state.name == "unfinished phase1"
            assert resident.state.torn == tuple(f"{PREFIX}{name}.weight" for name in "cde")

    def test_never_reach_the_live_copy_of_a_double_buffered_tensor(
        self, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = recipe_in(own, "a2vid_two_stage", distilled=["d"])
        with ResidentCheckpoint.open(own / "base.safetensors", recipe, memory_budget=BUDGET) as resident:
            self.bind_while_the_base_is_written(resident, monkeypatch)
            assert resident.state.name == "phase0" and holds(resident, own, 0)


class TestSwitch:
    def test_exchanges_contents_and_keeps_addresses(self) -> None:
        size = HUGE_PAGE
        memory, spare = allocate(3 * size), allocate(size)
        memory[:], spare[:] = 1, 2
        arena.switch(memory[:size], spare)
        assert (memory[:size] == 2).all() and (memory[size:] == 1).all() and (spare == 1).all()

    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_that_the_kernel_refuses_leaves_contents_exchanged_or_untouched(
        self, monkeypatch: pytest.MonkeyPatch, at: int
    ) -> None:
        size = 2 * HUGE_PAGE
        one, other = allocate(size), allocate(size)
        one[:], other[:] = 1, 2
        move, calls = arena._move_pages, []

        def refusing(source: arena.Bytes, target: arena.Bytes) -> bool:
            calls.append(1)
            return False if len(calls) == at else move(source, target)

        monkeypatch.setattr(arena, "_move_pages", refusing)
        if at == 1:  # nothing has moved yet: bytes are copied instead
            arena.switch(one, other)
            assert (one == 2).all() and (other == 1).all()
        else:
            with pytest.raises(OSError):
                arena.switch(one, other)
            assert (one == 1).all() and (other == 2).all()
