"""Where a fuse stops scaling with cores, on a machine that has only few: measured costs, simulated order.

    python ci/scaling.py [--bandwidth GB/S] [--cores 1,2,4,...] [--kernel genoa --faster 2.9]

Four costs are measured here on one thread (packing A, packing B, the sum over k, the epilogue), and the bandwidth of
memory on all. Then the driver's own order is played with them: tickets, who packs a unit of A and who waits for it, the
ring of buffers, B packed again by every thread. Memory is shared evenly between the cores at work. Not in the model:
caches shared by cores, their clocks under load, and the distance between sockets; so efficiencies are upper bounds.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ltx2c import fuse_tensor, inventory, kernels
from ltx2c.threads import resolve_threads

REPEATS = 20
UNIT = 512  # columns of A that a thread packs at a time
FIT_ROWS, FIT_RANKS, FIT_COLUMNS = (12, 60, 252, 1008), (16, 128, 450), (64, 512, 4096)


class Shape(NamedTuple):
    """Of a weight and its pair."""

    rows: int
    rank: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.rank * self.columns


@dataclass(frozen=True)
class Driver:
    """The numbers of ``kernels/batch.h`` that decide how a weight is cut, for one kernel."""

    panel: int
    pair: int
    rows: int = 6
    ring: int = 3
    b_bytes: int = 256 << 10
    panel_bytes: int = 24 << 10
    block_rows: int = 252
    stream_rows: int = 60
    block_columns: int = 1024


DRIVERS = {
    "haswell": Driver(16, 1),
    "neon": Driver(16, 1),
    "skylake": Driver(64, 1),
    "genoa": Driver(64, 2),
}


class Costs(NamedTuple):
    """Seconds on one thread: per word of A and of B that is packed, per multiply-add, per element of the weight."""

    pack_a: float
    pack_b: float
    mac: float
    element: float


@dataclass
class Slab:
    """A weight, cut as the driver cuts it."""

    shape: Shape
    block_rows: int
    block_columns: int
    previous: Slab | None = None  # had the buffer for packed A before
    ready: dict[int, float] = field(default_factory=dict)  # unit -> when it is packed
    done: float = 0.0

    @property
    def shares_a(self) -> bool:
        return self.shape.rows > self.block_rows

    def blocks(self) -> Iterable[tuple[int, int, int, int]]:
        """(row, rows, column, columns), in the order of tickets."""
        rows = range(0, self.shape.rows, self.block_rows)
        for row, column in itertools.product(rows, range(0, self.shape.columns, self.block_columns)):
            yield (
                row,
                min(self.block_rows, self.shape.rows - row),
                column,
                min(self.block_columns, self.shape.columns - column),
            )


def cut(driver: Driver, shape: Shape) -> Slab:
    """As ``ltx2c_shape_slab`` does."""
    b_words = ceil(shape.rank, 32) * 32 // driver.pair
    panel_outer = 4 * driver.panel * ceil(shape.rank, driver.pair) > driver.panel_bytes
    most = driver.b_bytes // (4 * b_words) if panel_outer else driver.stream_rows
    most = max(min(most, driver.block_rows) // driver.rows, 1) * driver.rows
    rows = ceil(ceil(shape.rows, ceil(shape.rows, most)), driver.rows) * driver.rows
    count = ceil(shape.rows, rows)
    columns = driver.block_columns if panel_outer or count < 16 else shape.columns
    return Slab(shape, rows, UNIT if count == 1 else columns)


def ceil(count: int, size: int) -> int:
    return -(-count // size)


class Spent(NamedTuple):
    """Seconds of all cores together."""

    wall: float
    packing_a: float
    packing_b: float
    waiting_for_a: float
    waiting_for_ring: float
    at_the_end: float


def simulate(driver: Driver, shapes: Sequence[Shape], costs: Costs, bandwidth: float, cores: int) -> Spent:
    """Play the fusion of a list of weights in one call."""
    slabs = [cut(driver, shape) for shape in shapes]
    sharing = [slab for slab in slabs if slab.shares_a]
    for earlier, slab in zip(sharing, sharing[driver.ring :], strict=False):
        slab.previous = earlier
    spent = dict.fromkeys(Spent._fields[1:], 0.0)
    at_work = min(cores, sum(len(list(slab.blocks())) for slab in slabs))
    free = [(0.0, core) for core in range(cores)]
    holds: dict[int, tuple[int, int]] = {}  # core -> (slab, row) whose B it has packed
    for index, slab in enumerate(slabs):
        for row, rows, column, columns in slab.blocks():
            now, core = heapq.heappop(free)  # whoever is free first takes the next ticket
            if slab.previous is not None and slab.previous.done > now:
                spent["waiting_for_ring"] += slab.previous.done - now
                now = slab.previous.done
            now = prepare_a(slab, range(column // UNIT, ceil(column + columns, UNIT)), now, costs, spent)
            if holds.get(core) != (index, row):
                holds[core] = (index, row)
                spent["packing_b"] += rows * slab.shape.rank * costs.pack_b
                now += rows * slab.shape.rank * costs.pack_b
            elements = rows * columns
            computing = elements * (slab.shape.rank * costs.mac + costs.element)
            now += max(computing, 4 * elements * at_work / bandwidth)  # bf16, read and written
            slab.done = max(slab.done, now)
            heapq.heappush(free, (now, core))
    wall = max(now for now, _ in free)
    spent["at_the_end"] = sum(wall - now for now, _ in free)
    return Spent(wall, **spent)


def prepare_a(slab: Slab, units: Iterable[int], now: float, costs: Costs, spent: dict[str, float]) -> float:
    """Pack the units that nobody has begun, then wait for the others; the time when all are there."""
    latest = now
    for unit in units:
        packing = min(UNIT, slab.shape.columns - unit * UNIT) * slab.shape.rank * costs.pack_a
        if slab.shares_a and unit in slab.ready:
            latest = max(latest, slab.ready[unit])
            continue
        now += packing
        spent["packing_a"] += packing
        slab.ready[unit] = now
    spent["waiting_for_a"] += max(latest - now, 0.0)
    return max(now, latest)


# ---- Measuring -------------------------------------------------------------------------------------------------------


def draw(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape, np.float32) * 0.02).astype(ml_dtypes.bfloat16)


def best_seconds(shape: Shape, threads: int, clock: Callable[[], float] = time.perf_counter) -> float:
    weight, a, b = draw(shape.rows, shape.columns), draw(shape.rank, shape.columns), draw(shape.rows, shape.rank)
    times = []
    for strength in (0.8, -0.8) * (REPEATS // 2):
        began = clock()
        fuse_tensor(weight, [(a, b, strength)], out=weight, threads=threads)
        times.append(clock() - began)
    return min(times)


def measure_costs() -> tuple[Costs, float]:
    """The costs that fit measured weights of several shapes best, beside that of a call; the fit's median error."""
    features, times = [], []
    for shape in itertools.starmap(Shape, itertools.product(FIT_ROWS, FIT_RANKS, FIT_COLUMNS)):
        elements = shape.rows * shape.columns
        features.append([shape.rank * shape.columns, shape.rank * shape.rows, elements * shape.rank, elements, 1])
        times.append(best_seconds(shape, 1, time.thread_time))  # not what others took of the core
    relative = np.array(features) / np.array(times)[:, None]
    found = np.linalg.lstsq(relative, np.ones(len(times)), rcond=None)[0]
    if min(found[:4]) <= 0:
        raise SystemExit("scaling: NOT RUN: the machine is too busy for its costs to be told apart")
    return Costs(*found[:4]), statistics.median(abs(relative @ found - 1))


