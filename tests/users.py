"""Running as somebody else, which only root may."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NOBODY, SOMEBODY = 65_533, 65_532


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody reaches and may write to, which pytest's own are not, with the sticky bit."""
    folder = Path(tempfile.mkdtemp(prefix="ltx2c-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, call: Callable[[], object]) -> str:
    """What ``call`` returns, or raises as ``TYPE: message``, as text, in a child process that ``user`` owns."""
    if os.geteuid():
        pytest.skip("NOT TESTED: only root may become another user")
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            try:
                text = str(call())
            except Exception as error:
                text = f"{getattr(error, 'code', type(error).__name__)}: {error}"
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text
