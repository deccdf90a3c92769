#!/usr/bin/env python3
"""A fuse that is killed when nine tenths are done, and resumed: only the rest is done, and in what part of the time.

usage: ci/resumed.py [BLOCKS [RANK]]      (48 blocks are LTX-2.5's 42 GB, once below TMPDIR; the base takes no disk)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sparse
import xxhash

KILLED_AT = 0.9


def digest(path: Path) -> str:
    """XXH3 of a file."""
    found = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(8 << 20):
            found.update(chunk)
    return found.hexdigest()


def done(folder: Path) -> tuple[int, int]:
    """How many units of the run under way are marked, and how many there are, as far as that is known."""
    for job in folder.glob(".*.ltx2c-job"):
        if (job / "order.json").exists():
            from ltx2c.jobs.job import Job

            status = Job.open(job).status()
            return status.units - len(status.missing), status.units
    return 0, 0


def main(blocks: int = 1, rank: int = 16) -> int:
    """Measure; fail where bytes differ, or more is done than was missing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, lora = sparse.make(folder, blocks, rank)
        out = folder / "out.safetensors"
        command = [sys.executable, "-m", "ltx2c", "fuse", base, "--lora", lora, "0.8", "-o", out, "--resume", "--json"]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - began
        expected = digest(out)
        out.unlink()

        child = subprocess.Popen(command, cwd=folder)
        number = units = 0
        while child.poll() is None and (not units or number < KILLED_AT * units):
            time.sleep(0.002)
            if not units:
                number, units = done(folder)
            else:
                number = sum(len(os.listdir(job / "done")) for job in folder.glob(".*.ltx2c-job"))  # noqa: PTH208
        child.send_signal(signal.SIGKILL)
        child.wait()
        if out.exists():
            sys.exit("FAILED: it was done before it could be killed")
        number, units = done(folder)
        began = time.perf_counter()
        told = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
        resumed = time.perf_counter() - began
        same = digest(out) == expected
        only_the_rest = f"resumed: {number} of {units} units had been done" in told
        print(
            f"{base.stat().st_size / 1e9:.1f} GB, rank {rank}: whole {whole:.1f} s; killed with {number} of {units} ",
            end="",
        )
        print(f"units done and resumed in {resumed:.1f} s, {resumed / whole:.2f} of it; ", end="")
        print(
            f"{'only the rest was done' if only_the_rest else 'MORE WAS DONE'}, bytes {'equal' if same else 'DIFFER'}"
        )
        return 0 if same and only_the_rest and not list(folder.glob(".*")) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
