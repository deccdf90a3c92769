"""The ``ltx2c`` command, and ``python -m ltx2c``: starts the command line, with a Ctrl-C that is quiet from the start.

Importing NumPy and the kernels takes a while, and a ``KeyboardInterrupt`` in the middle of it ends in tracebacks. Until
a command's work begins there is nothing to clean up, so the process ends where it stands.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line on this process's arguments and return the exit code."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:  # else it is ignored, as in a shell's background, and stays so
        signal.signal(signal.SIGINT, _quit)
    from ltx2c import cli

    return cli.main(before_work=lambda: signal.signal(signal.SIGINT, previous))


def _quit(signum: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"ltx2c: error: interrupted\n")
        if "--json" in sys.argv:
            os.write(1, b'{"error": {"code": "interrupted", "message": "interrupted"}}\n')
    finally:
        os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
