"""The progress bar: on a terminal only, never in a pipe, with --json or with --quiet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ltx2c.cli.progress import _rates
from ltx2c.progress import Progress

E2E = Path(__file__).parents[1] / "data" / "e2e"


def stderr_on_a_terminal(out: Path, *more: str) -> str:
    """What ``fuse`` writes to stderr when that is a terminal."""
    ours, theirs = pty.openpty()
    lora = ("--lora", str(E2E / "adapter0.safetensors"))
    command = [sys.executable, "-m", "ltx2c", "fuse", str(E2E / "base.safetensors"), *lora, "-o", str(out), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # Linux's word for the end of a terminal
        pass
    os.close(ours)
    return written.decode()


def test_a_terminal_sees_rates_and_the_time_left(tmp_path: Path) -> None:
    seen = stderr_on_a_terminal(tmp_path / "out")
    for part in ("fuse", "100%", "B/s", "FLOP/s", "left"):
        assert part in seen


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_nothing_is_shown_when_asked_not_to(tmp_path: Path, option: str) -> None:
    assert stderr_on_a_terminal(tmp_path / "out", option) == ""


def test_a_terminal_that_goes_ends_nothing(tmp_path: Path) -> None:
    """As under ``nohup`` with stderr kept: every write to a terminal that is gone fails."""
    ours, theirs = pty.openpty()
    program = (
        "import os, sys\n"
        "from types import SimpleNamespace\n"
        "from ltx2c.cli import progress\n"
        "from ltx2c.progress import Progress\n"
        "with progress.bar('fuse', SimpleNamespace(quiet=False, json=False)) as show:\n"
        "    show(Progress(1, 9, 1, 9))\n"
        "    os.write(1, b'shown\\n')\n"
        "    sys.stdin.readline()\n"
        "    show(Progress(9, 9, 9, 9))\n"
        "print('done')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        assert process.stdout is not None
        os.close(theirs)
        process.stdout.readline()
        os.close(ours)
        out, _ = process.communicate("go on\n")
    assert (process.returncode, out) == (0, "done\n")


def test_rates() -> None:
    assert _rates(Progress(3_000_000_000, 9_000_000_000, 10**12, 10**13), 2.0) == "1.50 GB/s 1.00 TFLOP/s"
    assert _rates(Progress(500_000, 9_000_000, 0, 0), 0.5) == "1.00 MB/s"
