"""Feed mutated safetensors files to the reader: ``python ci/fuzz_headers.py [COUNT [SEED]]``, by default 100,000.

Every file must be opened, and then the safetensors library opens it too and sees the same keys, or be refused by a
named error in under a second and in bounded memory. The first that is not is written to ``fuzz-failure.safetensors``.
"""

from __future__ import annotations

import collections
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fuzzing import check, mutated, sound_file


def main(count: int = 100_000, seed: int | None = None) -> None:
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    print(f"{count} files, seed {seed}")
    chance = random.Random(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            content = mutated(sound_file(chance), chance)
            try:
                outcomes[check(Path(folder) / "x.safetensors", content)] += 1
            except BaseException:
                Path("fuzz-failure.safetensors").write_bytes(content)
                print(f"file {number} of seed {seed} failed: kept as fuzz-failure.safetensors", file=sys.stderr)
                raise
    for outcome, times in outcomes.most_common():
        print(f"{times:8} {outcome}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
