"""Two OpenMP runtimes in one process, a wheel's own and torch's, loaded and used in any order: as many threads as asked
and the same bytes, in a forked child too (not torch's: it hangs there, with or without us). Run by ci/wheels.sh.

    python ci/two_runtimes.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

ORDERS = ("fuse multiply", "fuse torch multiply", "torch fuse multiply torch", "fuse multiply torch fuse")
ASKED, TORCHS = 4, 2
RNG = np.random.default_rng(0)
SHAPES = (1024, 1024), (64, 1024), (1024, 64)
WEIGHT, A, B = (RNG.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for shape in SHAPES)
VALUES = RNG.standard_normal(1 << 20, np.float32)


def fuse() -> bytes:
    """By the kernels."""
    import ltx2c

    return bytes(ltx2c.fuse_tensor(WEIGHT, [(A, B, 0.8)], threads=ASKED).tobytes())


def multiply() -> bytes:
    """By another extension module, which some deltas need."""
    from ltx2c.kernels.elementwise import multiply

    product = VALUES.copy()
    multiply(product, VALUES, ASKED)
    return product.tobytes()


def torch() -> bytes:
    """By torch."""
    import torch

    torch.set_num_threads(TORCHS)
    return bytes((torch.ones(512, 512) @ torch.ones(512, 512)).numpy().tobytes())


USES = {use.__name__: use for use in (fuse, multiply, torch)}


def threads_of_this_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def run(order: list[str]) -> None:
    """One order, then a fork: in a process of its own."""
    made: dict[str, bytes] = {}
    for name in order:
        before = threads_of_this_process()
        result = USES[name]()
        grown = threads_of_this_process() - before
        # Where both have come to share a runtime, the pool that torch has made is made larger.
        assert name != "fuse" or made.keys() > {"fuse"} or grown in (ASKED - 1, ASKED - TORCHS), (order, name, grown)
        assert made.setdefault(name, result) == result, (order, name)
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(any(USES[name]() != made[name] for name in ("fuse", "multiply") if name in made))
    assert os.waitpid(child, 0)[1] == 0, order
    assert all(USES[name]() == result for name, result in made.items()), order
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    print(f"{len(runtimes)} OpenMP runtimes: {', '.join(order)}")


if __name__ == "__main__":
    if sys.argv[1:]:
        run(sys.argv[1:])
    else:
        for order in ORDERS:
            subprocess.run([sys.executable, __file__, *order.split()], check=True, timeout=60)
