"""``info`` says which kernel runs here and why."""

from __future__ import annotations

import json

import pytest
from every_kernel import EVERY_KERNEL, instructions

from ltx2c import kernels
from ltx2c.cli import info, main


def test_facts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert facts["kernels_available"] == list(kernels.available())
    assert facts["kernel"] == facts["kernels_available"][-1]
    assert "serial" in facts["kernels_available"]
    assert facts["threads"] == 1
    assert "OMP_NUM_THREADS 1" in facts["threads_why"]
    assert {"ltx2c", "python", "numpy", "ml_dtypes", "cpu", "cpu_features"} <= facts.keys()


def test_a_forced_kernel_is_said_to_be_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTX2C_KERNEL", "serial")
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "serial" in out and "LTX2C_KERNEL" in out


def test_a_kernel_that_does_not_run_here_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTX2C_KERNEL", "z80")
    assert main(["info"]) == 2
    assert "z80" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVERY_KERNEL)
def test_every_feature_that_a_kernel_is_built_with_is_looked_for(name: str) -> None:
    assert {needed.replace("avx512bf16", "avx512_bf16") for needed in instructions(name)} <= set(info._FEATURES)
    assert instructions("haswell") == {"avx2", "fma", "f16c"}
