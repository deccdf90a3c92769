"""What may be a strength, wherever one is given."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ltx2c.errors import RefusedError
from ltx2c.strength import check_strength


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_real_numbers_of_python_and_numpy(kind):
    strength = check_strength(kind(-0.5), "term 0")
    assert strength == -0.5 and type(strength) is float


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
