"""What every run of the command pays before it begins."""

from __future__ import annotations

import subprocess
import sys


class Starting:
    """In a fresh interpreter each time."""

    rounds = 1
    repeat = (5, 10, 3.0)
    number = 1

    def time_import(self) -> None:
        subprocess.run([sys.executable, "-c", "import ltx2c"], check=True)

    def time_help(self) -> None:
        done = subprocess.run([sys.executable, "-m", "ltx2c", "--help"], check=False, capture_output=True)
        if done.returncode:
            raise NotImplementedError
