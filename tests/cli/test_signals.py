"""Signals that end a command: one is enough, at any moment, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ltx2c import signals

# A command that says when it works, cleans up when it is stopped, and says that it has.
COMMAND = """
import os, signal, sys, threading, time, types, weakref
from ltx2c import __main__, signals
from ltx2c.cli import commands
from ltx2c.cli.result import Result

def work():
    WORK

def run(args):
    try:
        print("working", flush=True)
        work()
    finally:
        print("cleaned", flush=True)
    return Result({}, "done")

module = types.ModuleType("slow")
module.EXAMPLE, module.add_arguments, module.run = "", lambda parser: None, run
commands.COMMANDS["slow"] = ("slow", "works")
sys.modules["slow"] = module
PREPARE
sys.exit(__main__.main())
"""


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    while started:
        with started.pop() as process:
            process.kill()


def start(work: str, *words: str, prepare: str = "") -> subprocess.Popen[str]:
    program = COMMAND.replace("WORK", work.replace("\n", "\n    ")).replace("PREPARE", prepare)
    process = subprocess.Popen(
        [sys.executable, "-c", program, "slow", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started.append(process)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert process.stdout is not None and process.stderr is not None
    with process:  # not communicate(), which forgets what readline() has read ahead
        out, err = process.stdout.read(), process.stderr.read()
    return process.returncode, out, err


@pytest.mark.parametrize("number", signals.ENDINGS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_cleans_up_and_exits_with_its_number(number: int) -> None:
    process = start("time.sleep(60)")
    process.send_signal(number)
    assert end(process) == (128 + number, "cleaned\n", f"ltx2c: error: {signals.ENDINGS[number]}\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_an_ignored_signal_stays_ignored(number: int) -> None:
    process = start("time.sleep(0.3)", prepare=f"signal.signal({int(number)}, signal.SIG_IGN)")
    process.send_signal(number)
    assert end(process) == (0, "cleaned\ndone\n", "")


def test_a_signal_that_somebody_handles_stays_theirs() -> None:
    process = start("time.sleep(0.3)", prepare="signal.signal(signal.SIGUSR1, lambda *_: print('theirs', flush=True))")
    process.send_signal(signal.SIGUSR1)
    assert end(process) == (0, "theirs\ncleaned\ndone\n", "")


LOSING = {
    "a finalizer": "class Slow:\n    def __del__(self): time.sleep(0.6)\nSlow()",
    "a weak reference's callback": "gone = weakref.ref(set(), lambda _: time.sleep(0.6))",
    "whoever catches everything": "try: time.sleep(0.6)\nexcept BaseException: pass",
    "another error": "try: time.sleep(0.6)\nexcept BaseException: raise ImportError('half a module') from None",
}


@pytest.mark.parametrize("loser", LOSING)
def test_a_press_is_not_lost_in(loser: str) -> None:
    process = start(LOSING[loser] + "\ntime.sleep(60)")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert end(process) == (130, "cleaned\n", "ltx2c: error: interrupted\n")


def test_a_press_that_another_thread_receives_ends_a_wait_for_a_lock() -> None:
    process = start(
        "threading.Thread(target=lambda: (time.sleep(0.2), signal.pthread_kill(threading.get_ident(), signal.SIGINT),"
        " time.sleep(60)), daemon=True).start()\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"
    )
    assert end(process) == (130, "cleaned\n", "ltx2c: error: interrupted\n")


def test_a_second_press_disturbs_neither_the_cleaning_nor_the_report() -> None:
    process = start(
        "try: print('at it', flush=True); time.sleep(60)\nfinally: print('cleaning', flush=True); time.sleep(0.5)"
    )
    assert process.stdout is not None and process.stdout.readline() == "at it\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert end(process) == (130, "cleaned\n", "ltx2c: error: interrupted\n")


def test_presses_while_reporting_give_no_traceback() -> None:
    reporting = (
        "from ltx2c import cli\n"
        "report = cli._report\n"
        "cli._report = lambda *given: (signal.raise_signal(signal.SIGINT), report(*given))"
    )
    process = start("raise OSError('no')", prepare=reporting)
    assert end(process) == (3, "cleaned\n", "ltx2c: error: no\n")


def test_a_press_after_the_report_ends_the_process_at_once() -> None:
    process = start(
        "pass", prepare="import atexit; atexit.register(lambda: (print('late', flush=True), time.sleep(60)))"
    )
    assert process.stdout is not None
    while process.stdout.readline() != "late\n":
        pass
    process.send_signal(signal.SIGINT)
    assert end(process) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_while_starting_is_one_line_and_130(form: list[str], tmp_path: Path) -> None:
    for moment in (0.0, 0.05, 0.1):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "ltx2c", "synth", str(tmp_path / "made"), *form],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in process.stderr or ():
            if "ltx2c.cli.result" in line:  # the entry has run, NumPy is still to come
                break
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        code, out, err = end(process)
        lines = [line for line in err.splitlines(keepends=True) if not line.startswith("import time:")]
        assert (code, lines) == (130, ["ltx2c: error: interrupted\n"])
        said = '{"error": {"code": "interrupted", "message": "interrupted"}}\n'
        assert out == (said if form else "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_a_stopped_command_leaves_no_file(number: signal.Signals, tmp_path: Path) -> None:
    made = tmp_path / "made"
    process = subprocess.Popen(
        [sys.executable, "-m", "ltx2c", "synth", str(made), "--blocks", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not any(part.stat().st_size for part in made.glob(".*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    assert end(process)[0] == 128 + number
    assert list(made.iterdir()) == []
