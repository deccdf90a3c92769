"""What a command hands back: the same facts for a program and for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """``json`` is printed with ``--json``, ``text`` without; ``exit_code`` is 0, or 2 where a check did not hold."""

    json: dict[str, Any]
    text: str
    exit_code: int = 0
