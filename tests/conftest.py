"""Every test, and every process a test starts, uses the package that this process imported."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from every_kernel import EVERY_KERNEL

import ltx2c
from ltx2c import kernels
from ltx2c.codes import CODES
from ltx2c.errors import RefusedError

# Under nohup SIGHUP is ignored, by the commands that tests start too: there is none to be seen ending by it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PACKAGE = str(Path(ltx2c.__file__).parent)


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


@pytest.fixture(scope="session", autouse=True)
def _every_code_is_registered():
    """Whatever the package refuses while tests run has a code that the registry explains."""
    original = RefusedError.__init__

    def checked(self: RefusedError, message: str, *, code: str, keys: tuple[str, ...] = ()) -> None:
        original(self, message, code=code, keys=keys)
        assert code in CODES or not sys._getframe(1).f_code.co_filename.startswith(PACKAGE), f"{code}: not registered"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RefusedError, "__init__", checked)
        yield


@pytest.fixture(params=EVERY_KERNEL)
def kernel(request, monkeypatch):
    """The name of a kernel, in use while the test runs; one that cannot run here is skipped with the reason."""
    reason = kernels.verdicts().get(request.param, "not in this build: for another architecture, or a newer compiler")
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    monkeypatch.setenv("LTX2C_KERNEL", request.param)
    assert kernels.selected() == request.param
    return request.param
