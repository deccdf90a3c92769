"""What ``import ltx2c`` offers."""

from __future__ import annotations

import types

import pytest

import ltx2c


@pytest.mark.parametrize("name", ltx2c.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(ltx2c, name)
    if not isinstance(value, (str, types.ModuleType)):
        assert value.__name__ == name
    assert name in dir(ltx2c)


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fuse_all'"):
        ltx2c.fuse_all  # noqa: B018
