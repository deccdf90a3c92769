"""What this machine does: peaks, and fusion beside them, measured in one process.

Speeds drift with temperature and company. So each row's runs alternate with runs of what it is compared with (the
peak, and torch if it is installed), and each number is a median.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ltx2c import inventory, kernels
from ltx2c.arithmetic import F32, LTX, Arithmetic
from ltx2c.fusion import Job, fuse_jobs
from ltx2c.kernels import fuse
from ltx2c.machine import cpu_name
from ltx2c.progress import OnProgress, Progress
from ltx2c.rates import timed
from ltx2c.threads import resolve_threads
from ltx2c.version import __version__

Array = npt.NDArray[Any]

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
STRENGTH = 0.8


class Case(NamedTuple):
    """One weight, bfloat16 ``[out, into]``, and an adapter's factors."""

    out: int
    rank: int
    into: int
    arithmetic: Arithmetic = LTX
    factors: np.dtype[Any] = BFLOAT16

    @property
    def name(self) -> str:
        arithmetic = "" if self.arithmetic is LTX else f", {self.arithmetic.name}"
        factors = "" if self.factors == BFLOAT16 else f", {self.factors} factors"
        return f"{self.out} x {self.rank} x {self.into}{arithmetic}{factors}"


CASES = (
    *(Case(4096, rank, 4096) for rank in (1, 16, 32, 128, 450)),
    Case(32, 450, 4096),
    Case(4096, 450, 4096, F32),
    Case(4096, 450, 4096, F32, FLOAT32),
)

_BANDWIDTH_BYTES = 256 << 20  # far more than any cache
_LEAST_RUNS = 5

# Kernels whose innermost instruction takes bfloat16 factors alone, and the one whose instruction others are summed by.
_WIDE_PEAKS = {"genoa": "skylake"}

