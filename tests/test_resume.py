"""``resume``: what a killed run has done is taken over by the next of the same request, and by no other."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fusing import small_model
from refusals import refused

import ltx2c
from ltx2c import cli
from ltx2c.api import outline_fuse
from ltx2c.files.destination import Destination
from ltx2c.files.positional import PositionalFile
from ltx2c.files.staging import Staged
from ltx2c.jobs import create, finish, hidden
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.marks import Mark
from ltx2c.jobs.units import UnitWorker


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "SMALLEST_UNIT_BYTES", 10_000)


class Made:
    """A base, its adapters, and the whole result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base, self.adapters, _ = small_model(folder)
        self.out = folder / "out"
        ltx2c.fuse_checkpoint(self.base, self.adapters, self.out)
        self.whole = self.out.read_bytes()
        self.out.unlink()
        self.before = self.names()

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def hidden(self) -> list[Path]:
        return [self.folder / name for name in self.names() if name.endswith(".ltx2c-job")]

    def fuse(self, **options: object) -> ltx2c.FuseReport:
        return ltx2c.fuse_checkpoint(self.base, self.adapters, self.out, **{"resume": True, "threads": 1, **options})

    def killed_when(self, where: object, name: str, *, calls: int = 0, **options: object) -> None:
        """Fuse in a child that kills itself instead of making a call, after so many of them."""
        child = os.fork()
        if child == 0:
            original, made = getattr(where, name), iter(range(calls))

            def call(*given: object, **named: object) -> object:
                if next(made, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*given, **named)

            setattr(where, name, call)
            self.fuse(**options)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


