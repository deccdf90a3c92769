"""A forecast: how long a cluster takes for several results of one base, each a job in units; measured in a moment."""

from __future__ import annotations

import bisect
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ltx2c.cluster import Cluster, Played, UnitWork, bottleneck, play
from ltx2c.engines.units import Unit, UnitFuser
from ltx2c.engines.weights import Work, work_of
from ltx2c.errors import RefusedError
from ltx2c.files.layout import OutputLayout
from ltx2c.jobs.job import UNIT_BYTES
from ltx2c.plan.cost import Cost, Rates
from ltx2c.plan.opened import OpenedPlan, reopened
from ltx2c.rates import measure_rates
from ltx2c.threads import resolve_threads

# What a worker's process does before it opens its job's files.
_START = "import ltx2c.jobs.job"


class Result(NamedTuple):
    """A result to be made, and where its bytes lie."""

    opened: OpenedPlan
    layout: OutputLayout


@dataclass(frozen=True)
class ForecastRow:
    """So many workers.

    Attributes:
        workers: how many.
        seconds: until all results are in place.
        checking: of those, after the last unit was done: results are read again and compared with their units' marks.
        speedup: over one worker.
        most_read, most_written: bytes of the worker with most of each.
        bottleneck: what would shorten it most if it were doubled: ``compute``, ``network``, ``storage``, or ``units``,
            which are too few, too large, or too slow to begin.
    """

    workers: int
    seconds: float
    checking: float
    speedup: float
    most_read: int
    most_written: int
    bottleneck: str


@dataclass(frozen=True)
class Forecast:
    """What a cluster of workers like this machine would do.

    Attributes:
        network, storage: as given, bytes per second.
        threads: of each worker.
        flops, bytes: what was measured here: floating-point operations and bytes copied per second.
        start: seconds that a unit takes to begin, measured here.
        units: of all results.
        read, written: bytes of all workers together, whatever their number.
        rows: for 1, 2, 4, ... workers up to the number that was asked for.
    """

    network: float
    storage: float
    threads: int
    flops: float
    bytes: float
    start: float
    units: int
    read: int
    written: int
    rows: tuple[ForecastRow, ...]

    def as_json(self) -> dict[str, Any]:
        """The same in JSON's own types."""
        return asdict(self)


def forecast(
    results: Sequence[Result], *, workers: int, network: float, storage: float, threads: int | None = None
) -> Forecast:
    """Measure this machine, under two seconds, and play a cluster of such.

    Every result is a job of its own, cut into units as ``ltx2c job create`` does, so that the base is read once for
    each result; a unit reads all factors of the weights that it has a part of. When the units of a result are done,
    one worker reads it again and puts it in place.

    Args:
        results: of one base, one or more.
        workers: the largest number to say it for.
        network: bytes per second of each worker, in each direction.
        storage: bytes per second of the storage, read and written, for all together.
        threads: of each worker; None for what this process may use.

    Raises:
        OSError: as the system says.
        RefusedError: ``out-of-range``: a number that is not positive; ``threads``.
    """
    for name, value in {"workers": workers, "network": network, "storage": storage}.items():
        if not 0 < value < float("inf"):
            raise RefusedError(f"{name} must be a positive number, not {value}", code="out-of-range")
    rates = measure_rates(threads)
    cluster = Cluster(1, network, storage, _start_seconds(results[0].opened))
    units = [unit for number, result in enumerate(results) for unit in _units(number, result, rates)]
    checks = [_check(number, result.layout, rates) for number, result in enumerate(results)]
    alone = play(units, checks, cluster)
    return Forecast(
        network=network,
        storage=storage,
        threads=resolve_threads(threads),
        flops=rates.flops,
        bytes=rates.bytes,
        start=cluster.start,
        units=len(units),
        read=sum(alone.read),
        written=sum(alone.written),
        rows=tuple(_row(units, checks, replace(cluster, workers=count), alone) for count in _counts(workers)),
    )


def _counts(workers: int) -> list[int]:
    return sorted({*(1 << power for power in range(workers.bit_length()) if 1 << power < workers), workers})


def _row(units: Sequence[UnitWork], checks: Sequence[UnitWork], cluster: Cluster, alone: Played) -> ForecastRow:
    played = play(units, checks, cluster)
    return ForecastRow(
        workers=cluster.workers,
        seconds=played.seconds,
        checking=played.seconds - played.units_done,
        speedup=alone.seconds / played.seconds,
        most_read=max(played.read),
        most_written=max(played.written),
        bottleneck=bottleneck(units, checks, cluster),
    )


def _start_seconds(opened: OpenedPlan) -> float:
    """What a unit takes to begin: a process, and its job's files opened. Both measured."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _START], check=True)
    with reopened(opened.plan):
        return time.perf_counter() - began


def _units(number: int, result: Result, rates: Rates) -> Iterator[UnitWork]:
    """A job's units, each with what it reads, writes and computes."""
    opened, layout = result
    work = work_of(opened)
    for unit in UnitFuser(opened, layout, 1).cut(max(1, layout.size // UNIT_BYTES)):
        cost = Cost.total(_costs(unit, layout, work))
        yield UnitWork(number, cost.bytes_read, cost.bytes_written, rates.seconds(cost))


def _costs(unit: Unit, layout: OutputLayout, work: Work) -> Iterator[Cost]:
    (file,) = (file for file in layout.files if file.name == unit.file)
    first = bisect.bisect_right(file.tensors, unit.begin, key=lambda placed: placed.begin) - 1
    for tensor, begin in file.tensors[max(0, first) :]:
        if begin >= unit.end:
            return
        low, high = max(begin, unit.begin), min(begin + tensor.nbytes, unit.end)
        if low < high:
            of_base = tensor.source.nbytes * (high - low) // tensor.nbytes if tensor.key in work.tensors else 0
            macs = work.macs(tensor.key, of_base) if of_base else 0
            yield Cost(macs, of_base + work.delta_bytes(tensor.key), high - low)


def _check(number: int, layout: OutputLayout, rates: Rates) -> UnitWork:
    size = sum(file.size for file in layout.files)
    return UnitWork(number, size, 0, size / rates.bytes)
