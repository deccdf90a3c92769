"""Run by ``test_killed_runs``: fuse again and again in a forked child, and kill it at random moments.

Forking a process that has imported everything already makes every moment of the run itself likely to be hit.
Prints one JSON object per kill: where it struck and what was there afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import ltx2c


def main(folder: Path, kills: int, seed: int) -> None:
    base, lora, out = folder / "base.safetensors", folder / "lora.safetensors", folder / "out" / "fused.safetensors"
    chance = random.Random(seed)
    began = time.perf_counter()
    os.waitpid(start(base, lora, out), 0)
    whole = time.perf_counter() - began
    out.unlink()
    for _ in range(kills):
        child = start(base, lora, out)
        time.sleep(chance.uniform(0, 1.2 * whole))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        found = {path.name: digest(path) for path in out.parent.iterdir()}
        inputs = [digest(path) for path in (base, lora)]
        print(json.dumps({"killed": os.WIFSIGNALED(status), "found": found, "inputs": inputs}), flush=True)
        out.unlink(missing_ok=True)


def start(base: Path, lora: Path, out: Path) -> int:
    """Fuse in a child; its process id. The parent starts no thread and may go on forking."""
    child = os.fork()
    if child == 0:
        ltx2c.fuse_checkpoint(base, [(lora, 0.5)], out, threads=2)
        os._exit(0)
    return child


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
