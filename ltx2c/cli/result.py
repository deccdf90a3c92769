"""What a command ends with: the same facts for a program and for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """``json`` is printed with ``--json``, ``text`` without; ``exit_code`` is 0, or 1 where things compared differ."""

    json: dict[str, Any]
    text: str
    exit_code: int = 0


@dataclass(frozen=True)
class Failure:
    """Why there is no result: the exit code, the error's code for programs and line for persons, a bug's traceback.

    ``keys``: all that the line is about, where it names only the first.
    """

    exit_code: int
    code: str
    message: str
    traceback: str = ""
    keys: tuple[str, ...] = ()
