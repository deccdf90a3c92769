"""Every test, and every process a test starts, uses the package that this process imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ltx2c


@pytest.fixture(scope="session", autouse=True)
def _away_from_the_source_tree(tmp_path_factory):
    # `python -m ltx2c` looks in the working folder first. There the source tree would shadow an installed package, and
    # holds no compiled kernels unless it was built in place.
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(ltx2c.__file__).parents[1]), prepend=os.pathsep)
        os.chdir(tmp_path_factory.mktemp("elsewhere"))
        yield
        os.chdir(before)