UNITS = 10
# What is killed in the place of which call, after how many of them; how many units are then left to do.
KILLED_AT: dict[str, tuple[object, str, int, int]] = {
    "before its folder is there": (JobFolder, "make", 0, UNITS),
    "before it holds anything": (JobFolder, "make_parts", 0, UNITS),
    "while the end is tried": (Staged, "adopt", 0, UNITS),
    "before the order": (create, "write_durably", 0, UNITS),
    "before a unit's bytes": (PositionalFile, "write", 0, UNITS),
    "before they are durable": (PositionalFile, "sync", 3, UNITS - 3),
    "before a mark": (Mark, "write", 5, UNITS - 5),
    "before all are looked at": (finish, "lay_out_whole", 0, 0),
    "while the parts are taken": (Staged, "adopt", 1, 0),
    "before publishing": (finish, "publish", 0, 0),
    "before its folder is moved away": (JobFolder, "vanish", 0, 0),
    "before its folder is removed": (JobFolder, "remove", 0, 0),
}


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_kill_at_any_step_leaves_out_absent_or_whole_and_only_the_rest_to_do(
    at: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, calls, left = KILLED_AT[at]
    made.killed_when(where, name, calls=calls)
    assert not made.out.exists() or made.out.read_bytes() == made.whole
    assert made.out.exists() == ("before its folder is" in at and "there" not in at)
    done: list[int] = []
    do = UnitWorker.do
    monkeypatch.setattr(UnitWorker, "do", lambda self, number: done.append(number) or do(self, number))
    report = made.fuse()
    assert done == list(range(UNITS))[UNITS - left :]
    assert made.out.read_bytes() == made.whole and made.out.stat().st_nlink == 1
    assert made.names() == {*made.before, "out"}
    assert any("in place already" in note for note in report.notes) == (
        "before its folder is" in at and "there" not in at
    )


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_run_that_does_not_resume_removes_what_was_left(at: str, made: Made) -> None:
    where, name, calls, _ = KILLED_AT[at]
    made.killed_when(where, name, calls=calls)
    report = made.fuse(resume=False, force=True)
    assert made.out.read_bytes() == made.whole and made.names() == {*made.before, "out"}
    assert any("killed before it was done" in note for note in report.notes) == (at != "before its folder is there")


def strengths(made: Made) -> None:
    made.adapters[1] = (made.adapters[1][0], 0.5)


def touched(made: Made) -> None:
    made.base.touch()


def rewritten(made: Made) -> None:
    made.adapters[0][0].write_bytes(made.adapters[0][0].read_bytes())


def fewer(made: Made) -> None:
    made.adapters.pop()


CHANGES: dict[str, tuple[Callable[[Made], object], dict[str, object], str]] = {
    "strength": (strengths, {}, "adapters[1].strength was -0.3, is 0.5"),
    "the base's time": (touched, {}, "base.safetensors: plan.base.files[0].mtime_ns was"),
    "an adapter": (rewritten, {}, "lora0.safetensors: plan.adapters[0].source.files[0].mtime_ns was"),
    "fewer adapters": (fewer, {}, "adapters[1]"),
    "arithmetic": (lambda _: None, {"arithmetic": "f32"}, "plan.arithmetic was ltx, is f32"),
    "card": (lambda _: None, {"card": True}, "form.card was False, is True"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_request_left_is_refused_with_the_difference_and_stays(change: str, made: Made) -> None:
    made.killed_when(Mark, "write", calls=2)
    left = made.hidden()
    alter, options, words = CHANGES[change]
    alter(made)
    with refused("resume-other-request", "cannot resume", made.out, words, "without --resume"):
        made.fuse(**options)
    assert made.hidden() == left and not made.out.exists()
    assert made.fuse(resume=False, **options).tensors_fused and not made.hidden()


def test_what_may_be_done_with_the_result_is_no_other_request(made: Made) -> None:
    made.killed_when(Mark, "write", calls=4)
    made.out.write_bytes(b"old")
    with refused("output-exists"):
        made.fuse()
    assert len(made.hidden()) == 1
    report = made.fuse(force=True, allow_nonfinite=True)
    assert "resumed: 4 of 10 units had been done" in report.notes
    assert made.out.read_bytes() == made.whole


def test_a_folder_that_is_at_work_is_let_alone(made: Made) -> None:
    made.killed_when(Mark, "write")
    (left,) = made.hidden()
    for resume in (True, False):
        with JobFolder(left).lease(), refused("output-busy", made.out, "another run is writing"):
            made.fuse(resume=resume)
    assert made.hidden() == [left]


def test_anothers_folder_is_let_alone(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.killed_when(Mark, "write")
    (left,) = made.hidden()
    os.chown(left, 12345, -1)
    made.fuse()
    made.fuse(resume=False, force=True)
    assert made.hidden() == [left]


@pytest.mark.parametrize("error", [OSError(28, "no space"), KeyboardInterrupt()])
def test_what_is_done_stays_where_the_system_fails_or_ctrl_c_ends_it(
    error: BaseException, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Mark.write
    marks = iter(range(3))

    def failing(mark: Mark, path: Path) -> None:
        if next(marks, None) is None:
            raise error
        write(mark, path)

    monkeypatch.setattr(Mark, "write", failing)
    with pytest.raises(type(error)):
        made.fuse()
    assert len(made.hidden()) == 1 and not made.out.exists()
    monkeypatch.undo()
    monkeypatch.setattr(hidden, "SMALLEST_UNIT_BYTES", 10_000)
    assert "resumed: 3 of 10 units had been done" in made.fuse().notes
    assert made.out.read_bytes() == made.whole


def test_the_room_that_a_killed_run_holds_is_counted_as_free(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.killed_when(Mark, "write")
    needed: list[int] = []
    room = Destination._check_room
    monkeypatch.setattr(Destination, "_check_room", lambda self, given: needed.append(given) or room(self, given))
    outline_fuse(made.base, made.adapters, made.out)
    made.fuse()
    assert max(needed) < len(made.whole) / 2


def test_the_command(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.killed_when(Mark, "write", calls=6)
    loras = [word for path, strength in made.adapters for word in ("--lora", str(path), str(strength))]
    command = ["fuse", str(made.base), *loras, "-o", str(made.out), "--resume", "--json"]
    assert cli.main([*command, "--arithmetic", "f32"]) == 2
    assert "plan.arithmetic was ltx, is f32" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "resumed: 6 of 10 units had been done" in json.loads(capsys.readouterr().out)["notes"]
    assert made.out.read_bytes() == made.whole
