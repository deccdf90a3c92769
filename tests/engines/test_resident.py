"""ResidentCheckpoint: counts as planned, bytes as the reference gives them, and what goes wrong."""

from __future__ import annotations

import dataclasses
import random
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from goldens import bits
from phase_model import CASES, PREFIX, TENSORS, Case, Counts, expected, ids, make, recipe_in, schedule
from refusals import refused
from safetensors.numpy import load_file
from tensor_files import pair, weight, write

from ltx2c import Checkpoint, Recipe, ResidentCheckpoint, plan_render, reference
from ltx2c.engines import arena
from ltx2c.plan.cost import Rates

BUDGET = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make(folder)
    return folder


def base_in(folder: Path) -> Path:
    return folder / "base.safetensors"


@pytest.fixture
def hq(folder: Path) -> Recipe:
    """Both phases fused: u and v, then D at 0.25 and at 0.5."""
    return recipe_in(folder, "ti2vid_two_stages_hq", loras=[("u", 0.5), "v"], distilled=["d"])


def assert_holds(tensors: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(tensors) == set(wanted)
    for key, value in wanted.items():
        assert tensors[key].dtype == value.dtype and tensors[key].shape == value.shape, key
        assert np.array_equal(bits(tensors[key]), bits(value)), key


def all_states(folder: Path, recipe: Recipe) -> dict[int | str, dict[str, np.ndarray]]:
    states = {number: expected(folder, list(phase.state)) for number, phase in enumerate(recipe.phases)}
    return {**states, "base": expected(folder, [])}


class TestCounts:
    """What is done equals what was planned, which equals the table derived by hand."""

    @pytest.mark.parametrize("budget", [0, BUDGET], ids=["in-place", "second-copy"])
    @pytest.mark.parametrize("terminal", ["last", "first", "base"])
    @pytest.mark.parametrize("case", CASES, ids=ids)
    def test_three_renders(self, folder: Path, case: Case, terminal: str, budget: int) -> None:
        recipe = recipe_in(folder, case.name, **case.given)
        plan = plan_render(base_in(folder), recipe, 3, terminal, memory_budget=budget, rates=Rates(1e9, 1e9))
        ends: dict[str, int | str] = {"last": len(recipe.phases) - 1, "first": 0, "base": "base"}
        reports = []
        with ResidentCheckpoint.open(base_in(folder), recipe, memory_budget=budget) as resident:
            reports.append(resident.loaded)
            for _ in range(3):
                reports += [resident.bind(phase) for phase in [*range(len(recipe.phases)), ends[terminal]]]
        for step, report in zip(plan.steps, reports, strict=True):
            done = (report.kept, report.restored, report.fused, report.switched)
            assert done == (step.kept, step.restored, step.fused, step.switched), step
            assert (report.macs, report.bytes_read, report.bytes_written) == dataclasses.astuple(step.cost), step
        if not budget:
            by_hand = [counts for _, _, counts in schedule(case, 3, terminal)]
            assert [Counts(report.fused, report.restored) for report in reports] == by_hand

    def test_the_distilled_adapter_alone_is_fused_once_per_render(self, folder: Path) -> None:
        recipe = recipe_in(folder, "a2vid_two_stage", distilled=["d"])
        with ResidentCheckpoint.open(base_in(folder), recipe) as resident:
            assert (resident.loaded.fused, resident.loaded.restored) == (0, TENSORS)
            first = [resident.bind(0), resident.bind(1)]
            again = [resident.bind(0), resident.bind(1)]
        assert [(report.restored, report.fused) for report in first] == [(0, 0), (0, 3)]
        assert [(report.restored, report.fused) for report in again] == [(3, 0), (0, 3)]


OPTIONS = {
    "in-place": {},
    "second-copy": {"memory_budget": BUDGET},
    "kept-adapters": {"keep_adapters": True},
    "one-thread": {"threads": 1},
}


class TestExactness:
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    @pytest.mark.parametrize("given", [{"distilled": ["d"]}, {"loras": [("u", 0.5), "v"], "distilled": ["d"]}])
    def test_random_walk(self, folder: Path, given: dict, options: dict) -> None:
        recipe = recipe_in(folder, "ti2vid_two_stages_hq", **given)
        states = all_states(folder, recipe)
        walk = random.Random(7)
        with ResidentCheckpoint.open(base_in(folder), recipe, **options) as resident:
            addresses = {key: array.ctypes.data for key, array in resident.tensors.items()}
            assert_holds(resident.tensors, states[0])
            for _ in range(200):
                phase = walk.choice([0, 1, "base"])
                resident.bind(phase)
                assert_holds(resident.tensors, states[phase])
            assert {key: array.ctypes.data for key, array in resident.tensors.items()} == addresses

    def test_random_walk_where_page_tables_cannot_be_moved(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(arena, "_switch_pages", lambda one, other: False)
        self.test_random_walk(folder, {"loras": ["u"], "distilled": ["d"]}, OPTIONS["second-copy"])

    def test_subtracting_would_be_seen(self, folder: Path) -> None:
        """The walks' data tells exact from approximate: un-fusing by subtraction does not give the base back."""
        path = folder / "d.safetensors"
        factors = load_file(path)
        key, module = f"{PREFIX}c.weight", "diffusion_model.c"
        delta = reference.aggregate([(factors[f"{module}.lora_A.weight"], factors[f"{module}.lora_B.weight"], 1.0)])
        base, fused = expected(folder, []), expected(folder, [(path, 1.0)])
        unfused = reference.bf16(fused[key].astype(np.float32) - delta).astype(base[key].dtype)
        with pytest.raises(AssertionError):
            assert_holds({**base, key: unfused}, base)

    def test_hq_strengths_really_differ(self, folder: Path, hq: Recipe) -> None:
        with ResidentCheckpoint.open(base_in(folder), hq) as resident:
            quarter = {key: array.copy() for key, array in resident.tensors.items()}
            resident.bind(1)
            differing = {key for key, array in resident.tensors.items() if not np.array_equal(array, quarter[key])}
        assert differing == {f"{PREFIX}{name}.weight" for name in "cde"}

    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_ic_lora_phase_1_is_the_base_file(self, folder: Path, options: dict) -> None:
        recipe = recipe_in(folder, "ic_lora", loras=["u", "v"])
        with (
            ResidentCheckpoint.open(base_in(folder), recipe, **options) as resident,
            Checkpoint.open(base_in(folder)) as base,
        ):
            resident.bind("phase1")
            for key, stored in base.tensors.items():
                assert resident.tensors[key].tobytes() == stored.read().tobytes()

    @pytest.mark.parametrize("case", CASES, ids=ids)
    def test_every_recipe(self, folder: Path, case: Case) -> None:
        recipe = recipe_in(folder, case.name, **case.given)
        states = all_states(folder, recipe)
        with ResidentCheckpoint.open(base_in(folder), recipe) as resident:
            for phase in [*states, *reversed(list(states))]:
                resident.bind(phase)
                assert_holds(resident.tensors, states[phase])


class TestWiden:
    @pytest.mark.parametrize("budget", [0, BUDGET])
    def test_holds_the_fused_values_as_float32(self, folder: Path, hq: Recipe, budget: int) -> None:
        states = all_states(folder, hq)
        with ResidentCheckpoint.open(base_in(folder), hq, widen="float32", memory_budget=budget) as resident:
            for phase in [0, 1, 0, 1, "base", 1]:
                resident.bind(phase)
                wide = {key: value.astype(np.float32) for key, value in states[phase].items()}
                assert_holds(resident.tensors, wide)

    def test_leaves_other_dtypes_alone(self, tmp_path: Path) -> None:
        tensors = {
            "big.weight": weight(3000, 701),  # several chunks
            "odd": weight(7),
            "scalar": weight(1).reshape(()),
            "empty": weight(0, 4),
            "half": weight(5, dtype=np.float16),
            "double": weight(5000, dtype=np.float64),
            "count": np.arange(3),
        }
        path = write(tmp_path / "base.safetensors", tensors)
        with ResidentCheckpoint.open(path, Recipe.named("retake"), widen="float32") as resident:
            narrow = {"double", "count"}
            wide = {key: value if key in narrow else value.astype(np.float32) for key, value in tensors.items()}
            assert_holds(resident.tensors, wide)
            ends = {key: array.ctypes.data + array.nbytes for key, array in resident.tensors.items()}
            assert max(ends.values()) - min(ends.values()) < sum(value.nbytes for value in wide.values()) + 7 * 128

    def test_to_anything_else_is_refused(self, folder: Path, hq: Recipe) -> None:
        with refused("bad-widen", "float64"):
            ResidentCheckpoint.open(base_in(folder), hq, widen="float64")


def whole_memory(array: np.ndarray) -> np.ndarray:
    """The array that owns what ``array`` shows part of."""
    base = array.base.obj if isinstance(array.base, memoryview) else array.base
    return whole_memory(base) if isinstance(base, np.ndarray) else array


class TestViews:
    def test_numpy_views_are_read_only(self, folder: Path, hq: Recipe) -> None:
        with ResidentCheckpoint.open(base_in(folder), hq) as resident:
            with pytest.raises(ValueError, match="read-only"):
                resident.tensors[f"{PREFIX}a.weight"][0, 0] = 1
            for array in resident.tensors.values():
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.flags.writeable = True
            with pytest.raises(TypeError):
                resident.tensors["new"] = np.zeros(1)

    def test_torch_tensors_are_the_same_memory(self, folder: Path, hq: Recipe) -> None:
        with ResidentCheckpoint.open(base_in(folder), hq) as resident:
            tensors = resident.torch_tensors
            resident.bind(1)
            assert list(tensors) == list(resident.tensors)
            for key, array in resident.tensors.items():
                assert tensors[key].data_ptr() == array.ctypes.data
                assert list(tensors[key].shape) == list(array.shape)
                assert np.array_equal(tensors[key].float().numpy(), array.astype(np.float32))
            assert tensors[f"{PREFIX}a.weight"].dtype == torch.bfloat16

    @pytest.mark.parametrize(
        ("stored", "dtype"),
        [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("I64", torch.int64), ("BOOL", torch.bool)],
    )
    @pytest.mark.parametrize("shape", [[], [3, 2], [0, 2]])
    def test_torch_tensors_of_every_kind(
        self, tmp_path: Path, stored: str, dtype: torch.dtype, shape: list[int]
    ) -> None:
        path = write(tmp_path / "base.safetensors", {"x": (stored, shape)})
        with ResidentCheckpoint.open(path, Recipe.named("retake")) as resident:
            tensor = resident.torch_tensors["x"]
            assert tensor.dtype == dtype and list(tensor.shape) == shape

    def test_views_outlive_close(self, folder: Path, hq: Recipe) -> None:
        resident = ResidentCheckpoint.open(base_in(folder), hq)
        tensors = resident.tensors
        resident.close()
        del resident
        assert_holds(tensors, expected(folder, list(hq.phases[0].state)))

    def test_memory_is_let_go_at_close(self, folder: Path, hq: Recipe) -> None:
        resident = ResidentCheckpoint.open(base_in(folder), hq, keep_adapters=True)
        memory = weakref.ref(whole_memory(next(iter(resident.tensors.values()))))
        resident.bind_async(1)
        resident.close()
        assert memory() is None

    @pytest.mark.parametrize("widen", [None, "float32"])
    @pytest.mark.parametrize("length", range(0, 64, 3))
    def test_tensors_lie_as_in_the_file_modulo_a_cache_line(
        self, tmp_path: Path, length: int, widen: str | None
    ) -> None:
        tensors = {"a": weight(64, 32), "b": weight(64, dtype=np.float32), "c": weight(32, 8), "d": weight(4)}
        path = write(tmp_path / "base.safetensors", tensors, {"padding": "x" * length})
        with (
            ResidentCheckpoint.open(path, Recipe.named("retake"), widen=widen) as resident,
            Checkpoint.open(path) as base,
        ):
            for key, array in resident.tensors.items():
                stored = base.tensors[key]
                assert array.ctypes.data % array.itemsize == 0
                if stored.begin % 8 == 0:
                    read_at = array.ctypes.data + array.nbytes - stored.nbytes
                    assert (read_at - stored.begin) % 64 == 0


class TestState:
    def test_names_the_phase_and_its_adapters(self, folder: Path, hq: Recipe) -> None:
        with ResidentCheckpoint.open(base_in(folder), hq) as resident:
            assert (resident.state.name, resident.state.adapters) == ("phase0", hq.phases[0].state)
            resident.bind("phase1")
            assert (resident.state.name, resident.state.adapters) == ("phase1", hq.phases[1].state)
            resident.bind("base")
            assert (resident.state.name, resident.state.adapters, resident.state.torn) == ("base", (), ())

    @pytest.mark.parametrize("phase", [2, -1, "phase7"])
    def test_unknown_phase(self, folder: Path, hq: Recipe, phase: int | str) -> None:
        with (
            ResidentCheckpoint.open(base_in(folder), hq) as resident,
            refused("unknown-phase", phase, "phase0, phase1"),
        ):
            resident.bind(phase)

    def test_notes_are_handed_on(self, folder: Path) -> None:
        recipe = recipe_in(folder, "ti2vid_two_stages_hq", distilled=[("d", 0.9)])
        with ResidentCheckpoint.open(base_in(folder), recipe) as resident:
            assert any("0.9" in note for note in resident.notes)
            assert sum("through BF16" in note for note in resident.notes) == 1


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A model of this test's own, to be spoilt."""
    make(tmp_path)
    yield tmp_path


class TestRefusals:
    def test_bind_after_close(self, folder: Path, hq: Recipe) -> None:
        resident = ResidentCheckpoint.open(base_in(folder), hq)
        resident.close()
        resident.close()
        for bind in (resident.bind, resident.bind_async):
            with refused("closed", "closed"):
                bind(0)
        for views in ("tensors", "torch_tensors"):
            with refused("closed", "closed"):
                getattr(resident, views)

    def test_negative_budget(self, folder: Path, hq: Recipe) -> None:
        with refused("bad-budget", "-1"):
            ResidentCheckpoint.open(base_in(folder), hq, memory_budget=-1)

    def test_bad_threads(self, folder: Path, hq: Recipe) -> None:
        with refused("threads", "0"):
            ResidentCheckpoint.open(base_in(folder), hq, threads=0)

    def test_what_a_plan_refuses(self, own: Path) -> None:
        write(own / "u.safetensors", {"x.lora_A.weight": weight(2, 17), "x.lora_B.weight": weight(24, 2)})
        with refused("no-pair-matches", "u.safetensors"):
            ResidentCheckpoint.open(base_in(own), recipe_in(own, "retake", loras=["u"]))

    def test_unmatched_pairs_are_left_out_where_that_is_asked_for(self, own: Path) -> None:
        write(own / "u.safetensors", {**pair("diffusion_model.a", 24, 2, 17), **pair("nowhere", 24, 2, 17)})
        recipe = recipe_in(own, "ic_lora", loras=["u"])
        with refused("unmatched-key", "nowhere.lora_A.weight", "1 of 2"):
            ResidentCheckpoint.open(base_in(own), recipe)
        with ResidentCheckpoint.open(base_in(own), recipe, unmatched="warn") as resident:
            assert resident.loaded.fused == 1
            assert [one.key for one in resident.unmatched] == ["nowhere.lora_A.weight", "nowhere.lora_B.weight"]

    def test_nothing_stays_open_after_a_refusal(self, own: Path) -> None:
        write(own / "u.safetensors", {"x.lora_A.weight": weight(2, 17), "x.lora_B.weight": weight(24, 2)})
        before = len(list(Path("/proc/self/fd").iterdir()))
        with refused("no-pair-matches"):
            ResidentCheckpoint.open(base_in(own), recipe_in(own, "a2vid_two_stage", loras=["u"], distilled=["d"]))
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    @pytest.mark.parametrize("name", ["base", "d"])
    @pytest.mark.parametrize("how", ["truncated", "touched", "replaced", "removed"])
    def test_a_file_changed_since_it_was_opened(self, own: Path, name: str, how: str) -> None:
        recipe = recipe_in(own, "ti2vid_two_stages", loras=["u"], distilled=["d"])
        path = own / f"{name}.safetensors"
        with ResidentCheckpoint.open(base_in(own), recipe) as resident:
            held = {key: array.copy() for key, array in resident.tensors.items()}
            if how == "truncated":
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size - 2)
            elif how == "touched":
                data = path.read_bytes()
                path.write_bytes(data)
            elif how == "replaced":
                other = own / "other"
                other.write_bytes(path.read_bytes())
                other.rename(path)
            else:
                path.unlink()
            with refused("file-changed", path.name):
                resident.bind(1)
            assert resident.state.name == "phase0"
            assert_holds(resident.tensors, held)

    def test_a_callers_checkpoint_stays_open(self, folder: Path, hq: Recipe) -> None:
        with Checkpoint.open(base_in(folder)) as base:
            ResidentCheckpoint.open(base, hq).close()
            assert base.tensors[f"{PREFIX}a.weight"].read().size
