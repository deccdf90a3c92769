"""The ``ltx2c`` command, and ``python -m ltx2c``: starts the command line, with signals handled from the start."""

from __future__ import annotations

import os
import sys

from ltx2c import signals


def main() -> int:
    """Run the command line on this process's arguments and return the exit code."""
    signals.take()
    _replace_closed_streams()
    from ltx2c import cli

    return cli.main()


def _replace_closed_streams() -> None:
    """By ``/dev/null``. Otherwise the next file to be opened gets the stream's number, and then its text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in order: each opens as the lowest free one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  # for as long as the process lives


if __name__ == "__main__":
    sys.exit(main())
