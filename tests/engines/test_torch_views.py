"""Arrays of every dtype as torch tensors over the same memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ltx2c.dtypes import DTYPES
from ltx2c.engines.torch_views import torch_view

WHOLE_BYTES = {name: dtype.numpy for name, dtype in DTYPES.items() if dtype.numpy is not None}


@pytest.mark.parametrize("name", WHOLE_BYTES)
def test_every_dtype_of_whole_bytes(name: str) -> None:
    array = np.array([0, 1, 1]).astype(WHOLE_BYTES[name])
    tensor = torch_view(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.dtype.itemsize == array.itemsize
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert tensor.view(torch.uint8).numpy().tobytes() == array.tobytes()