def measured_bandwidth(threads: int) -> float:
    """Bytes per second of a fuse of rank 1, read and written."""
    shape = Shape(8192, 1, 8192)
    return 4 * shape.rows * shape.columns / best_seconds(shape, threads)


# ---- The table -------------------------------------------------------------------------------------------------------


def show(
    title: str, driver: Driver, shapes: Sequence[Shape], costs: Costs, bandwidth: float, counts: list[int]
) -> None:
    flops = sum(shape.flops for shape in shapes)
    one = simulate(driver, shapes, costs, bandwidth, 1).wall
    print(f"\n{title}: {flops / one / 1e9:.0f} GFLOP/s on one core")
    print("  cores  speedup  efficiency   of the cores' time: packing A, B; waiting for A, for the ring, for the end")
    for cores in counts:
        spent = simulate(driver, shapes, costs, bandwidth, cores)
        shares = ", ".join(f"{seconds / spent.wall / cores:.1%}" for seconds in spent[1:])
        print(f"  {cores:5}  {one / spent.wall:7.2f}  {one / spent.wall / cores:10.2f}   {shares}")


def model(blocks: int, rank: int) -> list[Shape]:
    """The modules of LTX-2.5, in order."""
    pairs = inventory.adapter_tensors(blocks, rank)
    return [Shape(b.shape[0], a.shape[0], a.shape[1]) for a, b in zip(pairs, pairs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, help="of memory, GB/s, all cores together (default: measured)")
    parser.add_argument("--cores", default="1,2,4,8,16,32,64")
    parser.add_argument("--kernel", choices=DRIVERS, help="cut weights as for this kernel (default: the fastest here)")
    parser.add_argument(
        "--faster", type=float, default=1.0, help="how much faster that kernel computes than the one here"
    )
    args = parser.parse_args()
    kernel = args.kernel or kernels.selected()
    driver, counts = DRIVERS[kernel], [int(word) for word in args.cores.split(",")]
    threads = resolve_threads(None)
    costs, error = measure_costs()
    costs = costs._replace(mac=costs.mac / args.faster, element=costs.element / args.faster)
    bandwidth = 1e9 * args.bandwidth if args.bandwidth else measured_bandwidth(threads)
    print(
        f"kernel {kernel}: packing {2e-9 / costs.pack_a:.1f} GB/s of A, {2e-9 / costs.pack_b:.1f} of B, "
        f"{2e-9 / costs.mac:.0f} GFLOP/s, {1e9 * costs.element:.2f} ns per element; "
        f"median error of the fit {error:.1%}; memory {bandwidth / 1e9:.0f} GB/s"
    )
    one = Shape(4096, 450, 4096)
    for count in range(1, threads + 1) if args.faster == 1 else ():
        told = simulate(driver, [one], costs, bandwidth, count).wall
        print(
            f"4096x450x4096 on {count}: simulated {told * 1e3:.1f} ms, measured {best_seconds(one, count) * 1e3:.1f} ms"
        )
    for rank in (450, 16):
        show(f"8 blocks of LTX-2.5 at rank {rank}, one call", driver, model(8, rank), costs, bandwidth, counts)
    show("one weight, 4096x450x4096", driver, [one], costs, bandwidth, counts)
    show("one weight, 32x450x4096", driver, [Shape(32, 450, 4096)], costs, bandwidth, counts)
    print("\nWhat a change would give on the model at rank 450, as efficiency:")
    changes = {
        "as it is": driver,
        "ring of 6": replace(driver, ring=6),
        "ring of 12": replace(driver, ring=12),
        "blocks of 512 columns": replace(driver, block_columns=512),
        "half the rows a block": replace(driver, b_bytes=driver.b_bytes // 2, block_rows=driver.block_rows // 2),
    }
    for name, changed in changes.items():
        effect = []
        for cores in counts:
            wall = simulate(changed, model(8, 450), costs, bandwidth, cores).wall
            effect.append(f"{simulate(changed, model(8, 450), costs, bandwidth, 1).wall / wall / cores:.2f}")
        print(f"  {name:<24} {'  '.join(effect)}")


if __name__ == "__main__":
    main()
