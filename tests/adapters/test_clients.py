"""40 adapters saved by PEFT, diffusers, LyCORIS and sd-mecha: fused, and compared with those tools' own merges."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from clients import cases, tensors, write_adapters
from refusals import refused
from tensor_files import write

from ltx2c import Checkpoint, execute, plan_fuse

# Cases with what is refused, by the name that the refusal gives it.
REFUSED = {"peft_embedding": ("unsupported-delta", "LoRA of an embedding")}

# Bits of a step of the stored dtype: expectations are float32, results are rounded once more.
_STEP = {np.dtype(ml_dtypes.bfloat16): 2.0**-8, np.dtype(np.float16): 2.0**-11}

RUNS = [(name, number) for name, case in cases().items() for number in range(len(case["runs"]))]


@pytest.mark.parametrize("arithmetic", ["f32", "ltx"])
@pytest.mark.parametrize(("name", "number"), RUNS)
def test_equals_what_the_tool_makes_of_it(tmp_path: Path, name: str, number: int, arithmetic: str) -> None:
    case = cases()[name]
    run = case["runs"][number]
    base = tensors(run["base"])
    path = write(tmp_path / "base.safetensors", base)
    adapters = list(zip(write_adapters(tmp_path, case), case["strengths"], strict=True))
    if name in REFUSED:
        code, *said = REFUSED[name]
        with refused(code, *said):
            plan_fuse(path, adapters, arithmetic=arithmetic)
        return
    execute(plan_fuse(path, adapters, arithmetic=arithmetic), tmp_path / "out.safetensors")
    with Checkpoint.open(tmp_path / "out.safetensors") as out:
        fused = {key: tensor.read() for key, tensor in out.tensors.items()}
    assert list(fused) == list(base)
    expected = tensors(run["expected"])
    assert expected
    for key, values in fused.items():
        if key not in expected:
            assert values.tobytes() == base[key].tobytes(), key
            continue
        error = np.abs(values.astype(np.float64) - expected[key].astype(np.float64))
        largest = np.abs(expected[key]).max().astype(np.float64)
        if arithmetic == "ltx":
            assert error.max() <= 2 * 2.0**-8 * largest, key
        else:
            ulps = 4 * np.spacing(np.abs(expected[key].astype(np.float32)))
            assert (error <= np.maximum(ulps, max(1e-6, _STEP.get(values.dtype, 0)) * largest)).all(), key


def test_all_are_there() -> None:
    assert len(cases()) == 40
