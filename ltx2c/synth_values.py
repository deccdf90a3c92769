"""Values like trained ones, as many as a tensor takes, by a seed and its key: the same on any machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c import layouts
from ltx2c.inventory import TensorSpec
from ltx2c.layouts import StoredWeight
from ltx2c.reference import BFLOAT16


class _Kind(NamedTuple):
    """How the values of some tensors are distributed: a normal of this mean and standard deviation."""

    mean: float
    sd: float


# By what the key holds, first match. The delta, A times B over rank 450, comes to some 4 % of the weight.
_KINDS = (
    (".lora_A.", _Kind(0.0, 0.02)),
    (".lora_B.", _Kind(0.0, 0.002)),
    ("_norm.", _Kind(1.0, 0.1)),
    ("scale_shift_table", _Kind(0.0, 0.3)),
    ("", _Kind(0.0, 0.02)),
)

_NUMPY = {"BF16": BFLOAT16, "F32": np.dtype("<f4")}

# A prime just under 2^23, so that rows of a tensor larger than the pool do not repeat each other.
_POOL = 8_388_593


class Values:
    """Of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._normal = _draw(seed)
        self._pools: dict[tuple[_Kind, str], memoryview] = {}

    def of(self, tensor: TensorSpec) -> Iterator[memoryview]:
        """The tensor's bytes, in pieces of at most the pool's size."""
        pool = self._pool(_kind(tensor.key), tensor.dtype)
        left = math.prod(tensor.shape) * _NUMPY[tensor.dtype].itemsize
        start = self._start(tensor.key) * _NUMPY[tensor.dtype].itemsize
        while left:
            piece = pool[start : start + left]
            left -= len(piece)
            start = 0
            yield piece

    def quantised(self, weight: StoredWeight) -> Iterator[memoryview]:
        """What stores a weight's bfloat16 values: the bytes of its codes, then of each companion."""
        given = b"".join(self.of(TensorSpec(weight.key, "BF16", weight.shape)))
        codes, companions = layouts.new_arrays(weight, weight.shape[0])
        values = np.frombuffer(given, BFLOAT16).reshape(weight.shape)
        weight.layout.encode(values, codes, companions, slice(0, len(values)), 1)
        for array in (codes, *companions.values()):
            yield array.reshape(-1).view(np.uint8).data

    def _start(self, key: str) -> int:
        digest = hashlib.sha256(f"{self._seed} {key}".encode()).digest()
        return int.from_bytes(digest[:8], "little") % _POOL

    def _pool(self, kind: _Kind, dtype: str) -> memoryview:
        if (kind, dtype) not in self._pools:
            values = (np.float32(kind.mean) + np.float32(kind.sd) * self._normal).astype(_NUMPY[dtype])
            self._pools[kind, dtype] = values.view(np.uint8).data
        return self._pools[kind, dtype]


def _kind(key: str) -> _Kind:
    return next(kind for part, kind in _KINDS if part in key)


def _draw(seed: int) -> npt.NDArray[np.float32]:
    """A pool of standard normals, each the sum of twelve 16-bit uniforms: integers, so exact on every machine."""
    raw = np.random.PCG64(seed)
    total = np.zeros(_POOL, np.int32)
    for _ in range(12):
        total += raw.random_raw(_POOL // 4 + 1).astype("<u8").view("<u2")[:_POOL]
    return ((total - 6 * 65535) / np.float32(65536)).astype(np.float32)
