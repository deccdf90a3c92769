"""What may be a strength, wherever one is given."""

from __future__ import annotations

import ctypes
import math
import platform
import subprocess

import ml_dtypes
import numpy as np
import pytest

import ltx2c
from ltx2c import reference
from ltx2c.errors import RefusedError
from ltx2c.kernels import codecs
from ltx2c.strength import check_strength


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_real_numbers_of_python_and_numpy(kind):
    strength = check_strength(kind(-0.5), "term 0")
    assert strength == -0.5 and type(strength) is float


def test_the_largest_strength_is_the_last_that_rounds_to_a_finite_float32():
    beyond = float.fromhex("0x1.ffffffp127")
    assert check_strength(np.nextafter(beyond, 0), "term 0") == np.nextafter(beyond, 0)
    with pytest.raises(RefusedError):
        check_strength(beyond, "term 0")


@pytest.mark.parametrize("kind", [int, np.int8, np.uint64])
def test_whole_numbers(kind):
    assert check_strength(kind(2), "term 0") == 2.0


@pytest.mark.parametrize(
    "strength", ["0.5", None, True, np.True_, 1j, [1.0], math.nan, -math.inf, 3.5e38, 10**400, -(10**400)]
)
def test_anything_else_is_refused(strength):
    with pytest.raises(RefusedError, match=r"^term 0: strength ") as refusal:
        check_strength(strength, "term 0")
    assert refusal.value.code == "bad-strength"


# ---- The caller's floating-point environment ------------------------------------------------------------------------

SETTING = """
#include <fenv.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
void flush(void) { _mm_setcsr(_mm_getcsr() | 0x8040); } /* denormals to zero, in and out */
#else
void flush(void) { __asm__ volatile("msr fpcr, %0" : : "r"(1ul << 24)); }
#endif
void upward(void) { fesetround(FE_UPWARD); }
void towards_zero(void) { fesetround(FE_TOWARDZERO); }
void as_before(void) { fesetenv(FE_DFL_ENV); }
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no way to set the floating-point environment of {platform.machine()} here")
    folder = tmp_path_factory.mktemp("environments")
    (folder / "setting.c").write_text(SETTING)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "setting.so", folder / "setting.c", "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "setting.so"))


@pytest.mark.parametrize("setting", ["flush", "upward", "towards_zero"])
@pytest.mark.parametrize("strength", [1 + 2**-8 + 2**-30, 1 + 2**-8 + 2**-23 - 2**-30, 1e-40])
def test_the_strength_is_rounded_to_nearest_whatever_the_caller_rounds_to(environments, setting, strength):
    weight = np.zeros((1, 1), np.float32)
    a = np.full((1, 1), 2.0**60, ml_dtypes.bfloat16)
    b = np.full((1, 1), 2.0**60, ml_dtypes.bfloat16)
    terms = [(a, b, 1.0), (a, b, strength)]  # the second scales the product: in float32, near a tie of bfloat16
    expected = reference.fuse_tensor(weight, terms)
    getattr(environments, setting)()
    try:
        fused = ltx2c.fuse_tensor(weight, terms, threads=1)
    finally:
        environments.as_before()
    assert fused.tobytes() == expected.tobytes()


@pytest.mark.parametrize("setting", ["upward", "towards_zero"])
def test_a_whole_tensors_scale_is_rounded_to_nearest_too(environments, setting):
    values = np.linspace(-1, 3, 64, dtype=np.float32).reshape(4, 16)

    def encoded():
        codes, scales = np.zeros((4, 16), np.uint8), np.ones((1, 1), np.float32)
        largest = codecs.largest_magnitude(values.view(np.uint8), True, 1)
        codecs.encode_fp8(values.view(np.uint8), codes, True, 0, scales, (4, 16), largest, 1)
        packed, blocks = np.zeros((4, 8), np.uint8), np.zeros((4, 1), np.uint8)
        scale, *_ = codecs.encode_nvfp4(values.view(np.uint8), packed, True, blocks, 1.0, False, 0, largest, 1)
        return codes.tobytes(), scales.tobytes(), packed.tobytes(), blocks.tobytes(), scale

    expected = encoded()
    getattr(environments, setting)()
    try:
        under = encoded()
    finally:
        environments.as_before()
    assert under == expected
