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
    _replace_closed_streams()
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:  # else it is ignored, as in a shell's background, and stays so
        signal.signal(signal.SIGINT, _quit)
    from ltx2c import cli

    return cli.main(before_work=lambda: signal.signal(signal.SIGINT, previous))


def _replace_closed_streams() -> None:
    """By ``/dev/null``. Otherwise the next file to be opened gets the stream's number, and then its text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in order: each opens as the lowest free one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  # for as long as the process lives


def _quit(signum: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"ltx2c: error: interrupted\n")
        if "--json" in sys.argv:
            os.write(1, b'{"error": {"code": "interrupted", "message": "interrupted"}}\n')
    finally:
        os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
