"""Small bases and adapters for tests of engines, and what the reference makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from rawfiles import write_tensors

from ltx2c import reference
from ltx2c.dtypes import FUSIBLE
from ltx2c.files import Checkpoint

BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = {np.dtype(np.uint8): "U8"} | {dtype.numpy: dtype.name for dtype in FUSIBLE.values()}

Tensors = Mapping[str, np.ndarray]


def save(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Path:
    return write_tensors(
        path, {key: (NAMES[value.dtype], value.shape, value.tobytes()) for key, value in tensors.items()}, metadata
    )


def load(path: Path) -> dict[str, np.ndarray]:
    with Checkpoint.open(path) as checkpoint:
        return {key: tensor.read() for key, tensor in checkpoint.tensors.items()}


def values(seed: int, *shape: int, dtype: np.dtype = BF16) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.1).astype(dtype)


def adapter(modules: Mapping[str, tuple[int, int, int]], seed: int, dtype: np.dtype = BF16) -> dict[str, np.ndarray]:
    """Factors for modules of (out, rank, in)."""
    tensors = {}
    for at, (module, (out, rank, into)) in enumerate(modules.items()):
        tensors[f"diffusion_model.{module}.lora_A.weight"] = values(seed + 2 * at, rank, into, dtype=dtype)
        tensors[f"diffusion_model.{module}.lora_B.weight"] = values(seed + 2 * at + 1, out, rank, dtype=dtype)
    return tensors


def expected(base: Tensors, adapters: Sequence[tuple[Tensors, float]]) -> dict[str, np.ndarray]:
    """What fusing must give, by the reference."""
    result = {}
    for key, weight in base.items():
        module = "diffusion_model." + key.removeprefix("model.diffusion_model.").removesuffix(".weight")
        terms = [
            (factors[f"{module}.lora_A.weight"], factors[f"{module}.lora_B.weight"], strength)
            for factors, strength in adapters
            if f"{module}.lora_A.weight" in factors
        ]
        result[key] = reference.fuse_tensor(weight, terms) if terms else weight
    return result


def assert_same(actual: Tensors, wanted: Tensors) -> None:
    assert list(actual) == list(wanted)
    for key, value in wanted.items():
        assert actual[key].dtype == value.dtype and actual[key].shape == value.shape, key
        assert actual[key].tobytes() == value.tobytes(), key


def small_model(folder: Path, seed: int = 0) -> tuple[Path, list[tuple[Path, float]], dict[str, np.ndarray]]:
    """A base of odd sizes and dtypes, two adapters with strengths, and the expected tensors."""
    base = {
        "head": values(seed, 3, dtype=np.dtype(np.uint8)),  # three bytes: what follows lies at odd offsets
        "model.diffusion_model.a.weight": values(seed + 1, 33, 65),
        "model.diffusion_model.b.weight": values(seed + 2, 40, 24, dtype=np.dtype(np.float32)),
        "model.diffusion_model.c.weight": values(seed + 3, 300, 128),
        "model.diffusion_model.d.weight": values(seed + 4, 17, 9, dtype=np.dtype(np.float16)),
        "empty": values(seed, 0, 4),
        "scalar": values(seed + 5, dtype=np.dtype(np.float32)).reshape(()),
        "bias": values(seed + 6, 5000),
    }
    factors = [
        adapter({"a": (33, 7, 65), "b": (40, 16, 24), "c": (300, 32, 128)}, seed + 100),
        adapter({"c": (300, 1, 128), "a": (33, 3, 65), "d": (17, 5, 9)}, seed + 200, np.dtype(np.float32)),
    ]
    strengths = [0.8, -0.3]
    adapters = [
        (save(folder / f"lora{at}.safetensors", tensors), strength)
        for at, (tensors, strength) in enumerate(zip(factors, strengths, strict=True))
    ]
    path = save(folder / "base.safetensors", base, {"config": '{"k": "\\u00e9"}'})
    return path, adapters, expected(base, list(zip(factors, strengths, strict=True)))
