"""The floor: how the installed ltx2c stands to the loop it replaces and to what the machine can do at most.

Run by gate.py in a process of its own, with the ltx2c to measure on its path. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

import ltx2c

OUT, RANK, IN = 4096, 450, 4096
SHAPES = ((OUT, RANK, IN), (OUT, 128, IN), (OUT, 32, IN), (OUT, 16, IN), (32, RANK, IN))
SCALAR_ROWS = 64  # the loop takes a quarter of a second for these, and half a minute for all
STRENGTH = 0.8
SECONDS = 0.8  # of fusing each, in turn with the peak

FLAGS = ["-O2", "-fno-tree-vectorize", "-ffp-contract=off", "-shared", "-fPIC"]


def load() -> ctypes.CDLL:
    """floor.c, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "floor.so")
        source = Path(__file__).with_name("floor.c")
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, "-o", str(library), str(source)], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.scalar_fuse.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_float] + [ctypes.c_long] * 3
    loaded.scalar_fuse.restype = None
    loaded.peak.restype = ctypes.c_double
    return loaded


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_rate(library: ctypes.CDLL, cores: int) -> tuple[float, str]:
    """Operations per second on all cores at once, and of which instruction."""
    name = ctypes.c_char_p()
    operations = [0.0] * cores

    def one(core: int) -> None:
        operations[core] = library.peak(ctypes.byref(name))

    threads = [threading.Thread(target=one, args=(core,)) for core in range(cores)]

    def together() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    took = seconds(together)
    return sum(operations) / took, (name.value or b"").decode()


def arrays(out: int, rank: int, into: int) -> list[np.ndarray]:
    """W, A and B as trained ones are."""
    draw = np.random.default_rng(0)
    return [
        (draw.standard_normal(shape, np.float32) * np.float32(sd)).astype(ml_dtypes.bfloat16)
        for shape, sd in (((out, into), 0.02), ((rank, into), 0.02), ((out, rank), 0.002))
    ]


def rates(library: ctypes.CDLL, shape: tuple[int, int, int], cores: int) -> tuple[float, float, str]:
    """Operations per second: fused at best, and the best peak between these runs, with its instruction."""
    weight, a, b = arrays(*shape)
    fused = weight.copy()
    times: list[float] = []
    peaks: list[float] = []
    while sum(times) < SECONDS:
        if sum(times) >= SECONDS * len(peaks) / 8:
            rate, instruction = peak_rate(library, cores)
            peaks.append(rate)
        times.append(seconds(lambda: ltx2c.fuse_tensor(weight, [(a, b, STRENGTH)], out=fused)))
    return 2 * math.prod(shape) / min(times), max(peaks), instruction


def main() -> None:
    library = load()
    cores = len(os.sched_getaffinity(0))  # not what ltx2c resolves: a thread it forgets must show
    weight, a, b = arrays(OUT, RANK, IN)
    fused = ltx2c.fuse_tensor(weight[:SCALAR_ROWS], [(a, b[:SCALAR_ROWS], STRENGTH)])
    by_scalar = weight[:SCALAR_ROWS].copy()
    scalar_arguments = (by_scalar.ctypes.data, a.ctypes.data, b.ctypes.data, STRENGTH, SCALAR_ROWS, RANK, IN)
    scalar_rate = 2 * SCALAR_ROWS * RANK * IN / seconds(lambda: library.scalar_fuse(*scalar_arguments))
    same = bool((by_scalar.view(np.uint16) == fused.view(np.uint16)).all())

    measured = {"x".join(map(str, shape)): rates(library, shape, cores) for shape in SHAPES}
    gflops = {name: rate / 1e9 for name, (rate, _, _) in measured.items()}
    gflops["scalar"] = scalar_rate / 1e9
    gflops["peak"] = max(peak for _, peak, _ in measured.values()) / 1e9
    instruction = next(iter(measured.values()))[2]
    print(json.dumps({"gflops": gflops, "instruction": instruction, "cores": cores, "same_bytes": same}))


if __name__ == "__main__":
    main()
