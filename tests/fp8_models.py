"""Small FP8 bases with scales before or behind their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tensor_files import pair, weight, write

from ltx2c.layouts import reference as stored

SHAPE = (300, 192)


def fp8_base(folder: Path, companion: str, *shape: int, first: bool) -> tuple[Path, list[tuple[Path, float]]]:
    """Two weights with scales, before or behind them in the file, and an adapter for both."""
    rng = np.random.default_rng(3)
    codes = {f"{name}.weight": rng.uniform(-1, 1, SHAPE).astype(stored.E4M3) for name in "ab"}
    scales = {f"{name}.{companion}": rng.uniform(1e-3, 1e-2, shape).astype(np.float32) for name in "ab"}
    tensors = (scales | codes if first else codes | scales) | {"kept": weight(5, 7)}
    factors = {key: value for name in "ab" for key, value in pair(name, SHAPE[0], 5, SHAPE[1]).items()}
    return write(folder / "base.safetensors", tensors), [(write(folder / "lora.safetensors", factors), 0.7)]
