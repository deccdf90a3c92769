"""What people use in place of ltx2c, on the same weights: how fast it is, and beside ltx2c in one process, in turn.

bf16 is upstream's own way, ``W.add_(torch.matmul(B * s, A))``; f32 goes through a matrix product of floats, which
takes no instruction for bf16: ``W.add_(((B * s).float() @ A.float()).bfloat16())``.
Neither gives the contract's bytes.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .kernels import CASES, Case
from .measuring import best_seconds, in_turn, trained_like

FLOOR = Path(__file__).parents[2] / "ci" / "floor.c"
SCALAR_ROWS = 64

SHAPES = {
    "32x16x32": Case(32, 16, 32),
    "32x32x4096": CASES["32x32x4096"],
    "32x450x4096": Case(32, 450, 4096),
    **{name: CASES[name] for name in ("4096x16x4096", "4096x32x4096", "4096x128x4096", "4096x450x4096")},
}

# torch multiplies bf16 matrices a hundred times slower where the CPU has no instruction for it. A part of the rows then
# has to tell for all: they cost the same.
FEW_ROWS = 32
TOO_LONG = 0.5  # seconds for these rows


class Run(NamedTuple):
    """What does the work, and the share of the case's rows that it does it for."""

    call: Callable[[], object]
    share: float = 1.0


def alternating() -> Callable[[], float]:
    """Strengths that do not carry the weight away."""
    runs = iter(range(1 << 60))
    return lambda: 0.8 if next(runs) % 2 else -0.8


def ours(case: Case) -> Run:
    from ltx2c import fuse_tensor

    weight, a, b = arrays(case)
    strength = alternating()
    return Run(lambda: fuse_tensor(weight, [(a, b, strength())], out=weight))


def rival(name: str, case: Case) -> Run:
    """Raises NotImplementedError where there is no torch."""
    try:
        import torch
    except ImportError as error:
        raise NotImplementedError from error
    from torch import Tensor

    def f32(weight: Tensor, a: Tensor, b: Tensor, strength: float) -> object:
        return weight.add_(((b * strength).float() @ a.float()).bfloat16())

    def bf16(weight: Tensor, a: Tensor, b: Tensor, strength: float) -> object:
        return weight.add_(torch.matmul(b * strength, a))

    way = {"f32": f32, "bf16": bf16}[name]
    weight, a, b = (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in arrays(case))
    strength = alternating()
    few = slice(FEW_ROWS)
    part = Run(lambda: way(weight[few], a, b[few], strength()), min(1.0, FEW_ROWS / case.out))
    part.call()  # the first time loads libraries
    (took,) = in_turn({name: part.call}, rounds=1).values()
    return part if took > TOO_LONG * FEW_ROWS / case.out else Run(lambda: way(weight, a, b, strength()))


def scalar_loop(case: Case) -> Run:
    """The loop that ltx2c replaces."""
    weight, a, b = arrays(case)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "floor.so")
        flags = ["-O2", "-fno-tree-vectorize", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", str(library), str(FLOOR)], check=True)
        fuse = ctypes.CDLL(str(library)).scalar_fuse
    fuse.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_float] + [ctypes.c_long] * 3
    fuse.restype = None
    given = (0.8, SCALAR_ROWS, case.rank, case.into)
    return Run(lambda: fuse(weight.ctypes.data, a.ctypes.data, b.ctypes.data, *given), SCALAR_ROWS / case.out)


def arrays(case: Case) -> tuple[Any, Any, Any]:
    shapes = ((case.out, case.into), 0.02), ((case.rank, case.into), 0.02), ((case.out, case.rank), 0.002)
    weight, a, b = (trained_like(shape, sd) for shape, sd in shapes)
    return weight, a, b


class Rates:
    """Of each, for the lines in the README's picture."""

    params = (["scalar loop", "torch", "torch in f32"],)
    param_names = ("rival",)
    timeout = 120

    def setup(self, name: str) -> None:
        self.case = CASES["4096x450x4096"]
        ways = {"torch": "bf16", "torch in f32": "f32"}
        self.run = rival(ways[name], self.case) if name in ways else scalar_loop(self.case)

    def track_gflops(self, name: str) -> float:
        return self.run.share * self.case.flops / best_seconds(self.run.call, at_least=2.0) / 1e9

    track_gflops.unit = "GFLOP/s"  # type: ignore[attr-defined]


class Beside:
    """By shape and rank, on as many threads as each takes by itself."""

    params = (list(SHAPES), ["bf16", "f32"])
    param_names = ("shape", "rival")
    timeout = 120

    def setup(self, name: str, way: str) -> None:
        case = SHAPES[name]
        self.runs = {"ours": ours(case), way: rival(way, case)}

    def track_times_as_fast(self, name: str, way: str) -> float:
        seconds = in_turn({who: run.call for who, run in self.runs.items()})
        return seconds[way] / self.runs[way].share / seconds["ours"]

    track_times_as_fast.unit = "times"  # type: ignore[attr-defined]
