"""Small safetensors files for tests, with any dtype by name, written without the code under test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rawfiles import write_tensors

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.uint8): "U8",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
}
_BITS = {
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "U8": 8,
    "I8": 8,
    "BOOL": 8,
    "F64": 64,
    "I64": 64,
    "F32": 32,
    "BF16": 16,
    "F16": 16,
}

Spec = tuple[str, list[int]]


def write(path: Path, tensors: Mapping[str, np.ndarray | Spec], metadata: Mapping[str, str] | None = None) -> Path:
    """Write a safetensors file of arrays, or of zeros where a value is ``(dtype, shape)``."""
    write_tensors(path, {key: _stored(value) for key, value in tensors.items()}, metadata)
    return path


def _stored(value: np.ndarray | Spec) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(value, np.ndarray):
        return _NAMES[value.dtype], value.shape, value.tobytes()
    dtype, shape = value
    return dtype, tuple(shape), bytes(math.prod(shape) * _BITS[dtype] // 8)


def weight(*shape: int, seed: int = 0, dtype: Any = BFLOAT16) -> np.ndarray:
    """Trained-like values."""
    return (np.random.default_rng(seed).standard_normal(shape) * 0.05).astype(dtype)


def pair(module: str, out: int, rank: int, into: int, *, seed: int = 0, dtype: Any = BFLOAT16) -> dict[str, np.ndarray]:
    """The two factors of ``module``, under the names that Lightricks' trainer gives them."""
    return {
        f"{module}.lora_A.weight": weight(rank, into, seed=2 * seed, dtype=dtype),
        f"{module}.lora_B.weight": weight(out, rank, seed=2 * seed + 1, dtype=dtype),
    }