# At most three weights are in flight at once, so three of a shape are never fused into twice at the same time.
_WEIGHTS_PER_SHAPE = 3


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: ``out x rank x in``, the arithmetic and the factors where they are not ``ltx`` and bfloat16; or the model.
        gflops: 1e9 operations per second, two per multiply-add.
        peak_share: of the peak of the instruction that sums such factors, measured between the runs.
        gbps: 1e9 bytes of weights read and written per second.
        torch_gflops: ``w.add_(torch.matmul(b * s, a))`` on the same data, or None.
    """

    name: str
    gflops: float
    peak_share: float
    gbps: float
    torch_gflops: float | None


@dataclasses.dataclass(frozen=True)
class BenchReport:
    """Everything measured; rates in 1e9 operations or bytes per second.

    Attributes:
        ltx2c, cpu: which version measured, and on which processor.
        kernel, kernel_why: the kernel in use, and why.
        threads: of every measurement.
        peaks: for each kernel that runs here, its innermost instruction on registers alone.
        bandwidth: reading and writing back in place, both counted.
        rows: in the order measured.
        torch: its version, or None where it is not installed.
    """

    ltx2c: str
    cpu: str
    kernel: str
    kernel_why: str
    threads: int
    peaks: dict[str, float]
    bandwidth: float
    rows: tuple[Row, ...]
    torch: str | None

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return dataclasses.asdict(self)


def bench(
    *,
    threads: int | None = None,
    blocks: int = inventory.BLOCKS,
    seconds: float = 2.0,
    progress: OnProgress | None = None,
) -> BenchReport:
    """Measure this machine.

    Args:
        threads: as for ``fuse_tensor``.
        blocks: of LTX-2.5's 48 transformer blocks in the last row, which fuses all their modules in one call.
        seconds: about how long each other row takes.
        progress: called as that last row goes on.

    Raises:
        RefusedError: ``out-of-range``, ``threads``.
    """
    inventory.check_blocks(blocks)
    count = resolve_threads(threads)
    kernel = kernels.selected()
    peaks = {name: _peak(name, count) for name in kernels.available()}
    bandwidth = _bandwidth(count)
    torch = _torch(count)
    rows = [_case_row(case, kernel, count, seconds, torch) for case in CASES]
    rows.append(_model_row(blocks, kernel, count, progress))
    return BenchReport(
        ltx2c=__version__,
        cpu=cpu_name(),
        kernel=kernel,
        kernel_why=kernels.why(),
        threads=count,
        peaks=peaks,
        bandwidth=bandwidth,
        rows=tuple(rows),
        torch=torch.__version__ if torch else None,
    )


def _torch(threads: int) -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # seconds to import, and not everybody has it

    torch.set_num_threads(threads)
    return torch


# ---- Peaks -------------------------------------------------------------------------------------------------------


def _peak(kernel: str, threads: int) -> float:
    macs = fuse.peak(kernel, threads)
    return 2 * macs / 1e9 / statistics.median(timed(lambda: fuse.peak(kernel, threads)) for _ in range(3))


def _bandwidth(threads: int) -> float:
    values = np.zeros(_BANDWIDTH_BYTES // 8, np.uint64)
    fuse.touch(values, threads)
    took = statistics.median(timed(lambda: fuse.touch(values, threads)) for _ in range(_LEAST_RUNS))
    return 2 * values.nbytes / 1e9 / took


# ---- Single weights ----------------------------------------------------------------------------------------------


def _case_row(case: Case, kernel: str, threads: int, seconds: float, torch: Any) -> Row:
    rng = np.random.default_rng(0)
    weight = _trained(rng, (case.out, case.into))
    a, b = (_trained(rng, sides, case.factors) for sides in ((case.rank, case.into), (case.out, case.rank)))
    signs = itertools.cycle((STRENGTH, -STRENGTH))  # the weight must not drift away
    job = [Job(weight, [(a, b, strength)], weight, case.arithmetic) for strength in (next(signs), next(signs))]
    turns = itertools.cycle(job)
    rival = kernel if case.factors == BFLOAT16 else _WIDE_PEAKS.get(kernel, kernel)
    runs = {"ours": lambda: fuse_jobs([next(turns)], threads=threads), "peak": lambda: fuse.peak(rival, threads)}
    if torch:
        runs["torch"] = _torch_run(torch, weight.copy(), a, b, signs)
    took = _alternate(runs, seconds)
    operations = 2e-9 * case.out * case.rank * case.into
    gflops = operations / took["ours"]
    peak = 2e-9 * fuse.peak(rival, threads) / took["peak"]
    gbps = 2e-9 * weight.nbytes / took["ours"]
    return Row(case.name, gflops, gflops / peak, gbps, operations / took["torch"] if torch else None)


def _trained(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any] = BFLOAT16) -> Array:
    return (rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)).astype(dtype)


def _torch_run(torch: Any, *arrays_and_signs: Any) -> Callable[[], object]:
    *arrays, signs = arrays_and_signs
    weight, a, b = (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array)
        for array in arrays
    )
    return lambda: weight.add_(torch.matmul(b * next(signs), a))


def _alternate(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The median time of each run, taken in turn for about so many seconds in all."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(took["ours"]) < _LEAST_RUNS:
        for name, run in runs.items():
            # Small weights come in series: one alone would be measured with the other side's threads still spinning.
            series = [timed(run)]
            while name != "peak" and sum(series) < 0.02:
                series.append(timed(run))
            took[name] += series[len(series) // 4 :]
    return {name: statistics.median(series) for name, series in took.items()}


# ---- The model ---------------------------------------------------------------------------------------------------


def _model_row(blocks: int, kernel: str, threads: int, progress: OnProgress | None) -> Row:
    jobs = list(_model_jobs(blocks))
    operations = 2e-9 * sum(job.macs for job in jobs)
    took = timed(lambda: fuse_jobs(_watched(jobs, progress), threads=threads))
    gflops = operations / took
    gbps = 2e-9 * sum(job.weight.nbytes for job in jobs) / took
    name = f"{len(jobs)} modules of LTX-2.5"
    return Row(name, gflops, gflops / _peak(kernel, threads), gbps, None)


def _model_jobs(blocks: int) -> Iterator[Job]:
    """The model's modules, with arrays shared between modules of one shape."""
    rng = np.random.default_rng(0)
    weights: dict[tuple[int, int], Iterator[Array]] = {}
    factors: dict[tuple[int, ...], Array] = {}
    pairs = inventory.adapter_tensors(blocks)
    signs = itertools.cycle((STRENGTH, -STRENGTH))
    for a, b in zip(pairs, pairs, strict=True):
        shape = (b.shape[0], a.shape[1])
        for spec in (a, b):
            if spec.shape not in factors:
                factors[spec.shape] = _trained(rng, (spec.shape[0], spec.shape[1]))
        if shape not in weights:
            weights[shape] = itertools.cycle([_trained(rng, shape) for _ in range(_WEIGHTS_PER_SHAPE)])
        weight = next(weights[shape])
        yield Job(weight, [(factors[a.shape], factors[b.shape], next(signs))], weight)


def _watched(jobs: Iterable[Job], progress: OnProgress | None) -> Iterator[Job]:
    """The jobs, one by one as they are asked for, with word of how far it has come."""
    jobs = list(jobs)
    total_bytes, total_macs = sum(job.weight.nbytes for job in jobs), sum(job.macs for job in jobs)
    nbytes = macs = 0
    for job in jobs:
        if progress:
            progress(Progress(nbytes, total_bytes, macs, total_macs))
        yield job
        nbytes, macs = nbytes + job.weight.nbytes, macs + job.macs
    if progress:
        progress(Progress(nbytes, total_bytes, macs, total_macs))
