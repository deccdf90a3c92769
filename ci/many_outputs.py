#!/usr/bin/env python3
"""Four outputs of one base by one fuse-many, beside four fuses: the same bytes, the base read once, and the wall time.

usage: ci/many_outputs.py [BLOCKS [ROUNDS]]      (6 blocks take 30 GB of disk below TMPDIR)

Each round runs both, each in processes of their own, in an order that alternates; medians are told.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import xxhash

STRENGTHS = (0.25, 0.5, 0.75, 1.0)
READ = "import sys; from ltx2c.__main__ import main; sys.argv[0] = 'ltx2c'; code = main(); "
READ += "print(open('/proc/self/io').read().split()[1], file=sys.stderr); sys.exit(code)"


def ltx2c(folder: Path, *arguments: object) -> int:
    """Run a command in ``folder``, out of the source tree; the bytes that it read, by the kernel's own count."""
    command = [sys.executable, "-c", READ, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, check=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    return int(done.stderr.split()[-1])


def digest(path: Path) -> str:
    """XXH3 of a file."""
    found = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(8 << 20):
            found.update(chunk)
    return found.hexdigest()


def main(blocks: int = 6, rounds: int = 3) -> int:
    """Measure, and fail where bytes differ or the base was read more than once."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        ltx2c(here, "synth", here, "--blocks", blocks, "--rank", 16)
        base, lora = here / "base.safetensors", here / "distilled-lora.safetensors"
        outs = [here / f"out{at}.safetensors" for at in range(len(STRENGTHS))]
        jobs = here / "jobs.toml"
        jobs.write_text(
            "".join(f'["{out.name}"]\nloras = [["{lora.name}", {s}]]\n' for out, s in zip(outs, STRENGTHS, strict=True))
        )

        def four() -> float:
            began = time.perf_counter()
            for out, strength in zip(outs, STRENGTHS, strict=True):
                ltx2c(here, "fuse", base, "--lora", lora, strength, "-o", out)
            return time.perf_counter() - began

        read: list[int] = []

        def many() -> float:
            began = time.perf_counter()
            read.append(ltx2c(here, "fuse-many", base, jobs))
            return time.perf_counter() - began

        times: dict[str, list[float]] = {"four": [], "many": []}
        made: dict[str, list[str]] = {}
        for number in range(rounds):
            for name, run in [("four", four), ("many", many)][:: 1 if number % 2 else -1]:
                times[name].append(run())
                made[name] = [digest(out) for out in outs]
                for out in outs:
                    out.unlink()
        same = made["four"] == made["many"]
        inputs = base.stat().st_size + lora.stat().st_size
        share = max(read) / inputs
        ratio = statistics.median(many / four for many, four in zip(times["many"], times["four"], strict=True))
        four_s, many_s = (statistics.median(times[name]) for name in ("four", "many"))
        print(f"{blocks} blocks, rank 16, {base.stat().st_size / 1e9:.1f} GB: four fuses {four_s:.1f} s, ", end="")
        print(f"one fuse-many {many_s:.1f} s, ratio {ratio:.2f}; read {share:.3f} of base and adapter", end="")
        print(f"; bytes {'equal' if same else 'DIFFER'}")
        return 0 if same and share < 1.1 else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
