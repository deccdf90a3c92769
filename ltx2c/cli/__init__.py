"""The command line: ``ltx2c`` and ``python -m ltx2c``.

Each command is one module with ``EXAMPLE``, ``add_arguments(parser)`` and ``run(args) -> Result``, and one line in
``commands.COMMANDS``. What a run ends with is decided here, for all of them alike:

====  ================================================================================
code  meaning
====  ================================================================================
0     done
1     a bug: the traceback is shown
2     wrong usage, or an input that was refused; one line on stderr says why
3     the system failed: disk, permission, a vanished file; no result was left behind, but where stderr says that
      only stdout could not be written: then the command has done its work, and what it wrote stands
130   interrupted (Ctrl-C)
143   terminated (SIGTERM)
====  ================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

from ltx2c.cli.commands import UsageError, parse
from ltx2c.cli.result import Result
from ltx2c.errors import RefusedError, printable


def main(argv: Sequence[str] | None = None, *, before_work: Callable[[], object] | None = None) -> int:
    """Run one command and return its exit code.

    ``argv`` is without the program's name. ``before_work`` is called when everything is imported and parsed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_encode(stream)
    try:
        with _terminable():
            return _run_reporting(arguments, before_work)
    except BrokenPipeError:  # whoever was reading has left: there is nobody to tell
        _drop_stdout()
        return 3
    finally:
        _settle_stdout()


class Terminated(BaseException):
    """SIGTERM, made an exception so that whatever is being written is cleaned up on the way out."""


def _run_reporting(arguments: list[str], before_work: Callable[[], object] | None) -> int:
    try:
        return _run(arguments, before_work)
    except BrokenPipeError:
        raise
    except (UsageError, RefusedError) as error:
        return _fail(2, error.code, str(error), arguments)
    except OSError as error:
        return _fail(3, "io-failed", _describe(error), arguments)
    except MemoryError:
        return _fail(3, "out-of-memory", "not enough memory", arguments)
    except KeyboardInterrupt:
        return _fail(130, "interrupted", "interrupted", arguments)
    except Terminated:
        return _fail(143, "terminated", "terminated", arguments)


def _run(arguments: list[str], before_work: Callable[[], object] | None) -> int:
    try:
        command, args = parse(arguments)
    finally:
        sys.stdout.flush()  # a help text: here, where a reader that has left is still handled
    if before_work is not None:
        before_work()
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
        return _fail(3, "io-failed", f"stdout: {_describe(error)}; {done}", arguments)
    return result.exit_code


def _settle_stdout() -> None:
    """Write what is left to write. What cannot be is dropped, or the interpreter would try, and fail, as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(exit_code: int, code: str, message: str, arguments: Sequence[str]) -> int:
    print(f"ltx2c: error: {message}", file=sys.stderr)
    if "--json" in arguments:
        with contextlib.suppress(OSError):  # the reason to exit is the first error, and stderr has told it
            print(json.dumps({"error": {"code": code, "message": message}}), flush=True)
    return exit_code


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{printable(os.fsdecode(error.filename))}: {reason}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def terminate(signum: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _never_fail_to_encode(stream: object) -> None:
    """A file name that the terminal's encoding lacks is written with escapes."""
    with contextlib.suppress(AttributeError):  # a stream that a caller put in place of the real one
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
