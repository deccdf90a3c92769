"""The model's own shapes in whole: every kernel the same bytes, and sampled rows as the reference has them.

Takes about a minute on two cores, most of it in the serial kernel and the reference.
"""

from __future__ import annotations

import os
import sys

import ml_dtypes
import numpy as np

from ltx2c import kernels, reference
from ltx2c.fusion import Job, fuse_jobs

SHAPES = ((4096, 450, 4096), (16384, 450, 4096))
STRENGTH = 0.8
SAMPLED_ROWS = 24


def trained_like(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return (rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)


def check(out: int, rank: int, into: int) -> bool:
    rng = np.random.default_rng(out)
    weight, a, b = (trained_like(rng, shape) for shape in ((out, into), (rank, into), (out, rank)))
    rows = np.sort(rng.choice(out, SAMPLED_ROWS, replace=False))
    expected = reference.fuse_tensor(weight[rows], [(a, b[rows], STRENGTH)]).view(np.uint16)
    right = True
    for name in kernels.available():
        os.environ["LTX2C_KERNEL"] = name
        fused = np.empty_like(weight)
        fuse_jobs([Job(weight, [(a, b, STRENGTH)], fused)])
        bits = fused.view(np.uint16)
        if name == "serial":
            first = bits
        same = np.array_equal(bits[rows], expected) and np.array_equal(bits, first)
        right = right and same
        print(f"{out} x {rank} x {into} {name}: {'same bytes' if same else 'DIFFERS'}", flush=True)
    return right


if __name__ == "__main__":
    sys.exit(0 if all([check(*shape) for shape in SHAPES]) else 1)
