"""The measuring library, on weights small enough to measure in a blink."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from ltx2c import bench, cli, fusion, inventory, kernels
from ltx2c.arithmetic import F32
from ltx2c.cli import bench as command
from ltx2c.inventory import TensorSpec


@pytest.fixture
def small(monkeypatch):
    pairs = [("x", 16, 300, 200), ("y", 16, 300, 200), ("z", 4, 40, 4)] * 3
    specs = [
        spec
        for module, rank, out, into in pairs
        for spec in (
            TensorSpec(f"{module}.lora_A.weight", "BF16", (rank, into)),
            TensorSpec(f"{module}.lora_B.weight", "BF16", (out, rank)),
        )
    ]
    monkeypatch.setattr(inventory, "adapter_tensors", lambda blocks: iter(specs))
    cases = (bench.Case(64, 1, 96), bench.Case(32, 20, 64), bench.Case(32, 5, 64, F32, bench.FLOAT32))
    monkeypatch.setattr(bench, "CASES", cases)
    monkeypatch.setattr(bench, "_BANDWIDTH_BYTES", 1 << 20)


def test_measures_everything_that_it_lists(small):
    seen = []
    report = bench.bench(threads=1, blocks=1, seconds=0, progress=seen.append)
    assert report.kernel == kernels.selected() and tuple(report.peaks) == kernels.available()
    wide = "32 x 5 x 64, f32, float32 factors"
    assert [row.name for row in report.rows] == ["64 x 1 x 96", "32 x 20 x 64", wide, "9 modules of LTX-2.5"]
    assert all(row.gflops > 0 and row.peak_share > 0 and row.gbps > 0 for row in report.rows)
    assert report.torch is not None and all(row.torch_gflops > 0 for row in report.rows[:3])
    assert report.as_json()["cpu"] and report.as_json()["ltx2c"]
    assert seen[-1].macs_done == seen[-1].macs_total == 3 * (2 * 16 * 300 * 200 + 4 * 40 * 4)
    assert json.loads(json.dumps(report.as_json()))["rows"][1]["name"] == "32 x 20 x 64"


def test_modules_of_a_shape_take_turns_with_its_weights(small):
    # Jobs in flight together must not write the same array, and the ring of packed factors keeps three in flight.
    jobs = list(bench._model_jobs(1))
    fusion._refuse_shared_outputs(jobs[:3])
    same = [job.out for job in jobs if job.out.shape == (300, 200)]
    assert all(one is not other for i, one in enumerate(same) for other in same[i + 1 : i + bench._WEIGHTS_PER_SHAPE])


def test_reports_can_be_compared(small, capsys, monkeypatch, tmp_path):
    history = runpy.run_path(str(Path(__file__).parents[1] / "ci" / "history.py"))
    report = bench.bench(threads=1, blocks=1, seconds=0)
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in files:
        path.write_text(json.dumps(report.as_json()))
    monkeypatch.setattr("sys.argv", ["history.py", "--reports", *map(str, files)])
    assert history["main"]() == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.count(f"{report.cpu}, {report.kernel}, 1 threads") == 2
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [row.name for row in report.rows]
    assert all(
        f"{row.gflops:.0f}, {row.peak_share:.0%} of peak" in line for row, line in zip(report.rows, rows, strict=True)
    )


def test_the_table(small):
    report = bench.bench(threads=1, blocks=1, seconds=0)
    lines = command._text(report).splitlines()
    assert report.kernel in lines[0] and "GB/s" in lines[1]
    assert lines[-1].startswith("9 modules of LTX-2.5") and "%" in lines[-1]


@pytest.mark.parametrize("blocks", ["0", "49"])
def test_blocks_that_the_model_does_not_have_are_refused(blocks, capsys):
    assert cli.main(["bench", "--blocks", blocks]) == 2
    assert capsys.readouterr().err == f"ltx2c: error: blocks must be 1 to 48, not {blocks}\n"
