"""A refusal reaches whoever asked, also across processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import ltx2c
from ltx2c.errors import RefusedError


class MoreRefusedError(RefusedError):
    """As a library on top of this one may make it."""


@pytest.mark.parametrize(
    "duplicate",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
@pytest.mark.parametrize("kind", [RefusedError, MoreRefusedError])
def test_a_refusal_is_pickled_and_copied_whole(duplicate: Callable[[Any], Any], kind: type[RefusedError]) -> None:
    error = kind("one line", code="some-code")
    error.hint = "more"  # type: ignore[attr-defined]
    again = duplicate(error)
    assert type(again) is kind and str(again) == "one line" and vars(again) == vars(error)
    assert again.code == "some-code"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_workers_refusal_reaches_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused("empty", path):
        pool.apply_async(ltx2c.Checkpoint.open, (path,)).get(timeout=20)
