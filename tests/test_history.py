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

    root = ElementTree.fromstring(history.picture(history.recorded("m"), "m"))
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {*SHAPES, "aaaaaaa", "bbbbbbb"} <= words
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 8


def test_the_table_goes_between_the_marks(history: ModuleType) -> None:
    begin, end = history.MARKS
    assert history.put_between_marks(f"x\n{begin}\nold\n{end}\ny", "new") == f"x\n{begin}\nnew\n{end}\ny"
    with pytest.raises(SystemExit):
        history.put_between_marks("no marks", "new")


def test_the_picture_in_the_repository_is_that_of_its_results(history: ModuleType) -> None:
    results = ROOT / "asv_bench" / "results"
    history.RESULTS = results
    (machine,) = (path.name for path in results.iterdir() if path.is_dir())
    drawn = (ROOT / "asv_bench" / "history.svg").read_text("utf-8")
    assert drawn == history.picture(history.recorded(machine)[-12:], machine)
