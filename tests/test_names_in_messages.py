"""Names that a file or a user chose stand in messages escaped once, inside quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from refusals import refused

import ltx2c
from ltx2c.threads import resolve_threads


def test_a_line_break_is_escaped_once() -> None:
    with refused("threads", "not 'bo\\ngus'"):
        resolve_threads("bo\ngus")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", sorted(Path(ltx2c.__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_is_escaped_twice(module: Path) -> None:
    assert not re.findall(r"printable\([^{}]*\)!r|repr\(printable", module.read_text())
