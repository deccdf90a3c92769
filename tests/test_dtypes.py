from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from ltx2c.dtypes import DTYPES


def test_the_widths_are_whole_bytes_exactly_where_numpy_has_a_dtype() -> None:
    for dtype in DTYPES.values():
        assert (dtype.numpy is None) == (dtype.bits % 8 != 0)
        assert dtype.numpy is None or dtype.bits == 8 * dtype.numpy.itemsize


@pytest.mark.parametrize(
    "name", ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"]
)
def test_the_safetensors_library_names_the_array_the_same(name: str) -> None:
    assert f'"dtype":"{name}"'.encode() in save({"t": np.zeros(3, DTYPES[name].numpy)})
