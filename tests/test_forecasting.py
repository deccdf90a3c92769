"""A forecast of a job's units: it counts what a job would read, write and compute, and refuses what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fusing import small_model

import ltx2c
from ltx2c import forecasting
from ltx2c.cli import main
from ltx2c.errors import RefusedError
from ltx2c.many import forecast_many
from ltx2c.plan.cost import Rates

RATES = Rates(flops=1e9, bytes=1e10)


@pytest.fixture(autouse=True)
def _known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasting, "measure_rates", lambda threads: RATES)
    monkeypatch.setattr(forecasting, "_start_seconds", lambda opened: 0.0)


def test_it_counts_what_a_job_reads_and_writes(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    plan = ltx2c.plan_fuse(base, adapters)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "out")
    size = (tmp_path / "out").stat().st_size
    told = forecast_many(base, {"a": adapters, "b": adapters}, workers=4, network=1e9, storage=1e12)
    assert told.units == 2
    assert told.written == 2 * plan.bytes_written
    assert told.read == 2 * (plan.bytes_read + size)  # and the result once more, to be checked
    assert [row.workers for row in told.rows] == [1, 2, 4]
    # by hand: two units, a check each; one worker does them one after the other, two at the same time
    unit = max(2 * plan.macs / RATES.flops + plan.bytes_read / RATES.bytes, plan.bytes_read / 1e9)
    check = size / 1e9
    assert told.rows[0].seconds == pytest.approx(2 * (unit + check))
    assert told.rows[1].seconds == told.rows[2].seconds == pytest.approx(unit + check)
    assert told.rows[2].checking == pytest.approx(check)
    assert told.rows[1].most_written == plan.bytes_written and told.rows[1].most_read == plan.bytes_read + size


def test_units_share_a_result_without_gap_or_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapters, _ = small_model(tmp_path)
    plan = ltx2c.plan_fuse(base, adapters)
    monkeypatch.setattr(forecasting, "UNIT_BYTES", 9000)
    told = forecast_many(base, {"a": adapters}, workers=3, network=1e9, storage=1e9, max_shard_bytes=30_000)
    assert told.units > 5 and told.written == plan.bytes_written
    assert told.read > plan.bytes_read  # factors of weights that are cut are read more than once


def test_the_command_says_it_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, _ = small_model(tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f'["/nowhere/out"]\nloras = [["{adapters[0][0]}", 0.5]]\n')
    before = sorted(tmp_path.iterdir())
    forecast = ["--dry-run", "--workers", "1000", "--network", "1.25", "--storage", "20"]
    assert main(["fuse-many", str(base), str(jobs), *forecast]) == 0
    said = capsys.readouterr().out
    assert "1 output, each a job" in said and "\n    1,000  " in said and "nothing was written" in said
    assert main(["fuse-many", str(base), str(jobs), *forecast, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["network"] == 1.25e9 and told["rows"][-1]["workers"] == 1000
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_without_workers_says_what_each_output_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, adapters, _ = small_model(tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f'["out"]\nloras = ["{adapters[0][0]}"]\n["/nowhere/out"]\nloras = ["{adapters[0][0]}"]\n')
    before = sorted(tmp_path.iterdir())
    assert main(["fuse-many", str(base), str(jobs), "--dry-run"]) == 2
    said = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 8 tensors, 3 would be fused and 5 kept" in said.out
    assert "its folder /nowhere does not exist" in said.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("missing", [0, 1, 3, 5])
def test_a_forecast_takes_all_of_its_options(tmp_path: Path, missing: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--dry-run", "--workers", "2", "--network", "1", "--storage", "1"]
    del given[missing : missing + (1 if missing == 0 else 2)]
    assert main(["fuse-many", "base", "jobs.toml", *given]) == 2
    assert "a forecast takes --dry-run, --workers, --network and --storage" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"workers": 0}, {"network": 0.0}, {"storage": float("nan")}, {"storage": -1.0}])
def test_numbers_that_make_no_sense_are_refused(tmp_path: Path, given: dict[str, float]) -> None:
    base, adapters, _ = small_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        forecast_many(base, {"a": adapters}, **{"workers": 1, "network": 1e9, "storage": 1e9, **given})
    assert refusal.value.code == "out-of-range"


def test_what_a_result_is_refused_for_is_told(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        forecast_many(base, {"a": [(base, 1.0)], "b": adapters}, workers=1, network=1e9, storage=1e9)
    assert refusal.value.code == "no-pair"
