"""Ranges of a result, made alone in any order, again and at once: always the bytes of the whole."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fp8_models import SHAPE, fp8_base
from fusing import small_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused

import ltx2c
from ltx2c.engines import units
from ltx2c.engines.outputs import lay_out
from ltx2c.engines.units import UnitFuser
from ltx2c.files.positional import PositionalFile
from ltx2c.plan.options import Options
from ltx2c.prepare import opened_plan

MODELS: dict[str, Callable[[Path], tuple[Path, list[tuple[Path, float]]]]] = {
    "bf16, f32, f16": lambda folder: small_model(folder)[:2],
    "fp8-scaled": lambda folder: fp8_base(folder, "weight_scale", 1, first=True),
    "fp8-row": lambda folder: fp8_base(folder, "weight_scale", SHAPE[0], 1, first=True),
    "fp8-block": lambda folder: fp8_base(folder, "weight_scale_inv", 3, 2, first=False),
}


class Made:
    """A base, its plan, and the whole result."""

    def __init__(self, folder: Path, name: str) -> None:
        self.base, self.adapters = MODELS[name](folder)
        self.whole_at = folder / "whole.safetensors"
        ltx2c.fuse_checkpoint(self.base, self.adapters, self.whole_at)
        self.whole = self.whole_at.read_bytes()
        self.plan = ltx2c.plan_fuse(self.base, self.adapters)


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"), request.param)


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_range_is_what_the_whole_holds_there(made: Made, data: st.DataObject) -> None:
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(made.whole))] * 2)))
    assert ltx2c.fused_bytes(made.plan, begin, end) == made.whole[begin:end]


@pytest.mark.parametrize("block_bytes", [500, 16 << 20])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_written_in_any_order_again_and_overlapping_give_the_file(
    made: Made, seed: int, block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    size = len(made.whole)
    cuts = sorted({0, size, *(chance.randrange(size) for _ in range(12))})
    ranges = list(itertools.pairwise(cuts))
    ranges += [tuple(sorted((chance.randrange(size), chance.randrange(size)))) for _ in range(4)]
    ranges += chance.choices(ranges, k=3)
    chance.shuffle(ranges)
    path = tmp_path_factory.mktemp("out") / "out"
    PositionalFile.create(path, size)
    with pytest.MonkeyPatch.context() as patch, PositionalFile(path) as file:
        patch.setattr(units, "BLOCK_BYTES", block_bytes)
        with opened_plan(made.base, made.adapters, Options()) as opened:
            fuser = UnitFuser(opened, layout := lay_out(opened), 2)
            for begin, end in ranges:
                name = layout.files[0].name
                file.write(begin, memoryview(fuser.read(units.Unit(name, begin, end))))
        file.sync()
    assert path.read_bytes() == made.whole


@pytest.mark.parametrize("count", [1, 3, 17, 1000])
def test_units_cover_the_file_once_whoever_makes_them(made: Made, count: int, tmp_path: Path) -> None:
    """Two at once make the same units, each in an order of its own."""
    path = tmp_path / "out"
    with opened_plan(made.base, made.adapters, Options()) as opened:
        layout = lay_out(opened)
        file = layout.files[0]
        PositionalFile.create(path, file.size)
        cut = UnitFuser(opened, layout, 1).cut(count)
        assert cut[0].begin == len(file.header) and cut[-1].end == file.size
        assert all(one.end == next_one.begin for one, next_one in itertools.pairwise(cut))
        written: list[list[tuple[int, int]]] = [[], []]

        def work(number: int) -> None:
            with PositionalFile(path) as output:
                output.write(0, memoryview(file.header))
                fuser = UnitFuser(opened, layout, 1)
                for unit in random.Random(number).sample(cut, len(cut)):

                    def put(name: str, offset: int, data: memoryview) -> None:
                        written[number].append((offset, offset + len(data)))
                        output.write(offset, data)

                    fuser.make(unit, put)

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert path.read_bytes() == made.whole
    for ranges in written:  # every byte once: no companion comes twice
        assert sum(end - begin for begin, end in ranges) == file.size - len(file.header)


def test_shards_by_name(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    plan = ltx2c.plan_fuse(base, adapters)
    ltx2c.execute(plan, tmp_path / "out", max_shard_bytes=20_000)
    for path in (tmp_path / "out").iterdir():
        whole = path.read_bytes()
        begin, end = len(whole) // 3, len(whole)
        assert ltx2c.fused_bytes(plan, begin, end, file=path.name, max_shard_bytes=20_000) == whole[begin:]
    with refused("no-such-file", "name one"):
        ltx2c.fused_bytes(plan, 0, 1, max_shard_bytes=20_000)
    with refused("no-such-file", "other"):
        ltx2c.fused_bytes(plan, 0, 1, file="other")


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 4), (0, 10**9)])
def test_what_is_no_range_is_refused(begin: int, end: int, tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with refused("bad-range", f"{begin} to {end}"):
        ltx2c.fused_bytes(ltx2c.plan_fuse(base, adapters), begin, end)


def test_a_plan_that_went_through_json_gives_the_same_and_a_changed_input_is_refused(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    plan = ltx2c.Plan.from_json(json.dumps(json.loads(ltx2c.plan_fuse(base, adapters).to_json())))
    ltx2c.execute(plan, tmp_path / "out")
    assert ltx2c.fused_bytes(plan, 1000, 20_000) == (tmp_path / "out").read_bytes()[1000:20_000]
    adapters[0][0].touch()
    with refused("file-changed"):
        ltx2c.fused_bytes(plan, 0, 10)
