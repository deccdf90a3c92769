"""NumPy memory as torch tensors. torch is imported when the first is asked for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

# Dtypes that torch has and NumPy itself has not -> torch's name.
_TORCH_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(ml_dtypes.float8_e4m3fn): "float8_e4m3fn",
    np.dtype(ml_dtypes.float8_e5m2): "float8_e5m2",
    np.dtype(ml_dtypes.float8_e8m0fnu): "float8_e8m0fnu",
    np.dtype(ml_dtypes.float8_e4m3fnuz): "float8_e4m3fnuz",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "float8_e5m2fnuz",
}


def torch_view(array: npt.NDArray[Any]) -> Any:
    """A CPU torch tensor over ``array``'s memory."""
    import torch

    if array.dtype not in _TORCH_NAMES:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
    return bits.view(getattr(torch, _TORCH_NAMES[array.dtype]))
