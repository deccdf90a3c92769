#!/usr/bin/env python3
"""A fuse divided over two processes of one thread each, beside one of two threads: the same bytes, and the wall time.

usage: ci/divided.py [BLOCKS [RANK [ROUNDS]]]      (10 blocks are 9 GB, twice below TMPDIR; the base takes no disk)

Both run in each round, in an order that alternates. The processes are started, and have the package imported, before.
"""

from __future__ import annotations

import filecmp
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import sparse

import ltx2c
from ltx2c.jobs import run

PROCESSES = 2


def main(blocks: int = 1, rank: int = 450, rounds: int = 1) -> int:
    """Measure, and fail where the bytes differ."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(PROCESSES, mp_context=spawn) as processes:
        folder = Path(name)
        base, lora = sparse.make(folder, blocks, rank)
        one, divided = folder / "one.safetensors", folder / "divided.safetensors"
        for future in [processes.submit(time.sleep, 0.5) for _ in range(PROCESSES)]:
            future.result()
        processes.submit(run.work_unit)  # fails, with the package imported

        def timed(out: Path, **options: object) -> float:
            out.unlink(missing_ok=True)
            began = time.perf_counter()
            ltx2c.fuse_checkpoint(base, [(lora, 0.8)], out, **options)
            return time.perf_counter() - began

        times: list[tuple[float, float]] = []
        for number in range(rounds):
            if number % 2:
                two = timed(divided, executor=processes, threads=1)
                times.append((timed(one, threads=PROCESSES), two))
            else:
                alone = timed(one, threads=PROCESSES)
                times.append((alone, timed(divided, executor=processes, threads=1)))
        alone, two = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(second / first for first, second in times)
        same = filecmp.cmp(one, divided, shallow=False)
        size = base.stat().st_size / 1e9
        print(f"{size:.1f} GB, rank {rank}: one process {alone:.1f} s, {PROCESSES} processes {two:.1f} s, ", end="")
        print(f"ratio {ratio:.2f} ({', '.join(f'{second / first:.2f}' for first, second in times)}); ", end="")
        print(f"bytes {'equal' if same else 'DIFFER'}")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
