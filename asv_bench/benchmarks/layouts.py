"""Weights in codes beside bfloat16 ones: the arithmetic of one block of LTX-2.5 in memory, and whole files.

Shares are medians of runs in alternation with what they are shares of, in one process.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from .files import BASE, copy_seconds, fuse_seconds
from .measuring import read_into_cache

CODES = ("fp8", "fp8-scaled", "fp8-row", "fp8-block", "nvfp4")
RANK, LOW_RANK = 450, 16  # the real adapter's, and one where files are the limit
ROUNDS = 5


class Model:
    """A model of one block, its weights in memory, fused as resident ones are."""

    def __init__(self, folder: Path, layout: str, rank: int, part: str = "") -> None:
        """``part``: of the names of those weights that are fused."""
        from ltx2c import Adapter, Checkpoint, plan_fuse
        from ltx2c.engines.fuser import Fuser
        from ltx2c.engines.pipeline import split_threads
        from ltx2c.engines.weights import work_of
        from ltx2c.plan.opened import OpenedPlan, Sources
        from ltx2c.synth import synth
        from ltx2c.threads import resolve_threads

        made = synth(folder, blocks=1, rank=rank, layout=layout)
        self._open = ExitStack()
        base, adapter = (
            self._open.enter_context(one) for one in (Checkpoint.open(made.base), Adapter.open(made.adapter))
        )
        plan = plan_fuse(base, [(adapter, 0.8)])
        self._work = work_of(OpenedPlan(plan, Sources(base, [adapter])))
        self._keys = [key for key in plan.fusions if part in key]
        self._memory = [base.tensors[key].read().reshape(-1).view(np.uint8) for key in self._keys]
        shares = split_threads(resolve_threads(None), together=self._work.goes_twice)
        self._workers = self._open.enter_context(ThreadPoolExecutor(len(shares)))
        self._fuser = Fuser(plan.arithmetic, shares)
        self.flops = 2 * sum(self._work.macs(key, base.tensors[key].nbytes) for key in self._keys)

    def seconds(self) -> float:
        """Of fusing all of its weights where they lie, by the workers that engines have."""
        from ltx2c.engines.fuser import Part

        parts = []
        for key, memory in zip(self._keys, self._memory, strict=True):
            weight = self._work.begin(key)
            weight.load()
            parts.append([Part(self._work.tensors[key], 0, weight, memory)])
        began = time.perf_counter()
        list(self._workers.map(self._fuser.fuse, parts))
        return time.perf_counter() - began

    def close(self) -> None:
        self._open.close()


def alternated(runs: Iterable[Callable[[], float]], rounds: int = ROUNDS) -> list[float]:
    """The median of each run's seconds; they take turns."""
    runs = list(runs)
    for run in runs:
        run()
    taken = [[run() for run in runs] for _ in range(rounds)]
    return [statistics.median(each) for each in zip(*taken, strict=True)]


class _Layouts:
    params = CODES
    param_names = ("layout",)
    timeout = 600
    rounds = 1
    repeat = 1
    number = 1
    warmup_time = 0

    def setup(self, layout: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ltx2c-bench-"))

    def teardown(self, layout: str) -> None:
        shutil.rmtree(self.folder)


class Arithmetic(_Layouts):
    """At the real adapter's rank."""

    def track_share_of_bf16(self, layout: str) -> float:
        """Of the GFLOP/s that the same weights in bfloat16 are fused with."""
        models = [Model(self.folder / name, name, RANK, ".transformer_blocks.0.") for name in (layout, "bf16")]
        codes, plain = alternated(model.seconds for model in models)
        for model in models:
            model.close()
        return plain / codes

    track_share_of_bf16.unit = "share"  # type: ignore[attr-defined]


class File(_Layouts):
    """From page cache to disk at a low rank."""

    def track_share_of_floor(self, layout: str) -> float:
        """How many times longer than the slower of a synced copy and the arithmetic alone."""
        model = Model(self.folder, layout, LOW_RANK)
        (self.folder / "distilled-lora.safetensors").replace(self.folder / f"lora-{LOW_RANK}.safetensors")
        read_into_cache(self.folder / BASE)
        fuse, copy, compute = alternated(
            (
                lambda: fuse_seconds(self.folder, LOW_RANK),
                lambda: copy_seconds(self.folder),
                model.seconds,
            )
        )
        model.close()
        return fuse / max(copy, compute)

    track_share_of_floor.unit = "times"  # type: ignore[attr-defined]
