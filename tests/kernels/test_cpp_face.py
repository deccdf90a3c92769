"""The C API from C++: declarations and implementation under other people's flags, and a pool of their threads."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
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
from ltx2c.terms import FullTerm

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "cpp"
CC = shlex.split(sysconfig.get_config_var("CC") or "cc")
CXX = shutil.which(os.environ.get("CXX", "c++"))
# Without the AVX-512 kernels, which take long to compile; ci/cpp.sh gives CXXFLAGS that take them back, and others.
FLAGS = ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DLTX2C_WITHOUT_SKYLAKE"]
ADDED = shlex.split(os.environ.get("CXXFLAGS", ""))
F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
DTYPES = {BF16: 0, F32: 1, F16: 2}

needs_cxx = pytest.mark.skipif(CXX is None, reason="no C++ compiler here")


def _config(*options):
    command = [sys.executable, "-m", "ltx2c.config", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def implementation(tmp_path_factory):
    """The one unit with the implementation, as C++."""
    made = tmp_path_factory.mktemp("implementation") / "ltx2c.o"
    command = [CXX, "-std=c++17", *FLAGS, *ADDED, *_config("--cflags"), "-x", "c++"]
    subprocess.run([*command, "-c", EXAMPLES / "ltx2c.c", "-o", made], check=True)
    return made


@pytest.fixture(scope="module")
def pool(tmp_path_factory, implementation):
    """A program that fuses on std::threads: it includes declarations alone."""
    program = tmp_path_factory.mktemp("pool") / "pool"
    command = [CXX, "-std=c++17", *FLAGS, *ADDED, f"-I{EXAMPLES}", *_config("--cflags"), "-pthread"]
    subprocess.run([*command, HERE / "pool.cpp", implementation, "-o", program], check=True)
    return program


@needs_cxx
@pytest.mark.parametrize("threads", [1, 3])
def test_a_pool_of_threads_makes_the_reference_s_bytes(pool, threads):
    rng = np.random.default_rng(5)
    jobs = [
        (values(rng, (rows, 333), "trained", weight), _terms(rng, rows, 333, factors), arithmetic)
        for weight in DTYPES
        for factors in (["bf16"], ["bf16", "bf16", "bf16"], ["f32", "full", "f16"])
        for arithmetic in ("ltx", "f32")
        for rows in (70, 5)
    ]
    given = struct.pack("q", len(jobs)) + b"".join(_packed(*job) for job in jobs)
    made = subprocess.run([pool, str(threads)], input=given, capture_output=True, check=True).stdout
    expected = [bits(reference.fuse_tensor(w, terms, arithmetic=name)).tobytes() for w, terms, name in jobs]
    ends = np.cumsum([len(part) for part in expected])
    assert [made[end - len(part) : end] for part, end in zip(expected, ends, strict=True)] == expected
    assert len(made) == ends[-1]


@needs_cxx
def test_what_cannot_be_is_refused_with_its_code_and_nothing_written(tmp_path, implementation):
    program, caller = tmp_path / "refusals", tmp_path / "refusals.o"
    flags = [*FLAGS, *_config("--cflags")]
    subprocess.run([*CC, "-std=c11", *flags, "-c", HERE / "refusals.c", "-o", caller], check=True)
    subprocess.run([CXX, *ADDED, caller, implementation, "-o", program], check=True)
    made = subprocess.run([program], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "")


def test_the_implementation_under_strict_c_says_to_be_included_first(tmp_path):
    source = tmp_path / "late.c"
    source.write_text("#include <stdio.h>\n#define LTX2C_IMPLEMENTATION\n#include <ltx2c.h>\n")
    command = [*CC, "-std=c11", *_config("--cflags"), "-fsyntax-only", source]
    made = subprocess.run(command, capture_output=True, text=True)
    assert "__GLIBC__" not in _macros() or (made.returncode and "include it before any other" in made.stderr)


def test_every_place_that_states_the_version_states_the_same():
    header = re.search(r'^#define LTX2C_VERSION "(.*)"$', Path(ltx2c.get_include(), "ltx2c.h").read_text(), re.M)
    package = re.search(r"^Version: (.*)$", Path(*_config("--pkgconfigdir"), "ltx2c.pc").read_text(), re.M)
    assert [header.group(1), package.group(1), *_config("--version")] == [ltx2c.__version__] * 3


def test_the_folders_that_are_told_hold_what_they_are_told_for():
    include, cmake = _config("--includedir", "--cmakedir")
    assert include == ltx2c.get_include()
    assert [path.name for path in Path(include).iterdir()] == ["ltx2c.h"]  # <threads.h> must stay the system's
    assert sorted(path.name for path in Path(cmake).iterdir()) == [
        "ltx2c-config-version.cmake",
        "ltx2c-config.cmake",
    ]


def test_config_asked_for_nothing_is_a_usage_error():
    made = subprocess.run([sys.executable, "-m", "ltx2c.config"], capture_output=True, text=True)
    assert made.returncode == 2 and "--cflags" in made.stderr


def _macros():
    command = [*CC, "-x", "c", "-dM", "-E", "-include", "stdio.h", "/dev/null"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _terms(rng, rows, columns, kinds):
    terms = []
    for number, kind in enumerate(kinds):
        strength = (0.75, -0.3, 1.1)[number]
        if kind == "full":
            terms.append(FullTerm(values(rng, (rows, columns), "trained", F32), strength))
            continue
        dtype, rank = {"bf16": BF16, "f32": F32, "f16": F16}[kind], 16 + number
        a, b = (values(rng, shape, "trained", dtype) for shape in [(rank, columns), (rows, rank)])
        terms.append((a, b, strength))
    return terms


def _packed(weight, terms, arithmetic):
    head = (*weight.shape, DTYPES[weight.dtype], ("ltx", "f32").index(arithmetic), len(terms))
    parts = [struct.pack("5q", *head), bits(weight).tobytes()]
    for term in terms:
        full = isinstance(term, FullTerm)
        matrices, strength = ([term.d], term.strength) if full else (term[:2], term[2])
        rank = 0 if full else len(term[0])
        parts.append(struct.pack("qqfi", DTYPES[matrices[0].dtype], rank, strength, 0))
        parts.extend(bits(matrix).tobytes() for matrix in matrices)
    return b"".join(parts)
