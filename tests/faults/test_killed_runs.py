"""Runs that are killed or interrupted: OUT is absent or complete, and the next run succeeds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from destinations import temporaries
from fusing import adapter, save, values

import ltx2c
from ltx2c.files.temporaries import is_temporary

KILLED_RUNS = Path(__file__).parent / "killed_runs.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base of 42 MB, a quarter of it fused, and room for the result."""
    tensors = {f"m{at}.weight": values(at, 1024, 2048) for at in range(10)}
    save(tmp_path / "base.safetensors", tensors)
    save(tmp_path / "lora.safetensors", adapter({f"m{at}": (1024, 64, 2048) for at in (1, 4, 9)}, 50))
    (tmp_path / "out").mkdir()
    return tmp_path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sizes(paths: list[Path]) -> list[int]:
    """Bytes of those that are still there: a trial's temporary goes at once."""
    with contextlib.suppress(FileNotFoundError):
        return [path.stat().st_size for path in paths]
    return []


def test_sigkill_at_50_random_moments(folder: Path) -> None:
    base, lora, out = folder / "base.safetensors", folder / "lora.safetensors", folder / "out" / "fused.safetensors"
    inputs = [sha256(base), sha256(lora)]
    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], folder / "expected")
    seed = time.time_ns() % 1_000_000
    run = subprocess.run(
        [sys.executable, KILLED_RUNS, folder, "50", str(seed)], capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, f"seed {seed}: {run.stderr}"
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(kills) == 50
    for kill in kills:
        assert kill["inputs"] == inputs
        assert all(name == out.name or is_temporary(out.name, name) for name in kill["found"]), f"seed {seed}"
        assert kill["found"].get(out.name, "absent") in ("absent", sha256(folder / "expected")), f"seed {seed}"
    struck = [kill for kill in kills if kill["killed"]]
    assert len(struck) >= 10 and any(kill["found"] for kill in struck), f"seed {seed}: the kills came too late"
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out)
    assert sha256(out) == sha256(folder / "expected") and list(out.parent.iterdir()) == [out]
    left = [content for name, content in kills[-1]["found"].items() if name != out.name]
    assert any("earlier run" in note for note in report.notes) == (left not in ([], [hashlib.sha256().hexdigest()]))


@pytest.mark.parametrize(
    ("number", "exit_code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_polite_signal_ends_the_run_and_leaves_nothing(
    number: signal.Signals, exit_code: int, word: str, folder: Path
) -> None:
    base, lora, out = folder / "base.safetensors", folder / "lora.safetensors", folder / "out" / "fused.safetensors"
    save(lora, adapter({f"m{at}": (1024, 1024, 2048) for at in range(10)}, 50))
    command = [sys.executable, "-m", "ltx2c", "fuse", base, "--lora", lora, "0.5", "-o", out, "--threads", "1"]
    slow = {**os.environ, "LTX2C_KERNEL": "serial"}  # seconds of work
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=slow) as run:
        deadline = time.monotonic() + 60
        while not any(size > 100_000 for size in sizes(temporaries(out))):
            assert run.poll() is None and time.monotonic() < deadline, run.communicate()
            time.sleep(0.001)
        time.sleep(0.05)
        run.send_signal(number)
        _, error = run.communicate(timeout=60)
    assert (run.returncode, error) == (exit_code, f"ltx2c: error: {word}\n")
    assert list(out.parent.iterdir()) == []


def test_a_second_run_to_one_destination_is_refused_while_the_first_goes_on(folder: Path) -> None:
    base, lora, out = folder / "base.safetensors", folder / "lora.safetensors", folder / "out" / "fused.safetensors"
    codes = []

    def second(_: object) -> None:
        if not codes:
            command = [sys.executable, "-m", "ltx2c", "fuse", base, "--lora", lora, "-o", out]
            run = subprocess.run(command, capture_output=True, text=True)
            codes.append((run.returncode, "another run is writing" in run.stderr))

    ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out, progress=second)
    assert codes == [(2, True)]
    assert list(out.parent.iterdir()) == [out]
