"""One Ctrl-C at a random moment of a fuse: it must end with 130 within a second, and leave nothing behind.

    python ci/interrupts.py [PRESSES [SEED]]

Presses that come before ltx2c handles signals are Python's own affair, and are counted apart: the process is killed by
the signal, which shells report as 130 as well, or Python exits with 1 for a module of its own that it could not import,
or it loses the press in an import.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SIDE, RANK, WEIGHTS = 4096, 450, 4
LATEST_SECONDS = 1.0
ALLOWED_SECONDS = 1.0


def write_inputs(folder: Path) -> None:
    """A base and an adapter that take the slowest kernel much longer than any press is late."""

    def values(*shape: int) -> np.ndarray:
        return np.full(shape, 0.01, ml_dtypes.bfloat16)

    keys = [f"diffusion_model.transformer_blocks.{at}.attn1.to_q" for at in range(WEIGHTS)]
    save_file({f"model.{key}.weight": values(SIDE, SIDE) for key in keys}, folder / "base.safetensors")
    factors = {f"{key}.lora_A.weight": values(RANK, SIDE) for key in keys}
    factors |= {f"{key}.lora_B.weight": values(SIDE, RANK) for key in keys}
    save_file(factors, folder / "lora.safetensors")


def press(inputs: Path, moment: float) -> tuple[str, float]:
    """What came of one press after ``moment`` seconds, and how long the process took to end."""
    with tempfile.TemporaryDirectory(dir=inputs) as folder:
        words = ["fuse", inputs / "base.safetensors", "--lora", inputs / "lora.safetensors", "-o", f"{folder}/out"]
        process = subprocess.Popen(
            [sys.executable, "-m", "ltx2c", *words],
            cwd=folder,  # not the source tree, which the interpreter would find first
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LTX2C_KERNEL": "serial"},
        )
        time.sleep(moment)
        begun = has_begun(process.pid)
        process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "LOST" if begun else "before ltx2c handled signals: lost by Python", 10.0
        seconds = time.monotonic() - pressed
        left = [path.name for path in Path(folder).iterdir()]
        if (process.returncode, out, err) == (130, "", "ltx2c: error: interrupted\n"):
            return ("LEFT " + " ".join(left) if left else "130"), seconds
        if not begun and not left and process.returncode in (-signal.SIGINT, 1):
            return f"before ltx2c handled signals: {process.returncode}", seconds
        return f"ended with {process.returncode}, {out!r}, {err!r}", seconds


def has_begun(process: int) -> bool:
    """Whether ltx2c's handlers are in place: Python by itself does not catch SIGHUP."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def main() -> int:
    presses = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    dice = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    if not Path("/proc/self/status").exists():
        print("NOT RUN: no /proc, which tells when the command has begun")
        return 0
    ends: collections.Counter[str] = collections.Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        write_inputs(Path(folder))
        while ends["130"] + sum(map(ends.__getitem__, faults(ends))) < presses:
            missing = presses - ends["130"] - sum(map(ends.__getitem__, faults(ends)))
            moments = [dice.uniform(0, LATEST_SECONDS) for _ in range(missing)]
            for end, seconds in pool.map(lambda moment: press(Path(folder), moment), moments):
                ends[
                    end if seconds <= ALLOWED_SECONDS or end.startswith("before") else f"{end}, LATE: {seconds:.2f} s"
                ] += 1
                slowest = max(slowest, seconds)
    for end, count in sorted(ends.items()):
        print(f"{count:6,}  {end}")
    print(f"slowest: {slowest:.2f} s after the press")
    return 1 if faults(ends) else 0


def faults(ends: collections.Counter[str]) -> list[str]:
    """Ends that are none of the right ones."""
    return [end for end in ends if end != "130" and (", LATE" in end or not end.startswith("before ltx2c"))]


if __name__ == "__main__":
    sys.exit(main())
