"""What fusing a file takes by how its bytes are moved: size of a block, buffers, readers, workers.

    python ci/file_ways.py [--folder DIR] [--rank R] [--cache warm|cold] [--repeat N] [WAY...]

A line per way: the median of runs in alternation, each in a process of its own, and beside the way in use. Needs what
`ci/file_targets.py` needs. What came out is in `ltx2c/engines/README.md`.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from file_targets import OURS, RANKS, Run, drop_from_cache, inputs, measured, medians, read_into_cache, temporary_model

IN_USE = "as it is"

# What is set before the package reads it.
WAYS = {
    IN_USE: "",
    "blocks of 4 MB": "pipeline.BLOCK_BYTES = 4 << 20",
    "blocks of 8 MB": "pipeline.BLOCK_BYTES = 8 << 20",
    "blocks of 32 MB": "pipeline.BLOCK_BYTES = 32 << 20",
    "3 buffers": "pipeline.BUFFERS = 3",
    "6 buffers": "pipeline.BUFFERS = 6",
    "2 readers": "pipeline.run_pipeline.__kwdefaults__['readers'] = 2",
    "2 readers, 6 buffers": "pipeline.BUFFERS = 6; pipeline.run_pipeline.__kwdefaults__['readers'] = 2",
    "1 worker": "pipeline.WORKERS = 1",
}

CACHES = {"warm": read_into_cache, "cold": drop_from_cache}


def script(way: str) -> dict[str, str]:
    before = f"import ltx2c.engines.pipeline as pipeline; {WAYS[way]}" if WAYS[way] else ""
    return {**OURS, "imports": f"{before}\n{OURS['imports']}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"default: all of {', '.join(WAYS)}")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="a model that is there, as benchmarks/files.py makes it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rank", type=int, choices=RANKS, default=RANKS[0])
    parser.add_argument("--cache", choices=CACHES, default="cold")
    args = parser.parse_args()
    ways = args.ways or list(WAYS)
    runs: dict[str, list[Run]] = {way: [] for way in dict.fromkeys([IN_USE, *ways])}
    with contextlib.nullcontext(args.folder) if args.folder else temporary_model(args.blocks) as folder:
        for _ in range(args.repeat):
            for way, found in runs.items():
                CACHES[args.cache](*inputs(folder, args.rank))
                found.append(measured(script(way), folder, args.rank))
    usual = medians(runs[IN_USE])
    for way, found in runs.items():
        run = medians(found)
        print(
            f"rank {args.rank:3} {args.cache} {way:<22} {run.seconds:6.2f} s, {run.seconds / usual.seconds:.2f} of it "
            f"as it is; {run.peak / 1e6:4.0f} MB"
        )


if __name__ == "__main__":
    main()
