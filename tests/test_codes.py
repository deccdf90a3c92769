"""The registry of codes: what is raised is in it, what is in it is raised. ``conftest`` watches what tests raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ltx2c
from ltx2c.codes import CODES

PACKAGE = Path(ltx2c.__file__).parent
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_every_code_that_is_given_by_name_is_registered() -> None:
    given = {
        (where, keyword.value.value)
        for where, call in calls()
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }
    assert len(given) > 100
    assert {(where, code) for where, code in given if code not in CODES} == set()


def test_every_registered_code_stands_in_the_package() -> None:
    words = {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path.name != "codes.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    put_together = {"header-json", "header-utf8", "index-json", "index-utf8", "output-only-sequential"}
    assert CODES.keys() - words - put_together == set()


def test_codes_are_kebab_case_and_each_cause_is_its_own() -> None:
    assert all(CODE.fullmatch(code) for code in CODES)
    assert len(set(CODES.values())) == len(CODES)
