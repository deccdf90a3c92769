"""Which kernel is chosen, and what is said about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ltx2c import kernels
from ltx2c.errors import RefusedError


@pytest.fixture(autouse=True)
def unforced(monkeypatch):
    monkeypatch.delenv("LTX2C_KERNEL", raising=False)


@pytest.fixture
def machine(monkeypatch):
    made_up = {"serial": "", "haswell": "", "skylake": "this CPU lacks AVX-512", "genoa": "this CPU lacks AVX512_BF16"}
    monkeypatch.setattr(kernels, "verdicts", lambda: made_up)


def test_serial_runs_everywhere_and_comes_first():
    assert kernels.available()[0] == "serial"
    assert kernels.selected() == kernels.available()[-1]


def test_the_fastest_that_runs_is_chosen(machine):
    assert kernels.available() == ("serial", "haswell")
    assert kernels.selected() == "haswell"


def test_says_what_kept_the_faster_ones_away(machine):
    assert kernels.why() == (
        "haswell: the fastest that runs here; skylake: this CPU lacks AVX-512; genoa: this CPU lacks AVX512_BF16"
    )


def test_one_can_be_forced(machine, monkeypatch):
    monkeypatch.setenv("LTX2C_KERNEL", "serial")
    assert kernels.selected() == "serial"
    assert kernels.why() == "serial: named by LTX2C_KERNEL"


@pytest.mark.parametrize("name", ["skylake", "genoa", "Serial", "nonsense\n"])
def test_one_that_does_not_run_is_refused(machine, monkeypatch, name):
    monkeypatch.setenv("LTX2C_KERNEL", name)
    with pytest.raises(RefusedError) as refusal:
        kernels.selected()
    assert refusal.value.code == "kernel"
    assert "serial, haswell" in str(refusal.value) and "\n" not in str(refusal.value)


def test_every_kernel_has_its_header_and_its_line():
    folder = Path(kernels.__file__).parent
    listed = [line.split('"')[1] for line in (folder / "kernels.def").read_text().splitlines() if "#include" in line]
    assert [f"{name}.h" for name in kernels.available()] == [n for n in listed if n[:-2] in kernels.available()]
    assert all((folder / name).is_file() for name in [*listed, "core.h", "driver.h"])


def test_every_extension_module_is_loaded_with_the_first():
    """They bind to one OpenMP runtime then, whatever torch brings in later: ci/two_runtimes.py has the consequences."""
    built = {f"ltx2c.kernels.{path.name.split('.')[0]}" for path in Path(kernels.__file__).parent.glob("*.so")}
    program = "import sys, ltx2c.kernels; print(*(name for name in sys.modules if name.startswith('ltx2c.kernels.')))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert built and set(loaded.split()) == built
