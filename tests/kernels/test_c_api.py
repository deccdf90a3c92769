"""The C API: a program outside Python includes the installed headers and makes the same bytes."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from goldens import bits
from values import BF16, values

import ltx2c
from ltx2c import reference

COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")


@pytest.mark.parametrize("threading", [[], ["-fopenmp"]], ids=["one-thread", "openmp"])
def test_a_c_program_makes_the_same_bytes(tmp_path, threading):
    program = tmp_path / "program"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-DLTX2C_WITHOUT_SKYLAKE", *threading]
    source = Path(__file__).parent / "c_api.c"
    subprocess.run([*COMPILER, *flags, f"-I{ltx2c.get_include()}", source, "-o", program], check=True)
    rng = np.random.default_rng(11)
    weight, a, b = (values(rng, shape, "trained", BF16) for shape in [(301, 777), (33, 777), (301, 33)])
    given = b"".join(bits(array).tobytes() for array in (weight, a, b))
    made = subprocess.run([program, "301", "777", "33", "0.75", "2"], input=given, capture_output=True, check=True)
    assert made.stdout == bits(reference.fuse_tensor(weight, [(a, b, 0.75)])).tobytes()


SWITCHES = ["LTX2C_SCALAR_LOOP", "LTX2C_DROPPED_THREAD", "LTX2C_COPIED_WEIGHTS"]


# Serial alone, without optimisation: it builds in no time. That the gate turns red is what ci/sabotage.py shows.
@pytest.mark.parametrize("switch", SWITCHES)
def test_sabotage_is_other_code_with_the_same_bytes(tmp_path, switch):
    leave_out = [f"-DLTX2C_WITHOUT_{name}" for name in ("HASWELL", "SKYLAKE", "GENOA", "NEON")]
    flags = ["-std=gnu11", "-ffp-contract=off", "-Wall", "-Werror", *leave_out, f"-I{ltx2c.get_include()}"]
    rng = np.random.default_rng(13)
    weight, a, b = (values(rng, shape, "trained", BF16) for shape in [(70, 600), (5, 600), (70, 5)])
    given = b"".join(bits(array).tobytes() for array in (weight, a, b))
    programs = {}
    for name, switches in {"sound": [], "sabotaged": [f"-DLTX2C_SABOTAGE={switch}"]}.items():
        program = tmp_path / name
        subprocess.run([*COMPILER, *flags, *switches, Path(__file__).parent / "c_api.c", "-o", program], check=True)
        made = subprocess.run([program, "70", "600", "5", "0.75", "2"], input=given, capture_output=True, check=True)
        assert made.stdout == bits(reference.fuse_tensor(weight, [(a, b, 0.75)])).tobytes()
        programs[name] = program.read_bytes()
    assert b"ltx2c_sabotage" in programs["sabotaged"] and b"ltx2c_sabotage" not in programs["sound"]


# Whatever is included: the C API, and what the extension is made of.
@pytest.mark.parametrize("header", ["ltx2c.h", "../kernels/driver.h", "../kernels/dispatch.h"])
def test_fast_math_is_refused(tmp_path, header):
    made = _compile(tmp_path, header, "-O2", "-ffast-math")
    assert made.returncode != 0 and b"fast-math" in made.stderr


@pytest.mark.parametrize("part", ["-ffinite-math-only", "-fassociative-math -fno-signed-zeros -fno-trapping-math"])
def test_parts_of_fast_math_are_refused(tmp_path, part):
    made = _compile(tmp_path, "ltx2c.h", "-O2", *part.split())
    assert made.returncode != 0 and b"fast-math" in made.stderr


# setuptools puts CFLAGS in front of setup.py's own flags, in the compiler's command and in the linker's.
def test_the_build_overrides_fast_math(tmp_path):
    assert _compile(tmp_path, "../kernels/driver.h", "-Ofast", "-ffast-math", *_setup_flags("COMPILE")).returncode == 0


def test_the_build_links_nothing_that_flushes_denormals(tmp_path):
    source, library = tmp_path / "empty.c", tmp_path / "empty.so"
    source.write_text("int nothing;\n")
    flags = ["-shared", "-fPIC", "-Ofast", "-ffast-math", source, "-o", library, *_setup_flags("LINK")]
    subprocess.run([*COMPILER, *flags], check=True)
    halve = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(float(sys.argv[2]) / 2)"
    made = subprocess.run([sys.executable, "-c", halve, library, "4e-320"], capture_output=True, text=True, check=True)
    assert float(made.stdout) == 2e-320


def _setup_flags(name):
    """A list of flags that setup.py assigns; importing it would build."""
    body = ast.parse((Path(__file__).parents[2] / "setup.py").read_text()).body
    assigned = (node for node in body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == name)


def _compile(folder, header, *flags):
    source = folder / "include.c"
    source.write_text(f'#define LTX2C_IMPLEMENTATION\n#include "{header}"\n')
    command = [*COMPILER, *flags, f"-I{ltx2c.get_include()}", "-fsyntax-only", source]
    return subprocess.run(command, capture_output=True)
