"""The history's table and picture say what asv recorded, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SHAPES = ["4096x16x4096", "4096x32x4096", "4096x128x4096", "4096x450x4096"]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("history", ROOT / "ci" / "history.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "PICTURE", tmp_path / "history.svg")
    return module


def record(folder: Path, commit: str, date: int, values: list[float | None]) -> None:
    """A result as asv 0.6 writes it."""
    folder.mkdir(exist_ok=True)
    params = [[repr(shape) for shape in ["4096x1x4096", *SHAPES]]]
    result = {
        "commit_hash": commit * 5,
        "date": date,
        "result_columns": ["result", "params", "version", "started_at"],
        "results": {"kernels.Shapes.track_gflops": [[9.0, *values], params, "v", 0]},
        "version": 2,
    }
    (folder / f"{commit}-virtualenv-py3.11.json").write_text(json.dumps(result))


def test_commits_stand_in_the_order_of_their_dates(history: ModuleType, tmp_path: Path) -> None:
    record(tmp_path / "m", "bbbbbbbb", 2, [20.0, 30.0, None, 400.4])
    record(tmp_path / "m", "aaaaaaaa", 1, [1.0, 2.0, 3.0, 4.0])

    assert history.table(history.recorded("m")).splitlines() == [
        f"| commit | {' | '.join(SHAPES)} |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `aaaaaaaa` | 1 | 2 | 3 | 4 |",
        "| `bbbbbbbb` | 20 | 30 | - | 400 |",
    ]


def test_a_result_without_the_benchmark_is_left_out(history: ModuleType, tmp_path: Path) -> None:
    record(tmp_path / "m", "aaaaaaaa", 1, [None, None, None, None])
    assert history.recorded("m") == []


def test_the_picture_is_an_svg_that_names_every_shape_and_commit(history: ModuleType, tmp_path: Path) -> None:
    record(tmp_path / "m", "aaaaaaaa", 1, [1.0, 2.0, 3.0, 4.0])
    record(tmp_path / "m", "bbbbbbbb", 2, [20.0, 30.0, 40.0, 400.0])

    root = ElementTree.fromstring(history.picture({"m": history.recorded("m"), "n": history.recorded("m")}))
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {*SHAPES, "aaaaaaa", "bbbbbbb"} <= words
    assert {word.split(" on ")[1] for word in words if word and " on " in word} == {"m", "n"}
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 16


def test_the_table_goes_between_the_marks(history: ModuleType) -> None:
    begin, end = history.MARKS
    assert history.put_between_marks(f"x\n{begin}\nold\n{end}\ny", "new") == f"x\n{begin}\nnew\n{end}\ny"
    with pytest.raises(SystemExit):
        history.put_between_marks("no marks", "new")


def test_the_picture_in_the_repository_is_that_of_its_results(history: ModuleType) -> None:
    history.RESULTS = ROOT / "asv_bench" / "results"
    assert (ROOT / "asv_bench" / "history.svg").read_text("utf-8") == history.picture(history.shown(12))


def test_rivals_are_lines_of_their_own(history: ModuleType, tmp_path: Path) -> None:
    record(tmp_path / "m", "aaaaaaaa", 1, [1.0, 2.0, 3.0, 400.0])
    path = tmp_path / "m" / "aaaaaaaa-virtualenv-py3.11.json"
    result = json.loads(path.read_text())
    result["results"]["rivals.Rates.track_gflops"] = [[0.53, 300.0], [["'scalar loop'", "'torch'"]], "v", 0]
    path.write_text(json.dumps(result))
    (tmp_path / "m" / "machine.json").write_text(json.dumps({"cpu": "Some CPU", "machine": "m"}))

    points = history.shown(12)["Some CPU"]
    assert history.table(points).splitlines()[-1] == "| `aaaaaaaa` | 1 | 2 | 3 | 400 | 300 | 0.53 |"
    assert history.picture({"Some CPU": points}).count("stroke-dasharray") == 2


def test_reports_of_users_stand_side_by_side(history: ModuleType) -> None:
    def report(cpu: str, **row: float | None) -> dict:
        values = {"name": "4096 x 16 x 4096", "gbps": 1.0, "gflops": 100.0, "peak_share": 0.5, "torch_gflops": None}
        return {"cpu": cpu, "kernel": "haswell", "threads": 2, "rows": [values | row]}

    assert history.comparison([report("A", torch_gflops=40.0), report("B", gflops=70.4)]).splitlines() == [
        "| out x rank x in | A, haswell, 2 threads | B, haswell, 2 threads |",
        "| --- | --- | --- |",
        "| 4096 x 16 x 4096 | 100, 50% of peak, 2.50 x torch | 70, 50% of peak |",
    ]
