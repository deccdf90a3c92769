#!/usr/bin/env python3
"""A fuse by four worker processes of Dask, one of which is killed in the middle of a unit, again and again.

usage: ci/with_packages.sh "distributed>=2025.1,<2027" python "$PWD/ci/dask_kills.py" [KILLS]

Until so many have been killed: in each round a worker is stopped, seen to be within a unit (it holds a file of the
result's parts open), and killed; a round whose fuse ended before does not count. The result must be the single
process's, byte for byte, put in place once, with nothing left beside it. Then: a unit whose every worker dies ends the
fuse with its name and leaves nothing; a refusal comes with its code; threads are as asked for, though the nanny sets
OMP_NUM_THREADS.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import dask
import ml_dtypes
import numpy as np
from distributed import Client, LocalCluster
from safetensors.numpy import save_file

import ltx2c
from ltx2c.files.staging import Staged
from ltx2c.jobs import hidden

WORKERS = 4
LAYERS, WIDTH, RANK = 24, 2048, 128
SEED = 20261201


def make_model(folder: Path) -> tuple[Path, list[tuple[Path, float]]]:
    """A base of 200 MB, every weight of which is fused."""
    chance = np.random.default_rng(SEED)

    def drawn(*shape: int) -> np.ndarray:
        return chance.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)

    base, lora = folder / "base.safetensors", folder / "lora.safetensors"
    save_file({f"layers.{n}.weight": drawn(WIDTH, WIDTH) for n in range(LAYERS)}, base)
    factors = {}
    for n in range(LAYERS):
        factors[f"layers.{n}.lora_A.weight"] = drawn(RANK, WIDTH)
        factors[f"layers.{n}.lora_B.weight"] = drawn(WIDTH, RANK)
    save_file(factors, lora)
    return base, [(lora, 0.8)]


class Killer(threading.Thread):
    """Kills one worker that is within a unit, after a moment of up to ``longest`` seconds.

    ``killed`` tells whether there was one: the fuse may have ended before.
    """

    def __init__(self, client: Client, folder: Path, chance: random.Random, longest: float) -> None:
        super().__init__()
        self.killed = False
        self._pids = list(client.run(os.getpid).values())
        self._parts = f"{folder}/.out.safetensors."
        self._after = chance.uniform(0.0, longest)
        self._pick = chance
        self.over = False

    def run(self) -> None:
        time.sleep(self._after)
        while not self.killed and not self.over:
            for pid in self._pick.sample(self._pids, len(self._pids)):
                if self._is_within_a_unit(pid):
                    os.kill(pid, signal.SIGSTOP)
                    if self._is_within_a_unit(pid):  # and stays there, now that it stands still
                        os.kill(pid, signal.SIGKILL)
                        self.killed = True
                        return
                    os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)

    def _is_within_a_unit(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    path = str(entry.readlink())
                    if path.startswith(self._parts) and "/parts/" in path:
                        return True
        return False


class Deadly(Executor):
    """Hands on all calls but one, which ends whoever makes it."""

    def __init__(self, inner: Executor, deadly: int) -> None:
        self._inner = inner
        self._deadly = deadly
        self._number = 0

    def submit(self, call: Callable[..., Any], /, *given: Any, **options: Any) -> Future[Any]:
        self._number += 1
        if self._number - 1 == self._deadly:
            return self._inner.submit(os._exit, 1)
        return self._inner.submit(call, *given, **options)


@contextlib.contextmanager
def counting_results() -> Iterator[list[Staged]]:
    """Every result that is put in place."""
    placed: list[Staged] = []
    place = Staged.place
    Staged.place = lambda staged: placed.append(staged) or place(staged)  # type: ignore[method-assign, func-returns-value]
    try:
        yield placed
    finally:
        Staged.place = place  # type: ignore[method-assign]


def threads_of(count: int) -> tuple[str, int]:
    """In a worker: what the nanny says, and how many threads a kernel adds that is asked for so many."""
    from ltx2c import fuse_tensor

    weight, a, b = (np.ones(shape, np.float32) for shape in ((512, 512), (8, 512), (512, 8)))
    fuse_tensor(weight, [(a, b, 1.0)], threads=1)
    before = set(os.listdir("/proc/self/task"))  # noqa: PTH208
    fuse_tensor(weight, [(a, b, 1.0)], threads=count)
    return os.environ.get("OMP_NUM_THREADS", "unset"), len(set(os.listdir("/proc/self/task")) - before)  # noqa: PTH208


def check(what: str, is_so: bool) -> None:
    """End the script unless it is so."""
    if not is_so:
        sys.exit(f"FAILED: {what}")


def main(rounds: int = 20) -> int:
    """Run all of it."""
    chance = random.Random(SEED)
    # A worker that is killed again some seconds after another is not given up: four of them are to be there.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, counting_results() as placed:
        folder = Path(name).resolve()
        base, adapters = make_model(folder)
        ltx2c.fuse_checkpoint(base, adapters, folder / "single.safetensors")
        expected = (folder / "single.safetensors").read_bytes()
        before = {path.name for path in folder.iterdir()}
        out = folder / "out.safetensors"
        cluster = LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        )
        with cluster, Client(cluster) as client, client.get_executor() as executor:
            started = time.perf_counter()
            ltx2c.fuse_checkpoint(base, adapters, out, executor=executor)
            undisturbed = time.perf_counter() - started
            out.unlink()
            killed = number = 0
            while killed < rounds:
                check(f"a worker is killed within a unit in {rounds} of {number} rounds", number < 4 * rounds)
                number += 1
                client.wait_for_workers(WORKERS)
                placed.clear()
                killer = Killer(client, folder, chance, 0.8 * undisturbed)
                killer.start()
                ltx2c.fuse_checkpoint(base, adapters, out, executor=executor)
                killer.over = True
                killer.join()
                killed += killer.killed
                check(f"round {number}: the same bytes", out.read_bytes() == expected)
                check(f"round {number}: put in place once", len(placed) == 1 and out.stat().st_nlink == 1)
                out.unlink()
                check(f"round {number}: nothing is left", {path.name for path in folder.iterdir()} == before)
            print(f"{number} rounds, {killed} workers killed within a unit: equal, put in place once", end="")
            print(f"; {time.perf_counter() - began:.0f} s", flush=True)

            client.wait_for_workers(WORKERS)
            try:
                ltx2c.fuse_checkpoint(base, adapters, out, executor=Deadly(executor, 3))
                check("a unit whose every worker dies ends the fuse", False)
            except OSError as error:
                check(f"it is named: {error}", "unit 3 (" in str(error) and "\n" not in str(error))
                print(f"a unit whose every worker dies: {error}")
            check("nothing is left of it", {path.name for path in folder.iterdir()} == before)

            client.wait_for_workers(WORKERS)
            told, more = client.submit(threads_of, 3, pure=False).result()
            check(f"3 threads as asked for, not 1 and {more} more", more == 2)
            print(f"OMP_NUM_THREADS={told} in a worker, which computes with the 3 threads that are asked for")
        print(f"{time.perf_counter() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    hidden.SMALLEST_UNIT_BYTES = 8 << 20  # as many units as layers
    sys.exit(main(*map(int, sys.argv[1:])))
