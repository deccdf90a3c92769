"""The performance gate's own decisions; that it turns red on real sabotage is what ci/sabotage.py shows."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate", ROOT / "ci" / "gate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def floor_of(gate: ModuleType, *measured: dict[str, object]) -> Callable[..., dict[str, object]]:
    """Measurements of a machine with a peak of 100 GFLOP/s, in which all but what is given is as it should be."""
    good = dict.fromkeys(gate.SHARES_OF_PEAK, 90.0) | {"scalar": 0.5, "peak": 100.0}
    turns = iter(measured)

    def measure(*_: object) -> dict[str, object]:
        return {"gflops": good | next(turns), "instruction": "FMA", "cores": 2, "same_bytes": True}

    return measure


@pytest.mark.parametrize(
    ("measured", "holds"),
    [
        ([{}], True),
        ([{"32x450x4096": 21.0}] * 5, False),
        ([{"32x450x4096": 21.0}, {"32x450x4096": 23.0}], True),  # the second time, in a quiet moment
        ([{"4096x16x4096": 6.0}], False),  # hopeless: not measured again
        ([{"scalar": 1.0}] * 5, False),
    ],
)
def test_every_shape_has_its_floor(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: list[dict[str, object]], holds: bool
) -> None:
    monkeypatch.setattr(gate, "measure", floor_of(gate, *measured))
    assert gate.floor_holds(tmp_path) is holds


def test_what_takes_too_long_or_is_gone_is_slower(gate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"same": 1.0, "just within": 1.0, "too slow": 1.0, "gone": 1.0}
    head = {"same": 1.0, "just within": 1.24, "too slow": 1.26, "fresh": 9.0}
    rounds = [gate.Round(base, head)] * 3

    assert gate.slower(rounds) == ["too slow", "gone"]
    gate.print_table(rounds)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("SLOWER")] == ["too", "gone"]
    assert lines[-1].split()[0] == "fresh" and lines[-1].endswith("new")


def rounds_of(gate: ModuleType, base: list[float], head: list[float]) -> list[object]:
    return [gate.Round({"x": one}, {"x": other}) for one, other in zip(base, head, strict=True)]


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ([1.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]),  # base alone had a quiet moment
        ([1.0, 1.0, 1.0, 1.0], [1.1, 3.0, 3.0, 3.0]),  # head was disturbed most of the time
    ],
)
def test_luck_of_one_side_is_not_slowness_of_the_other(gate: ModuleType, base: list[float], head: list[float]) -> None:
    assert gate.slower(rounds_of(gate, base, head)) == []


def test_a_slow_down_shows_through_noise(gate: ModuleType) -> None:
    assert gate.slower(rounds_of(gate, [1.0, 2.0, 1.1, 4.0], [1.4, 2.8, 5.0, 3.0])) == ["x"]


def commit(tree: Path, name: str, text: str) -> None:
    (tree / name).write_text(text)
    for arguments in (["add", "."], ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", name]):
        subprocess.run(["git", "-C", str(tree), *arguments], check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit(tmp_path, "code.py", "1")
    return tmp_path


def test_a_change_of_documents_alone_is_not_measured(
    gate: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tree, "README.md", "words")
    monkeypatch.setattr("sys.argv", ["gate.py", "--tree", str(tree)])

    assert gate.main() == 0
    assert "skipped: only documents changed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["more.py", "kernel.h"])
def test_a_change_of_code_is_measured(gate: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    commit(tree, "README.md", "words")
    (tree / name).write_text("not committed yet")
    judged: list[str | None] = []
    monkeypatch.setattr("sys.argv", ["gate.py", "--tree", str(tree)])
    monkeypatch.setattr(gate, "judge", lambda tree, base, folder, cflags: judged.append(base))

    assert gate.main() == gate.FAILED
    (base,) = judged
    assert base == gate.git(tree, "rev-parse", "HEAD")[:12]


def test_the_base_is_the_parent_of_a_clean_tree(gate: ModuleType, tree: Path) -> None:
    assert gate.default_base(tree) is None
    first = gate.git(tree, "rev-parse", "HEAD")[:12]
    commit(tree, "code.py", "2")
    assert gate.default_base(tree) == first


def test_a_gate_that_measures_nothing_fails(
    gate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "measured_in_turn", lambda *_: [gate.Round({}, {})])
    assert not gate.no_slower(tmp_path, tmp_path, tmp_path)
    assert capsys.readouterr().out.count("NOT COMPARED") == len(gate.COMPARED)
