"""Asserting that something is refused, with the code and the words that a user needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ltx2c.errors import RefusedError


@contextlib.contextmanager
def refused(code: str, *names: object) -> Iterator[None]:
    """The block raises ``RefusedError`` with ``code``, in one line that holds each of ``names``."""
    with pytest.raises(RefusedError) as caught:
        yield
    message = str(caught.value)
    assert caught.value.code == code, message
    assert "\n" not in message
    for name in names:
        assert str(name) in message, f"{name!r} is missing from: {message}"
