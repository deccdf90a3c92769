"""What holds for every command: exit codes, error lines, help, pipes and signals."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from ltx2c import cli, signals
from ltx2c.cli import commands, options
from ltx2c.cli.result import Result
from ltx2c.errors import RefusedError

E2E = Path(__file__).parents[1] / "data" / "e2e"


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ltx2c", *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?")
    options.add_loras(parser)
    options.add_threads(parser)
    options.add_unmatched(parser)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Result]], None]:
    """Install a command ``try`` that does what a test wants."""

    def install(work: Callable[[], Result]) -> None:
        module = types.ModuleType("fake_command")
        module.EXAMPLE = "ltx2c try"
        module.add_arguments = add_arguments
        module.run = lambda args: work()
        monkeypatch.setitem(sys.modules, "fake_command", module)
        monkeypatch.setitem(commands.COMMANDS, "try", ("fake_command", "does what a test wants"))

    return install


def raising(error: BaseException) -> Callable[[], Result]:
    def work() -> Result:
        raise error

    return work


def test_a_result_is_printed_as_text_as_json_or_not_at_all(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda: Result({"answer": 42}, "the answer is 42"))

    assert cli.main(["try"]) == 0
    assert capsys.readouterr() == ("the answer is 42\n", "")
    assert cli.main(["try", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"answer": 42}
    assert cli.main(["try", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_check_that_does_not_hold_exits_with_its_own_code(command: Callable[..., None]) -> None:
    command(lambda: Result({}, "3 keys differ", exit_code=1))
    assert cli.main(["try"]) == 1


@pytest.mark.parametrize(
    ("error", "exit_code", "code", "line"),
    [
        (RefusedError("a.safetensors: too odd", code="odd"), 2, "odd", "a.safetensors: too odd"),
        (OSError(errno.ENOSPC, "No space left", "/d/out"), 3, "io-failed", "/d/out: No space left"),
        (OSError("no errno"), 3, "io-failed", "no errno"),
        (OSError(errno.EIO, "Bad", b"/d/\n\xff"), 3, "io-failed", "/d/\\n\\udcff: Bad"),
        (MemoryError(), 3, "out-of-memory", "not enough memory"),
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
        (signals.Stopped(signal.SIGTERM), 143, "terminated", "terminated"),
        (signals.Stopped(signal.SIGXCPU), 152, "signal", "the limit of CPU time was reached (SIGXCPU)"),
    ],
)
def test_a_fault_is_one_line_and_an_exit_code(
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
    code: str,
    line: str,
) -> None:
    command(raising(error))

    assert cli.main(["try"]) == exit_code
    assert capsys.readouterr() == ("", f"ltx2c: error: {line}\n")
    assert cli.main(["try", "--json"]) == exit_code
    assert json.loads(capsys.readouterr().out) == {"error": {"code": code, "message": line}}


def test_a_bug_keeps_its_traceback(command: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(ZeroDivisionError("odd")))
    assert cli.main(["try", "--json"]) == 70
    out, err = capsys.readouterr()
    assert err.startswith("Traceback ") and err.endswith(
        "\nltx2c: error: a bug, please report it: ZeroDivisionError: odd\n"
    )
    assert json.loads(out)["error"]["code"] == "bug"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nonsense"],
        ["frobnicate"],
        ["synth"],
        ["synth", "made", "--blo", "2"],
        ["synth", "made", "--blocks", "two"],
        ["try", "--lora"],
        ["try", "--nonsense"],
        ["try", "--threads", "two"],
        ["try", "--unmatched", "ignore"],
        ["try", "--lora", "a", "0.5", "base"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    command: Callable[..., None], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda: Result({}, "ran"))
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ltx2c: error: ") and err.count("\n") == 1
    assert "--help)" in err


@pytest.mark.parametrize("strength", ["strong", "", "0,5", "0x1"])
def test_a_strength_that_is_no_number_is_refused_by_name(
    command: Callable[..., None], strength: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda: Result({}, "ran"))
    assert cli.main(["try", "--lora", "a", strength]) == 2
    assert repr(strength) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-0.3", "-1e-3", "-.5", "+2", "0", "-inf"])
def test_a_strength_may_be_negative_and_in_any_notation(command: Callable[..., None], text: str) -> None:
    command(lambda: Result({}, "ran"))
    _, args = commands.parse(["try", "--lora", "a", text, "--lora", "b"])
    assert args.lora == [("a", float(text)), ("b", 1.0)]


@pytest.mark.parametrize("text", ["-5", "-1e-3", "-inf"])
def test_a_path_may_look_like_a_negative_number(command: Callable[..., None], text: str) -> None:
    command(lambda: Result({}, "ran"))
    _, args = commands.parse(["try", text, "--lora", text])
    assert (args.file, args.lora) == (text, [(text, 1.0)])


@pytest.mark.parametrize(
    "arguments",
    [
        ["x\nltx2c: error: forged\x1b[2J", "more"],
        ["--lora", "a", "1", "x\nltx2c: error: forged\x1b[2J"],
        ["--x\nltx2c: error: forged\x1b[2J"],
    ],
)
def test_an_argument_cannot_forge_a_line_and_is_not_cut(
    command: Callable[..., None], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda: Result({}, "ran"))
    assert cli.main(["try", "file", *arguments, "y" * 300]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\\nltx2c: error: forged\\x1b[2J" in err and "y" * 300 in err


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "9" * 300 + "TB", "9223372036854775808"])
def test_a_size_beyond_any_files_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="more than a file can hold"):
        options.byte_size(text)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_help_has_an_example_and_fits_a_terminal(name: str) -> None:
    done = run(name, "--help", env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0 and done.stderr == ""
    assert f"example:\n  ltx2c {name}" in done.stdout
    for option in ("--json", "--quiet"):
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_help_shows_an_adapter_as_upstream_spells_it(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda: Result({}, "ran"))
    assert cli.main(["try", "--help"]) == 0
    assert "[--lora PATH [STRENGTH]]" in capsys.readouterr().out


def test_help_lists_every_command() -> None:
    listed = run("--help").stdout
    assert all(f"  {name} " in listed for name in commands.COMMANDS)


def test_version() -> None:
    assert re.fullmatch(r"ltx2c \d+\.\d+\.\d+\n", run("--version").stdout)


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    slow = ("torch", "rich", "safetensors", "numpy")
    code = f"import sys, ltx2c, ltx2c.cli; print([m for m in {slow} if m in sys.modules])"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", str(E2E / "base.safetensors"), "--json"]])
def test_a_reader_that_leaves_is_no_traceback(arguments: list[str]) -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    done = subprocess.run(
        [sys.executable, "-m", "ltx2c", *arguments],
        stdout=writing_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing_end)
    assert done.stderr == ""
    assert done.returncode in (0, 3)  # argparse itself shrugs this off


def test_options_shared_by_commands_reach_them(command: Callable[..., None]) -> None:
    command(lambda: Result({}, "ran"))
    _, args = commands.parse(["try", "--threads", "-2", "--unmatched", "warn"])
    assert (args.threads, args.unmatched, args.lora, args.json, args.quiet) == (-2, "warn", [], False, False)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_stdout_does_not_hide_that_the_result_stands(form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Path("/dev/full").open("w") as full:
        words = ["synth", str(out), "--blocks", "1", "--rank", "1", *(["--json"] if form == "json" else [])]
        process = subprocess.run(
            [sys.executable, "-m", "ltx2c", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert process.returncode == 3 and len(list(out.iterdir())) == 2
    assert "stdout: No space left on device" in process.stderr and "stands" in process.stderr
    assert "Exception" not in process.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_neither_stop_a_command_nor_reach_its_files(closed: str, tmp_path: Path) -> None:
    words = f"synth {tmp_path} --blocks 1 --rank 1 --json"
    command = ["sh", "-c", f"{sys.executable} -m ltx2c {words} {closed} && {sys.executable} -m ltx2c info {closed}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for path in tmp_path.iterdir():
        with safe_open(path, "numpy") as opened:
            assert len(opened.keys()) > 1
    refused = subprocess.run(["sh", "-c", f"{sys.executable} -m ltx2c {closed} nonsense"], check=False, timeout=60)
    assert refused.returncode == 2


def test_a_full_stdout_leaves_an_error_its_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "ltx2c", "info", "--json", "--nonsense"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert process.returncode == 2 and "Exception" not in process.stderr and "stands" not in process.stderr


@pytest.mark.parametrize(("words", "exit_code"), [(["info", "--nonsense"], 2), (["inspect", "absent"], 3)])
def test_a_full_stderr_leaves_an_error_its_exit_code(words: list[str], exit_code: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "ltx2c", *words], stdout=full, stderr=full, timeout=60)
    assert done.returncode == exit_code


def test_a_full_stderr_leaves_a_bug_its_exit_code(tmp_path: Path) -> None:
    program = "import sys; from ltx2c import bench, __main__; bench.bench = None; sys.exit(__main__.main())"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", program, "bench"], stderr=full, timeout=60)
    assert done.returncode == 70


@pytest.mark.parametrize("name", ["\N{LATIN SMALL LETTER U WITH DIAERESIS}.safetensors", "\ud800.safetensors"])
def test_a_shards_name_that_the_locale_lacks_is_refused(name: str, tmp_path: Path) -> None:
    index = tmp_path / "base.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"weight": name}}))
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run("inspect", str(index), env={**os.environ, **ascii_only})
    assert done.returncode in (2, 3) and done.stderr.count("\n") == 1, done.stderr
