"""What a weight's fusion reaches of the machine's peak, and of what people use in its place, in one process in turn.

    python ci/rivals.py [--before DIR] [OUTxRANKxIN ...]

A line per shape: GFLOP/s and the share of the best instruction's peak on registers; the same of torch through float32
(with MKL's product on x86-64) and in bfloat16, as `asv_bench/benchmarks/rivals.py` runs them. Medians of turns; run it
where nothing else runs. With --before, the ltx2c that is built in place in DIR is measured in the same way, in
turn with this one, in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "asv_bench"))
sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH keeps away
from benchmarks.measuring import in_turn
from benchmarks.rivals import SHAPES, Run, ours, rival
from gate_floor import load, peak_rate

PROCESSES = 3  # of each ltx2c


def measured(name: str) -> dict[str, float]:
    """GFLOP/s of ours, f32 and bf16, and of the peak."""
    library, cores = load(), len(os.sched_getaffinity(0))
    case = SHAPES[name]
    peaks: list[float] = []
    runs = {"ours": ours(case), "peak": Run(lambda: peaks.append(peak_rate(library, cores)[0]))}
    runs |= {way: rival(way, case) for way in ("f32", "bf16")}
    seconds = in_turn({who: run.call for who, run in runs.items()})
    rates = {who: runs[who].share * case.flops / seconds[who] / 1e9 for who in runs}
    return rates | {"peak": statistics.median(peaks) / 1e9}


def in_process(name: str, package: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def show(name: str, packages: dict[str, Path]) -> None:
    turns = [{label: in_process(name, package) for label, package in packages.items()} for _ in range(PROCESSES)]
    for label in packages:
        rates = {who: statistics.median(turn[label][who] for turn in turns) for who in turns[0][label]}
        told = ", ".join(
            f"{who} {rates[who]:.1f} ({rates[who] / rates['peak']:.2f})" for who in ("ours", "f32", "bf16")
        )
        over = f"{rates['ours'] / rates['f32']:.2f}, {rates['ours'] / rates['bf16']:.1f}"
        print(f"{name:<14} {label:<7}{told}, peak {rates['peak']:.0f}; times as fast: {over}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="OUTxRANKxIN", help="default: all")
    parser.add_argument("--before", type=Path, help="a checkout of another commit, built in place")
    parser.add_argument("--one", choices=SHAPES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one)))
        return
    packages = {"now": Path(__file__).resolve().parents[1]}
    if args.before:
        packages = {"before": args.before.resolve(), **packages}
    for name in args.shapes or SHAPES:
        show(name, packages)


if __name__ == "__main__":
    main()
