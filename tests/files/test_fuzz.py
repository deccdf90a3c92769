"""A small share of ``ci/fuzz_inputs.py``: 2,500 mutated inputs, others every time."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from fuzzing import ADAPTER, FILE, INDEX, Kind, furnish, tried
from mutations import sound_file
from rawfiles import tensor_bytes
from steps import steps


@pytest.mark.parametrize(
    ("kind", "count"), [(FILE, 1500), (INDEX, 500), (ADAPTER, 500)], ids=["file", "index", "adapter"]
)
def test_mutated_inputs_are_opened_or_refused_by_name(kind: Kind, count: int, tmp_path: Path) -> None:
    furnish(tmp_path)
    seed = time.time_ns() % (1 << 32)
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        content = kind.make(chance)
        tracemalloc.start()
        try:
            outcomes[tried(kind, content, tmp_path)] += 1
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < len(content) + 200e6, peak
        except BaseException as error:
            raise AssertionError(f"input {number} of seed {seed}: {content[:2000]!r}") from error
        finally:
            tracemalloc.stop()
    assert outcomes["opened"] > 50 and len(outcomes) > 5, f"the mutations have lost their bite: {outcomes}"


def test_sound_files_are_opened(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(200):
        assert tried(FILE, sound_file(chance), tmp_path) == "opened"


def _packed(text: str) -> dict[str, str]:
    return {"lora_adapter_metadata": text}


@pytest.mark.parametrize(
    ("key", "metadata"),
    [
        ("." * 10**6, {}),
        ("a." * 10**6, {}),
        ("a" * 10**6, {}),
        ("x", _packed('{"a":[' + "[]," * 5 * 10**6 + "1]}")),
        ("x", _packed("[" * 10**6)),
    ],
    ids=["dots", "parts", "letters", "lists", "nested"],
)
def test_an_adapter_of_megabytes_of_one_thing_is_refused_in_few_steps(
    key: str, metadata: dict[str, str], tmp_path: Path
) -> None:
    furnish(tmp_path)
    pair = {"m.lora_A.weight": ("BF16", (1, 6), bytes(12)), "m.lora_B.weight": ("BF16", (4, 1), bytes(8))}
    content = tensor_bytes({**pair, key: ("U8", (0,), b"")}, metadata)
    tracemalloc.start()
    outcome = tried(ADAPTER, content, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome == "no-pair-matches" and peak < 200e6, (outcome, peak)
    assert steps(lambda: tried(ADAPTER, content, tmp_path)) < 10_000
