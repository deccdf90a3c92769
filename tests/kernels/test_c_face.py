"""The C face: a program outside Python includes the installed headers and makes the same bytes."""

from __future__ import annotations

import ast
import shlex
import subprocess
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
    program = tmp_path / "face"
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-Werror", *threading]
    source = Path(__file__).parent / "face.c"
    subprocess.run([*COMPILER, *flags, f"-I{ltx2c.get_include()}", source, "-o", program], check=True)
    rng = np.random.default_rng(11)
    weight, a, b = (values(rng, shape, "trained", BF16) for shape in [(301, 777), (33, 777), (301, 33)])
    given = b"".join(bits(array).tobytes() for array in (weight, a, b))
    made = subprocess.run([program, "301", "777", "33", "0.75", "2"], input=given, capture_output=True, check=True)
    assert made.stdout == bits(reference.fuse_tensor(weight, [(a, b, 0.75)])).tobytes()


# Whatever is included: the C face, and what the extension is made of.
@pytest.mark.parametrize("header", ["ltx2c.h", "driver.h", "dispatch.h"])
def test_fast_math_is_refused(tmp_path, header):
    made = _compile(tmp_path, header, "-O2", "-ffast-math")
    assert made.returncode != 0 and b"fast-math" in made.stderr


def test_the_build_overrides_fast_math(tmp_path):
    # setuptools puts CFLAGS in front of these.
    setup = ast.parse((Path(__file__).parents[2] / "setup.py").read_text())
    flags = next(
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILE"
    )
    assert _compile(tmp_path, "driver.h", "-ffast-math", *flags).returncode == 0


def _compile(folder, header, *flags):
    source = folder / "include.c"
    source.write_text(f'#include "{header}"\n')
    command = [*COMPILER, *flags, f"-I{ltx2c.get_include()}", "-fsyntax-only", source]
    return subprocess.run(command, capture_output=True)
