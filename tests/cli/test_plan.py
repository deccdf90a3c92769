"""``ltx2c plan``: the table, the JSON, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from phase_model import make

from ltx2c import cli


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make(tmp_path)


BASE = "base.safetensors"
D = ["--distilled-lora", "d.safetensors"]


def rows(text: str) -> dict[str, list[str]]:
    """The table by the name in its first column."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {name: cells for name, *cells in lines if len(cells) == 8}


def test_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "a2vid_two_stage", BASE, *D, "--renders", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a2vid_two_stage, 2 renders, each leaving last; predicted at ")
    table = rows(out)
    assert table["load"][:5] == ["0", "8", "0", "0", "0"]
    assert table["render 1 phase0"][:5] == ["8", "0", "0", "0", "0"]
    assert table["render 1 phase1"][:5] == ["5", "0", "3", "0", "0"]
    assert table["render 2 phase0"][:5] == ["5", "3", "0", "0", "0"]
    assert table["total"][:5] == ["-", "11", "6", "0", "0"]
    assert table["naive total"][:5] == ["-", "5", "9", "0", "6"]
    assert "terminal" not in out
    assert re.search(r"^saved: -?\d+\.\d\d s of \d+\.\d\d s", out, re.MULTILINE)


def test_terminal_step_is_shown_where_it_does_something(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "a2vid_two_stage", BASE, *D, "--terminal", "first"]) == 0
    assert rows(capsys.readouterr().out)["render 1 terminal"][:5] == ["5", "3", "0", "0", "0"]


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "res2s_two_stage", BASE, *D, "0.9", "--lora", "u.safetensors", "-0.5"]
    assert cli.main([*arguments, "--distilled-strengths", "0.1", "-0.2", "--memory-budget", "1GB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["recipe"] == "ti2vid_two_stages_hq"
    assert [step["fused"] for step in facts["steps"]] == [5, 0, 3, 0]
    assert facts["second_copy"]["tensors"] == 3
    assert facts["notes"][-1].endswith("recipe ti2vid_two_stages_hq sets 0.1, -0.2 by phase")


def test_second_copy_and_notes_are_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "res2s_two_stage", BASE, *D, "0.9", "--memory-budget", "1GB"]) == 0
    out = capsys.readouterr().out
    assert "a second copy of 3 tensors (3.26 kB) saves 0.00 s" in out
    assert "note: d.safetensors: strength 0.9 of distilled-lora is not used" in out


def test_an_explicit_strength_of_one_is_a_choice(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "res2s_two_stage", BASE, *D, "1.0"]) == 0
    assert "note: d.safetensors: strength 1.0 of distilled-lora is not used" in capsys.readouterr().out


def test_no_strength_is_no_choice(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "res2s_two_stage", BASE, *D]) == 0
    assert "not used" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_recipe", BASE], "there is no recipe no_such_recipe"),
        (["a2vid_two_stage", BASE], "at least 1 distilled-lora, 0 given"),
        (["retake", BASE, *D], "no distilled-lora, 1 given"),
        (["retake", BASE, "--detailing-lora", "t.safetensors"], "no detailing-lora, 1 given"),
        (["retake", BASE, "--renders", "0"], "renders is 0"),
        (["retake", BASE, "--renders", "1000000"], "renders is 1000000; there are 1 to 1000"),
        (["retake", BASE, "--terminal", "middle"], "last, first, base"),
        (["retake", BASE, "--lora", "u.safetensors", "nan"], "strength nan"),
        (["hdr_ic_lora", BASE, "--lora", "u.safetensors", "0.5"], "strength 0.5 of lora is refused"),
        (["retake", "u.safetensors"], "BASE holds only factors"),
    ],
)
def test_refusals(model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert cli.main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ltx2c: error: ") and captured.err.count("\n") == 1
    assert said in captured.err and captured.out == ""


def test_a_missing_file_is_an_io_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "retake", "nowhere.safetensors"]) == 3
    assert "nowhere.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["nan", "inf", "-1", "much"])
def test_a_budget_that_is_no_size_is_wrong_usage(model: Path, capsys: pytest.CaptureFixture[str], budget: str) -> None:
    assert cli.main(["plan", "a2vid_two_stage", BASE, *D, f"--memory-budget={budget}"]) == 2
    assert budget in capsys.readouterr().err.splitlines()[-1]
