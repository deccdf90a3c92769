"""Deltas that are more than plain LoRA, over the weights of one block of LTX-2.5, in memory.

``track_share_of_floor`` says how near a fuse comes to what its arithmetic or its bytes allow, whichever is slower, all
measured in the same process. Bytes: a copy of as many (``ltx2c.rates``). Arithmetic of products: plain LoRA's rate; of
a difference that is entered value by value: the kernel's own steps (scale, round, add, round) on rows that stay in L1.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16
from numpy.lib.stride_tricks import as_strided

from .measuring import best_seconds

KINDS = ("lora", "loha", "lokr", "dora", "diff")
BY_VALUE = ("lokr", "diff")
RANK = 64


def _seconds_per_value() -> float:
    """Of entering a difference in float32 into a bf16 weight: one row of 2 kB, again and again."""
    from ltx2c.fusion import Job, fuse_jobs
    from ltx2c.terms import FullTerm

    weight, d = (
        as_strided(np.zeros(1024, dtype), (4096, 1024), (0, np.dtype(dtype).itemsize))
        for dtype in (bfloat16, np.float32)
    )
    jobs = [Job(weight, [FullTerm(d, 0.8)], weight)]
    return best_seconds(lambda: fuse_jobs(jobs, threads=1)) / weight.size


class Kinds:
    """Every weight of a one-block model that the adapter has a delta for, fused in place."""

    params = KINDS
    param_names = ("kind",)
    timeout = 300
    rounds = 1
    repeat = (2, 5, 10.0)
    number = 1
    warmup_time = 0

    def setup(self, kind: str) -> None:
        from ltx2c import Adapter, Checkpoint, plan_fuse
        from ltx2c.engines.rows import Loaded, Rows, fuse_rows
        from ltx2c.plan.cost import Cost
        from ltx2c.plan.opened import Sources
        from ltx2c.synth import synth

        folder = Path(tempfile.mkdtemp(prefix="ltx2c-bench-"))
        try:
            made = synth(folder, blocks=1, rank=RANK, kind=kind)
            with Checkpoint.open(made.base) as base, Adapter.open(made.adapter) as adapter:
                sources = Sources(base, [adapter])
                plan = plan_fuse(base, [(adapter, 0.8)])
                self.weights = [
                    Rows(base.tensors[key].read(), 0, [Loaded(sources.load(one.delta), one) for one in deltas])
                    for key, deltas in plan.fusions.items()
                ]
                read = sum(sources.delta(one.delta).nbytes for deltas in plan.fusions.values() for one in deltas)
                weight_bytes = sum(rows.values.nbytes for rows in self.weights)
                self.cost = Cost(plan.macs, weight_bytes + read, weight_bytes)
        finally:
            shutil.rmtree(folder)
        self.fuse = lambda: [fuse_rows([rows], 1) for rows in self.weights]  # a worker of the pipeline has one thread
        self.fuse()

    def time_fuse(self, kind: str) -> None:
        self.fuse()

    def track_gigabytes(self, kind: str) -> float:
        """GB/s of weights read and written and of deltas read."""
        return (self.cost.bytes_read + self.cost.bytes_written) / best_seconds(self.fuse) / 1e9

    def track_share_of_floor(self, kind: str) -> float:
        from ltx2c.rates import measure_rates

        rates = measure_rates(threads=1)
        arithmetic = 2 * self.cost.macs / rates.flops
        if kind in BY_VALUE:
            arithmetic = sum(rows.values.size for rows in self.weights) * _seconds_per_value()
        floor = max(arithmetic, max(self.cost.bytes_read, self.cost.bytes_written) / rates.bytes)
        return floor / best_seconds(self.fuse)

    track_gigabytes.unit = "GB/s"  # type: ignore[attr-defined]
    track_share_of_floor.unit = "share"  # type: ignore[attr-defined]
