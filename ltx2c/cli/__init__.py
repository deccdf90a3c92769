"""The command line: ``ltx2c`` and ``python -m ltx2c``.

Each command is one module with ``EXAMPLE``, ``add_arguments(parser)`` and ``run(args) -> Result``, and one line in
``commands.COMMANDS``. What a run ends with is decided here, for all of them alike:

====  ================================================================================
code  meaning
====  ================================================================================
0     done
1     compared and different (verify)
2     wrong usage, or an input that was refused; one line on stderr says why
3     the system failed: disk, permission, a vanished file; no result was left behind, but where stderr says that
      only stdout could not be written: then the command has done its work, and what it wrote stands
70    a bug: the traceback is shown
130   interrupted (Ctrl-C)
143   terminated (SIGTERM); 128 + its number for another signal that ends a process
====  ================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

from ltx2c import signals
from ltx2c.cli.commands import UsageError, parse
from ltx2c.cli.result import Failure, Result
from ltx2c.cli.text import described
from ltx2c.errors import RefusedError, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_encode(stream)
    try:
        try:
            ended = _run(arguments)
        finally:  # a signal may come until here, and from here on none changes the outcome
            signals.settle()
    except KeyboardInterrupt as interrupt:
        ended = _stopped(interrupt)
    except SystemExit as leaving:  # argparse's way to end after --help and --version
        ended = Result({}, "", exit_code=int(leaving.code or 0))
    exit_code = ended.exit_code
    if isinstance(ended, Failure):
        _report(ended, "--json" in arguments)
    for stream in (sys.stdout, sys.stderr):
        _settle(stream)
    signals.release()
    return exit_code


def _run(arguments: list[str]) -> Result | Failure:
    try:
        try:
            return _run_command(arguments)
        finally:  # a signal decides, also where it was lost on the way, or where it made something else go wrong
            number = signals.received()
            if number is not None:
                raise signals.Stopped(number) from None
    except BrokenPipeError:  # whoever was reading has left: there is nobody to tell
        return Failure(3, "", "")
    except (UsageError, RefusedError) as error:
        return Failure(2, error.code, str(error), keys=getattr(error, "keys", ()))
    except UnicodeEncodeError as error:
        name = printable(error.object)
        return Failure(2, "name-encoding", f"{name}: the locale's encoding for file names, {error.encoding}, lacks it")
    except OSError as error:
        return Failure(3, "io-failed", described(error))
    except MemoryError:
        return Failure(3, "out-of-memory", "not enough memory")
    except Exception as error:
        said = f"a bug, please report it: {type(error).__name__}: {printable(error)}"
        return Failure(70, "bug", said, traceback.format_exc())


def _run_command(arguments: list[str]) -> Result | Failure:
    try:
        command, args = parse(arguments)
    finally:
        sys.stdout.flush()  # a help text: here, where a reader that has left is still handled
    signals.begin_work()
    result: Result = command.run(args)
    try:
        if args.json:
            print(json.dumps(result.json))
        elif not args.quiet:
            print(result.text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        done = "the command has done its work, and what it wrote stands"
        return Failure(3, "io-failed", f"stdout: {described(error)}; {done}")
    return result


def _stopped(interrupt: KeyboardInterrupt) -> Failure:
    if isinstance(interrupt, signals.Stopped):
        number = interrupt.number
        return Failure(interrupt.exit_code, signals.code(number), signals.ENDINGS[number])
    return Failure(130, "interrupted", "interrupted")  # Python's own, of a program that calls main()


def _report(failure: Failure, as_json: bool) -> None:
    with contextlib.suppress(OSError):  # the exit code tells what stderr or stdout has no room for
        if failure.message:
            print(f"{failure.traceback}ltx2c: error: {failure.message}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        if as_json and failure.message:
            keys = {"keys": failure.keys} if failure.keys else {}
            print(json.dumps({"error": {"code": failure.code, "message": failure.message, **keys}}), flush=True)


def _settle(stream: TextIO) -> None:
    """Write what is left to write. What cannot be is dropped, or the interpreter would try, and fail, as it ends."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _never_fail_to_encode(stream: object) -> None:
    """A file name that the terminal's encoding lacks is written with escapes."""
    with contextlib.suppress(AttributeError):  # a stream that a caller put in place of the real one
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
