"""The ``ltx2c`` command, and ``python -m ltx2c``: starts the command line, with a Ctrl-C that is quiet from the start.

Importing NumPy and the kernels takes a while, and a ``KeyboardInterrupt`` in the middle of it ends in tracebacks:
signals wait until a command's work begins. NumPy's own threads, which start meanwhile, leave them to the main thread
for good; those that another thread receives may go unnoticed.
"""

from __future__ import annotations

import os
import signal
import sys

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Run the command line on this process's arguments and return the exit code."""
    _replace_closed_streams()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    from ltx2c import cli

    return cli.main(before_work=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))


def _replace_closed_streams() -> None:
    """By ``/dev/null``. Otherwise the next file to be opened gets the stream's number, and then its text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in order: each opens as the lowest free one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  # for as long as the process lives


if __name__ == "__main__":
    sys.exit(main())
