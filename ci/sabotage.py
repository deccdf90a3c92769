"""Proof that the gate can fail: puts the scalar loop back, drops a thread, adds a copy of W, and expects red each time.

    python ci/sabotage.py              every patch in ci/sabotage/, some two minutes each
    python ci/sabotage.py scalar-loop  one of them

Each patch is applied to a clone of HEAD, and the gate compares that with HEAD. Exit code 0: every one was caught.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from gate import FAILED

HERE = Path(__file__).parent
PATCHES = HERE / "sabotage"


def caught(patch: Path) -> bool:
    """Whether the gate turns red on a tree with ``patch``."""
    with tempfile.TemporaryDirectory(prefix="ltx2c-sabotage-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(HERE.parent), folder], check=True)
        subprocess.run(["git", "-C", folder, "apply", str(patch)], check=True)
        gate = subprocess.run([sys.executable, str(HERE / "gate.py"), "--tree", folder], check=False)
    return gate.returncode == FAILED


def main(names: list[str]) -> int:
    patches = [PATCHES / f"{name}.patch" for name in names] or sorted(PATCHES.glob("*.patch"))
    verdicts = {}
    for patch in patches:
        print(f"== {patch.stem}", flush=True)
        verdicts[patch.stem] = caught(patch)
    print()
    for name, red in verdicts.items():
        print(f"{name}: {'caught' if red else 'NOT CAUGHT'}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
