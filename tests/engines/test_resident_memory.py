"""How much memory a resident checkpoint takes: one set of weights, and a second only where a budget was given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tensor_files import pair, write

_MB = 1 << 20
_TENSORS, _ROWS, _COLUMNS = 12, 4096, 4096  # 384 MiB

# Prints how far the peak of resident memory rose above what it was before the weights came.
_PROGRAM = """
import json, sys
from pathlib import Path
from ltx2c import Recipe, ResidentCheckpoint

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

base, adapter, budget = sys.argv[1], sys.argv[2], int(sys.argv[3])
recipe = Recipe.named("a2vid_two_stage", distilled_lora=adapter)
before = peak()
with ResidentCheckpoint.open(base, recipe, memory_budget=budget) as resident:
    loaded = peak() - before
    for phase in (1, 0, 1, 0):
        resident.bind(phase)
    print(json.dumps([loaded, peak() - before, len(resident.double_buffered)]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("model")
    shape = [_ROWS, _COLUMNS]
    header = {f"x.{i}.weight": ("BF16", shape) for i in range(_TENSORS)}
    factors = {key: value for i in range(_TENSORS) for key, value in pair(f"x.{i}", _ROWS, 1, _COLUMNS).items()}
    return write(folder / "base.safetensors", header), write(folder / "d.safetensors", factors)


def measured(model: tuple[Path, Path], budget: int) -> tuple[int, int, int]:
    command = [sys.executable, "-c", _PROGRAM, *map(str, model), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, peak, double_buffered = json.loads(done.stdout)
    return loaded, peak, double_buffered


def test_one_set_of_weights_without_a_budget(model: tuple[Path, Path]) -> None:
    size = model[0].stat().st_size
    loaded, peak, double_buffered = measured(model, 0)
    assert double_buffered == 0
    assert loaded < 1.05 * size + 64 * _MB
    assert peak < 1.05 * size + 128 * _MB < 1.5 * size


def test_a_budget_is_kept_to(model: tuple[Path, Path]) -> None:
    size, budget = model[0].stat().st_size, 100 * _MB
    _, peak, double_buffered = measured(model, budget)
    assert double_buffered == 3  # of 32 MiB each
    assert peak < 1.05 * size + budget + 128 * _MB
