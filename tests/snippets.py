"""The code blocks of the docs: what each is, what runs it, and how.

A block is fenced and names its language. A comment in the line before it may say what is special about it:

    <!-- snippet: file NAME -->        not a program, but a file that other blocks need
    <!-- snippet: run by SCRIPT -->    too slow for the tests, or in need of software that they have not
    <!-- snippet: not run: REASON -->
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("*.md", "docs/**/*.md", "ltx2c/**/*.md", "integrations/*/*.md")

_FENCE = re.compile(r"```(\S*)")
_MARK = re.compile(r"<!-- snippet: (file|run by|not run:) (.+) -->")


@dataclass(frozen=True)
class Snippet:
    """A code block.

    Attributes:
        document, line: the document's path in the repository, and the block's first line in it.
        language: as the fence names it; empty for a block that is indented.
        mark, told: what the comment before it says, in two parts; both empty where there is none.
    """

    document: str
    line: int
    language: str
    mark: str
    told: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"


def snippets() -> list[Snippet]:
    """All of them, in order."""
    paths = sorted({path for pattern in DOCUMENTS for path in ROOT.glob(pattern)})
    return [one for path in paths for one in parse(str(path.relative_to(ROOT)), path.read_text())]


def parse(document: str, text: str) -> Iterator[Snippet]:
    """The blocks of a document."""
    lines = ["", *text.split("\n")]
    at = 1
    while at < len(lines):
        first, mark = at, _MARK.fullmatch(lines[at - 1])
        if fence := _FENCE.fullmatch(lines[at]):
            end = at = lines.index("```", at + 1)
            language, code = fence[1], lines[first + 1 : end]
        elif lines[at].startswith("    ") and not lines[at - 1]:
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            language, code = "", lines[first:at]
        else:
            at += 1
            continue
        at += 1
        yield Snippet(document, first, language, *(mark.groups() if mark else ("", "")), "\n".join([*code, ""]))


def launcher(folder: Path) -> Path:
    """A folder for PATH in which ``ltx2c`` and ``python`` are those of this process."""
    folder.mkdir()
    for name, words in (("python", ""), ("ltx2c", " -m ltx2c")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def run_shell(code: str, folder: Path, environment: Mapping[str, str], **limits: int) -> str:
    """What a script of bash prints; any of its commands that fails, fails it."""
    return _run(["bash", "-euo", "pipefail", "-c", code], folder, environment, **limits)


def run_python(code: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What a program of Python prints."""
    return _run([sys.executable, "-c", code], folder, environment)


def run_console(code: str, folder: Path, environment: Mapping[str, str], **limits: int) -> None:
    """Run what follows each ``$``; what it prints must be what the block says, but for numbers and where lines end."""
    for command, told in _commands(code):
        got = _run(["bash", "-c", command + " 2>&1 || true"], folder, environment, **limits)
        assert shape(got, folder) == shape(told), f"$ {command}\n{got}"


def shape(printed: str, folder: Path = Path("/home/me")) -> str:
    """What is printed, without what depends on the machine or the moment."""
    printed = printed.replace(str(folder), "/home/me")
    printed = re.sub(r"kernel \w+, \d+ threads?", "kernel K, # threads", printed)
    printed = re.sub(r"\d+(\.\d+)?( [kMGT]?(B|FLOP)\b)?", "#", printed)
    return " ".join(printed.split())


def _commands(code: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, told = part.partition("\n")
        yield command, told


def _run(words: list[str], folder: Path, environment: Mapping[str, str], timeout: int = 100) -> str:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
