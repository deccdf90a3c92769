"""Feed mutated inputs to the readers, on all CPUs: ``python ci/fuzz_inputs.py [COUNT [SEED]]``, by default 1,000,000.

Safetensors files, indexes, adapters (their metadata, the JSON in it, their names) with a plan of their fusion, and now
and then megabytes of one thing. Each must be opened, and then the safetensors or json library sees the same in it, or
be refused by a named error in one line, in 5 seconds and 500 MB. The first that is not is kept as ``fuzz-failure-...``.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fuzzing import ADAPTER, FILE, HUGE, INDEX, furnish, tried

_SECONDS, _MEGABYTES = 5, 500
_SHARE = 10_000  # inputs that one process tries at a time
_HUGE_EVERY = 2_000  # one in so many

Outcomes = collections.Counter[str]


def main(count: int = 1_000_000, seed: int | None = None) -> int:
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    print(f"{count} inputs, seed {seed}")
    shares = [(seed + at, min(_SHARE, count - at)) for at in range(0, count, _SHARE)]
    outcomes: Outcomes = collections.Counter()
    slowest, largest = 0.0, 0
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for found, seconds, megabytes, failure in pool.imap_unordered(_try_share, shares):
            if failure:
                print(failure, file=sys.stderr)
                return 1
            outcomes += found
            slowest, largest = max(slowest, seconds), max(largest, megabytes)
    for outcome, times in outcomes.most_common():
        print(f"{times:8} {outcome}")
    print(f"the slowest took {slowest:.2f} s, the largest process {largest} MB")
    return 0


def _try_share(share: tuple[int, int]) -> tuple[Outcomes, float, int, str]:
    """Outcomes, the slowest one's seconds, the process's most megabytes, and what failed if anything did."""
    seed, count = share
    chance = random.Random(seed)
    outcomes: Outcomes = collections.Counter()
    slowest, megabytes = 0.0, 0
    signal.signal(signal.SIGPROF, _give_up)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = Path(name)
        furnish(folder)
        for number in range(count):
            kind = HUGE if number % _HUGE_EVERY == 0 else chance.choices([FILE, INDEX, ADAPTER], [5, 3, 2])[0]
            content = kind.make(chance)
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, 4 * _SECONDS)
            try:
                outcomes[f"{kind.name}: {tried(kind, content, folder)}"] += 1
                seconds, megabytes = time.process_time() - began, _megabytes()
                assert seconds < _SECONDS, f"{seconds:.1f} s"
                assert megabytes < _MEGABYTES, f"{megabytes} MB"
            except BaseException as error:
                kept = Path(f"fuzz-failure-{kind.name}")
                kept.write_bytes(content)
                return outcomes, slowest, 0, f"input {number} of seed {seed}: {error!r}: kept as {kept}"
            slowest = max(slowest, seconds)
    return outcomes, slowest, megabytes, ""


def _give_up(*_: object) -> None:
    raise AssertionError(f"more than {4 * _SECONDS} s")


def _megabytes() -> int:
    """The most memory that this process has had."""
    peak = re.search(r"VmHWM:\s*([0-9]+)", Path("/proc/self/status").read_text())
    return int(peak[1]) // 1024 if peak else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
