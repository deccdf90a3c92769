"""What a fuse costs beside a synced ``cp``, the arithmetic alone, and upstream's recipe in torch, in one run.

    python ci/file_targets.py [--blocks N] [--folder DIR] [--repeat N] [--rank R] [--only files|torch]

Needs about 3 x 0.9 GB of disk per block (and 3 GB), and torch for the last rows. Every number is a median of runs in
alternation, each fuse in a process of its own: from a warm and from a cold page cache, with what it read from the disk
and the most memory it took. Six blocks and three repeats without torch take about five minutes on two AVX2 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "asv_bench"))
from benchmarks.files import (
    BASE,
    RANKS,
    compute_seconds,
    copy_seconds,
    drop_from_cache,
    temporary_model,
)
from benchmarks.measuring import read_into_cache

# Prints seconds of the job, the peak of memory and what came from the disk in bytes, beyond what imports take.
MEASURE = """
import re, sys, time
def counted(file, name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/" + file).read())[1])
{imports}
resident, read = 1024 * counted("status", "VmRSS"), counted("io", "\\nread_bytes")
began = time.perf_counter()
{job}
seconds = time.perf_counter() - began
print(seconds, 1024 * counted("status", "VmHWM") - resident, counted("io", "\\nread_bytes") - read)
"""

OURS = {
    "imports": "import ltx2c",
    "job": "ltx2c.fuse_checkpoint(sys.argv[1], [(sys.argv[2], 0.8)], sys.argv[3])",
}

UPSTREAM = {
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


class Run(NamedTuple):
    """What one run of a script took."""

    seconds: float
    peak: float  # bytes of memory
    disk: float  # bytes read


def measured(script: dict[str, str], folder: Path, rank: int) -> Run:
    """One run in a process of its own; its output is removed."""
    out = folder / "measured.safetensors"
    command = [sys.executable, "-c", MEASURE.format(**script), *inputs(folder, rank), out]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    out.unlink(missing_ok=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    return Run(*map(float, run.stdout.split()))


def inputs(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / BASE, folder / f"lora-{rank}.safetensors"


def medians(runs: Sequence[Run]) -> Run:
    return Run(*map(statistics.median, zip(*runs, strict=True)))


def show_targets(folder: Path, rank: int, repeat: int) -> None:
    """A line for the warm cache and one for the cold: fuse beside the slower of copying and computing."""
    caches = {"warm": read_into_cache, "cold": drop_from_cache}
    files = inputs(folder, rank)
    nbytes = sum(path.stat().st_size for path in files)
    computed: list[float] = []
    copied: dict[str, list[float]] = {label: [] for label in caches}
    fused: dict[str, list[Run]] = {label: [] for label in caches}
    for _ in range(repeat):
        computed.append(compute_seconds(folder, rank))
        for label, prepare in caches.items():
            prepare(*files)
            copied[label].append(copy_seconds(folder))
            prepare(*files)
            fused[label].append(measured(OURS, folder, rank))
    compute = statistics.median(computed)
    for label in caches:
        copy, fuse = statistics.median(copied[label]), medians(fused[label])
        print(
            f"rank {rank:3} {label}: copy {copy:6.2f} s  compute {compute:6.2f} s  fuse {fuse.seconds:6.2f} s  "
            f"fuse / max(copy, compute) {fuse.seconds / max(copy, compute):.2f}  "
            f"disk reads / inputs {fuse.disk / nbytes:.3f}  peak {fuse.peak / 1e6:.0f} MB",
            flush=True,
        )


def show_upstream(folder: Path, rank: int, repeat: int) -> None:
    read_into_cache(*inputs(folder, rank))
    ours, theirs = [], []
    for _ in range(repeat):
        ours.append(measured(OURS, folder, rank))
        theirs.append(measured(UPSTREAM, folder, rank))
    we, they = medians(ours), medians(theirs)
    print(
        f"rank {rank:3}: ltx2c {we.seconds:.2f} s, {we.peak / 1e6:.0f} MB; torch {they.seconds:.2f} s, "
        f"{they.peak / 1e6:.0f} MB: {they.seconds / we.seconds:.1f} times faster, "
        f"{we.peak / they.peak:.3f} of the memory",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="a model that is there, as benchmarks/files.py makes it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("files", "torch"))
    parser.add_argument("--rank", type=int, choices=RANKS, action="append")
    args = parser.parse_args()
    with contextlib.nullcontext(args.folder.resolve()) if args.folder else temporary_model(args.blocks) as folder:
        for rank in args.rank or RANKS:
            if args.only in (None, "files"):
                show_targets(folder, rank, args.repeat)
            if args.only in (None, "torch"):
                show_upstream(folder, rank, args.repeat)


if __name__ == "__main__":
    main()
