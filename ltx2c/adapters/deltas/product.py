"""Products of factors in float32, for kinds of deltas that are computed before they are fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.arithmetic import F32
from ltx2c.fusion import Job, fuse_jobs

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]


def product(b: Array, a: Array, threads: int | None) -> Float32Array:
    """``b @ a`` by the ``f32`` arithmetic: one accumulator per element, k in order, a fused multiply-add a step."""
    out = np.zeros((b.shape[0], a.shape[1]), np.float32)
    if out.size and a.shape[0]:
        fuse_jobs([Job(out, [(a, b, 1.0)], out, F32)], threads=threads)
    return out


def folded(core: Array, a: Array, threads: int | None) -> Float32Array:
    """A Tucker core with its input side folded in: ``[r, in * k]``, the sum over j of ``core[:, j, k] a[j, :]``.

    Args:
        core: ``[r, j, ...]``, the trailing extents being the convolution's kernel.
        a: ``[j, in]``.
    """
    r, j = core.shape[:2]
    by_place = np.ascontiguousarray(core.reshape(r, j, -1).transpose(0, 2, 1))  # [r, k, j]
    summed = product(by_place.reshape(-1, j), a, threads).reshape(r, -1, a.shape[1])
    return np.ascontiguousarray(summed.transpose(0, 2, 1)).reshape(r, -1)
