"""Each kernel that there is, by its line in kernels.def: one that cannot run here is skipped with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ltx2c import kernels

EVERY_KERNEL = re.findall(r'#include "(\w+)\.h"', Path(kernels.__file__).with_name("kernels.def").read_text())


@pytest.fixture(params=EVERY_KERNEL)
def kernel(request, monkeypatch):
    """The name of a kernel, which is in use while the test runs."""
    reason = kernels.verdicts().get(request.param, "not in this build: for another architecture, or a newer compiler")
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    monkeypatch.setenv("LTX2C_KERNEL", request.param)
    assert kernels.selected() == request.param
    return request.param
