"""The dtypes of the safetensors format: their names in a header, their width, and NumPy's dtype where it has one.

``FUSIBLE`` are those that arrays are fused in; every list of them elsewhere is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type as a safetensors header names it.

    Attributes:
        name: the header's spelling, such as ``"BF16"``.
        bits: width of one element. F4 and F6 kinds pack elements across bytes.
        numpy: the dtype of arrays of such elements; None where elements are not whole bytes.
    """

    name: str
    bits: int
    numpy: np.dtype[Any] | None


def _table() -> dict[str, DType]:
    whole_bytes: dict[str, Any] = {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "I16": "<i2",
        "U16": "<u2",
        "F16": "<f2",
        "BF16": ml_dtypes.bfloat16,
        "I32": "<i4",
        "U32": "<u4",
        "F32": "<f4",
        "C64": "<c8",
        "F64": "<f8",
        "I64": "<i8",
        "U64": "<u8",
    }
    packed = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
    table = {name: DType(name, bits, None) for name, bits in packed.items()}
    for name, kind in whole_bytes.items():
        dtype = np.dtype(kind)
        table[name] = DType(name, 8 * dtype.itemsize, dtype)
    return table


DTYPES: Mapping[str, DType] = MappingProxyType(_table())


@dataclass(frozen=True)
class FusibleDType(DType):
    """A dtype that weights, factors and differences are fused in.

    Attributes:
        code: the kernels' number for it (core.h).
        nan: the bits of the quiet NaN that a fused weight stores: sign clear, top bit of the mantissa set.
    """

    numpy: np.dtype[Any]
    code: int
    nan: int


def _fusible(name: str, code: int, nan: int) -> FusibleDType:
    dtype = DTYPES[name]
    assert dtype.numpy is not None
    return FusibleDType(name, dtype.bits, dtype.numpy, code, nan)


FUSIBLE: Mapping[str, FusibleDType] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (_fusible("BF16", 0, 0x7FC0), _fusible("F32", 1, 0x7FC00000), _fusible("F16", 2, 0x7E00))
    }
)
