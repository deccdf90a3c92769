"""What a fuse costs beside a synced ``cp``, the arithmetic alone, and upstream's recipe in torch, in one run.

    python ci/file_targets.py [--blocks N] [--folder DIR] [--repeat N]

Needs about 4 x 0.9 GB of disk per block (and 3 GB), and torch for the last rows. Times are medians, in alternation.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "asv_bench"))
from benchmarks.files import (
    BASE,
    RANKS,
    compute_seconds,
    copy_seconds,
    drop_from_cache,
    fuse_seconds,
    temporary_model,
)
from benchmarks.measuring import read_into_cache

# Prints seconds of the job, and the peak of anonymous and of all memory in bytes, beyond what imports take.
_MEASURE = """
import re, sys, time
def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
{imports}
before = status("VmRSS")
began = time.perf_counter()
{job}
print(time.perf_counter() - began, status("VmHWM") - before)
"""

_OURS = {
    "imports": "import ltx2c",
    "job": "ltx2c.fuse_checkpoint(sys.argv[1], [(sys.argv[2], 0.8)], sys.argv[3])",
}

_UPSTREAM = {
    "imports": "import torch; from safetensors.torch import load_file, save_file",
    "job": """
base, lora = load_file(sys.argv[1]), load_file(sys.argv[2])
for key in [key for key in lora if key.endswith(".lora_A.weight")]:
    module = key.removesuffix(".lora_A.weight")
    weight = base["model." + module + ".weight"]
    weight.add_(torch.matmul(lora[module + ".lora_B.weight"] * 0.8, lora[key]).to(weight.dtype))
save_file(base, sys.argv[3])
import os
descriptor = os.open(sys.argv[3], os.O_RDONLY)
os.fsync(descriptor)
""",
}


def measured(script: dict[str, str], folder: Path, rank: int) -> tuple[float, float]:
    """Seconds and peak bytes of a script in a process of its own; its output is removed."""
    out = folder / "measured.safetensors"
    command = [sys.executable, "-c", _MEASURE.format(**script), folder / BASE, folder / f"lora-{rank}.safetensors", out]
    run = subprocess.run(command, capture_output=True, text=True)
    out.unlink(missing_ok=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    seconds, peak = map(float, run.stdout.split())
    return seconds, peak


def medians(repeat: int, **works: Callable[[], float]) -> dict[str, float]:
    """Of each work's results, taken in alternation."""
    results: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            results[name].append(work())
    return {name: statistics.median(values) for name, values in results.items()}


def show_targets(folder: Path, rank: int, cache: Callable[..., None], label: str, repeat: int) -> None:
    inputs = (folder / BASE, folder / f"lora-{rank}.safetensors")

    def after_cache(work: Callable[[], float]) -> Callable[[], float]:
        return lambda: (cache(*inputs), work())[1]

    found = medians(
        repeat,
        copy=after_cache(lambda: copy_seconds(folder)),
        compute=lambda: compute_seconds(folder, rank),
        fuse=after_cache(lambda: fuse_seconds(folder, rank)),
    )
    ratio = found["fuse"] / max(found["copy"], found["compute"])
    times = "  ".join(f"{name} {seconds:6.2f} s" for name, seconds in found.items())
    print(f"rank {rank:3} {label}: {times}  fuse / max(copy, compute) {ratio:.2f}", flush=True)


def show_upstream(folder: Path, rank: int, repeat: int) -> None:
    read_into_cache(folder / BASE, folder / f"lora-{rank}.safetensors")
    ours, theirs = [], []
    for _ in range(repeat):
        ours.append(measured(_OURS, folder, rank))
        theirs.append(measured(_UPSTREAM, folder, rank))
    seconds, peaks = zip(*(map(statistics.median, zip(*runs, strict=True)) for runs in (ours, theirs)), strict=True)
    print(
        f"rank {rank:3}: ltx2c {seconds[0]:.2f} s, {peaks[0] / 1e6:.0f} MB; torch {seconds[1]:.2f} s, "
        f"{peaks[1] / 1e6:.0f} MB: {seconds[1] / seconds[0]:.1f} times faster, {peaks[0] / peaks[1]:.3f} of the memory",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="a model that is there, as benchmarks/files.py makes it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("warm", "cold", "torch"))
    parser.add_argument("--rank", type=int, choices=RANKS, action="append")
    args = parser.parse_args()
    with contextlib.nullcontext(args.folder) if args.folder else temporary_model(args.blocks) as folder:
        for rank in args.rank or RANKS:
            if args.only in (None, "warm"):
                show_targets(folder, rank, read_into_cache, "warm", args.repeat)
            if args.only in (None, "cold"):
                show_targets(folder, rank, drop_from_cache, "cold", args.repeat)
            if args.only in (None, "torch"):
                show_upstream(folder, rank, args.repeat)


if __name__ == "__main__":
    main()
