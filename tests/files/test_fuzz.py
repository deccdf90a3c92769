"""A small share of ``ci/fuzz_headers.py``: 1,500 mutated files, others every time."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from fuzzing import check, mutated, sound_file


def test_mutated_files_are_opened_or_refused_by_name(tmp_path: Path) -> None:
    seed = time.time_ns() % (1 << 32)
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(1500):
        content = mutated(sound_file(chance), chance)
        try:
            outcomes[check(tmp_path / "x.safetensors", content)] += 1
        except BaseException as error:
            raise AssertionError(f"file {number} of seed {seed}: {content[:2000]!r}") from error
    assert outcomes["opened"] > 50 and len(outcomes) > 10, f"the mutations have lost their bite: {outcomes}"


def test_sound_files_are_opened(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(200):
        assert check(tmp_path / "x.safetensors", sound_file(chance)) == "opened"
