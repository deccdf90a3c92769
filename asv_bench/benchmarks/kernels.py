"""The arithmetic alone: one weight in memory, fused in place on all cores."""

from __future__ import annotations

import os
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .measuring import best_seconds, trained_like


class Case(NamedTuple):
    """``W [out, in]`` and adapters of one rank."""

    out: int
    rank: int
    into: int
    adapters: int = 1
    dtype: npt.DTypeLike = ml_dtypes.bfloat16
    factors: npt.DTypeLike = ml_dtypes.bfloat16
    arithmetic: str = "ltx"

    @property
    def flops(self) -> int:
        """Two per multiply-add."""
        return 2 * self.out * self.rank * self.into * self.adapters

    @property
    def weight_bytes(self) -> int:
        """Read once and written once."""
        return 2 * self.out * self.into * np.dtype(self.dtype).itemsize


CASES = {
    "4096x1x4096": Case(4096, 1, 4096),
    "4096x16x4096": Case(4096, 16, 4096),
    "4096x32x4096": Case(4096, 32, 4096),
    "4096x128x4096": Case(4096, 128, 4096),
    "4096x450x4096": Case(4096, 450, 4096),
    "16384x450x4096": Case(16384, 450, 4096),
    "32x32x4096": Case(32, 32, 4096),
    "4096x128x4096, 3 adapters": Case(4096, 128, 4096, adapters=3),
    "4096x128x4096, F32 weight": Case(4096, 128, 4096, dtype=np.float32),
    "4096x450x4096, f32": Case(4096, 450, 4096, arithmetic="f32"),
    "4096x450x4096, f32, F32 factors": Case(4096, 450, 4096, factors=np.float32, arithmetic="f32"),
}


class _Fuse:
    """Fuses a case in place; a subclass says which, and with which kernel."""

    rounds = 1
    repeat = (3, 15, 1.0)
    warmup_time = 0.1
    timeout = 120

    def prepare(self, case: Case) -> None:
        try:
            from ltx2c import fuse_tensor
        except ImportError as error:
            raise NotImplementedError from error
        self.case = case
        weight = trained_like((case.out, case.into), 0.02, case.dtype)
        a = trained_like((case.rank, case.into), 0.02, case.factors)
        b = trained_like((case.out, case.rank), 0.002, case.factors)
        options = {"arithmetic": case.arithmetic} if case.arithmetic != "ltx" else {}  # older commits know none
        # Signs alternate so that fusing again and again does not carry the weight away.
        terms = [[(a, b, sign * 0.8)] * case.adapters for sign in (1, -1)]
        runs = iter(range(1 << 60))
        self.fuse = lambda: fuse_tensor(weight, terms[next(runs) % 2], out=weight, **options)
        try:
            self.fuse()
        except TypeError as error:  # a commit that has one arithmetic
            raise NotImplementedError from error


class Shapes(_Fuse):
    """By shape and rank, with the fastest kernel of the machine."""

    params = (list(CASES),)
    param_names = ("shape",)

    def setup(self, name: str) -> None:
        self.prepare(CASES[name])

    def time_fuse(self, name: str) -> None:
        self.fuse()

    def track_gflops(self, name: str) -> float:
        return self.case.flops / best_seconds(self.fuse) / 1e9

    track_gflops.unit = "GFLOP/s"


class LowRank(_Fuse):
    """Where memory is the limit and not arithmetic."""

    params = (["4096x1x4096"],)
    param_names = ("shape",)

    def setup(self, name: str) -> None:
        self.prepare(CASES[name])

    def track_bandwidth(self, name: str) -> float:
        return self.case.weight_bytes / best_seconds(self.fuse) / 1e9

    track_bandwidth.unit = "GB/s"


class InstructionSets(_Fuse):
    """Every kernel that the machine runs, at the rank of the real adapter; few rows, for the serial one takes long."""

    params = (["serial", "haswell", "skylake", "genoa", "neon"],)
    param_names = ("kernel",)
    repeat = (1, 8, 1.0)

    def setup(self, kernel: str) -> None:
        try:
            from ltx2c import kernels
        except ImportError as error:
            raise NotImplementedError from error
        if kernel not in kernels.available():
            raise NotImplementedError
        os.environ["LTX2C_KERNEL"] = kernel
        self.prepare(Case(1024, 450, 4096))

    def teardown(self, kernel: str) -> None:
        os.environ.pop("LTX2C_KERNEL", None)

    def time_fuse(self, kernel: str) -> None:
        self.fuse()

    def track_gflops(self, kernel: str) -> float:
        return self.case.flops / best_seconds(self.fuse) / 1e9

    track_gflops.unit = "GFLOP/s"


class OneBlock:
    """The 34 modules of one LTX-2.5 block with the real adapter's ranks, in one call."""

    rounds = 1
    repeat = (3, 10, 2.0)
    number = 1

    def setup(self) -> None:
        try:
            from ltx2c import fuse_tensors, inventory
        except ImportError as error:
            raise NotImplementedError from error
        factors = [shape for key, _, shape in inventory.adapter_tensors(1) if ".transformer_blocks.0." in key]
        shapes = list(zip(factors[0::2], factors[1::2], strict=True))
        self.flops = sum(2 * out * rank * into for (rank, into), (out, _) in shapes)
        jobs = []
        for a_shape, b_shape in shapes:
            weight = trained_like((b_shape[0], a_shape[1]), 0.02)
            jobs.append((weight, [(trained_like(a_shape, 0.02), trained_like(b_shape, 0.002), 0.8)], weight))
        self.fuse = lambda: fuse_tensors(jobs)
        self.fuse()

    def time_fuse(self) -> None:
        self.fuse()

    def track_gflops(self) -> float:
        return self.flops / best_seconds(self.fuse) / 1e9

    track_gflops.unit = "GFLOP/s"


class Overhead(_Fuse):
    """What one call costs beyond the arithmetic: weights that take less time than waking a thread."""

    params = (["8x1x8", "32x16x32"],)
    param_names = ("shape",)
    repeat = (3, 30, 1.0)

    def setup(self, name: str) -> None:
        out, rank, into = map(int, name.split("x"))
        self.prepare(Case(out, rank, into))

    def time_call(self, name: str) -> None:
        self.fuse()
