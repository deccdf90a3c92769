"""The golden cases: inputs and outputs of Lightricks/LTX-2's own fusion code (commit 400fd31, torch 2.13 on CPU)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

FOLDER = Path(__file__).parent / "data" / "goldens"
PATHS = sorted(FOLDER.glob("*.safetensors"))


@dataclasses.dataclass(frozen=True)
class Golden:
    """One case: ``expected`` is the fused weight, ``expected_delta`` the aggregate before it meets the weight."""

    weight: np.ndarray
    terms: list[tuple[np.ndarray, np.ndarray, float]]
    expected: np.ndarray
    expected_delta: np.ndarray
    fma_discriminating: bool

    @classmethod
    def load(cls, path: Path) -> Golden:
        tensors = load_file(path)
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        strengths = json.loads(metadata["strengths"])
        return cls(
            weight=tensors["weight"],
            terms=[(tensors[f"lora_A.{i}"], tensors[f"lora_B.{i}"], s) for i, s in enumerate(strengths)],
            expected=tensors["expected.weight"],
            expected_delta=tensors["expected.delta"],
            fma_discriminating=metadata.get("fma_discriminating", "").lower() == "true",
        )


def assert_same_by_class(actual: np.ndarray, expected: np.ndarray) -> None:
    """Byte equality, with any NaN equal to any NaN: another tool's NaN payloads are not part of the contract."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    assert np.array_equal(bits(actual)[~nan], bits(expected)[~nan])


def bits(array: np.ndarray) -> np.ndarray:
    """The array's own bits as unsigned integers, so that -0.0 differs from +0.0 and one NaN from another."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
