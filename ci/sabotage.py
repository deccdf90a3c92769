"""Proof that the gate can fail: puts the scalar loop back, drops a thread, copies W, and expects red each time.

    python ci/sabotage.py              every switch of ltx2c/kernels/sabotage.h, some two minutes each
    python ci/sabotage.py copied-weights  one of them

The gate compares this tree, built with the switch, with HEAD. Exit code 0: every one was caught.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gate import FAILED, UNFINISHED

GATE = Path(__file__).with_name("gate.py")
SWITCHES = {
    "scalar-loop": "LTX2C_SCALAR_LOOP",
    "dropped-thread": "LTX2C_DROPPED_THREAD",
    "copied-weights": "LTX2C_COPIED_WEIGHTS",
}


def caught(switch: str) -> bool:
    """Whether the gate turns red on this tree built with ``switch``, for what it measured and not for want of time."""
    command = [sys.executable, str(GATE), "--base", "HEAD", f"--cflags=-DLTX2C_SABOTAGE={switch}"]
    gate = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(gate.stdout, flush=True)
    return gate.returncode == FAILED and UNFINISHED not in gate.stdout


def main(names: list[str]) -> int:
    verdicts = {}
    for name in names or SWITCHES:
        print(f"== {name}", flush=True)
        verdicts[name] = caught(SWITCHES[name])
    print()
    for name, red in verdicts.items():
        print(f"{name}: {'caught' if red else 'NOT CAUGHT'}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
