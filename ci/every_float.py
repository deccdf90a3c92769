"""All 2^32 float32 values to both formats of FP8, beside ml_dtypes where it agrees with the contract.

It does not where e4m3fn saturates (ml_dtypes makes NaN of what is beyond 448 and its half step) and in what NaN looks
like. Takes about a minute on two cores.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

from ltx2c.kernels import codecs

CHUNK = 1 << 24
FORMATS = {"e4m3fn": (0, ml_dtypes.float8_e4m3fn), "e5m2": (1, ml_dtypes.float8_e5m2)}


def expected(values: np.ndarray, name: str) -> np.ndarray:
    kept = np.clip(values, -448, 448) if name == "e4m3fn" else values
    with np.errstate(all="ignore"):
        codes: np.ndarray = kept.astype(FORMATS[name][1]).view(np.uint8)
    codes[np.isnan(values)] = 0x7F if name == "e4m3fn" else 0x7E
    return codes


def differing(begin: int) -> dict[str, int]:
    """How many of the values whose bits are ``begin`` and on get another code, by format."""
    values = np.arange(begin, begin + CHUNK, dtype=np.uint32).view(np.float32).reshape(1, CHUNK)
    found = {}
    for name, (kind, _) in FORMATS.items():
        codes = np.zeros(values.shape, np.uint8)
        codecs.encode_fp8(values.view(np.uint8), codes, True, kind, None, (1, 1), 0, 1)
        found[name] = int(np.count_nonzero(codes != expected(values, name)))
    return found


if __name__ == "__main__":
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(differing, range(0, 1 << 32, CHUNK)))
    for name in FORMATS:
        print(f"{name}: {sum(part[name] for part in parts)} of {1 << 32} differ")
    sys.exit(any(sum(part.values()) for part in parts))
