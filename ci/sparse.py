"""A model of LTX-2.5's shape that takes no disk: its base is a hole, and only its adapter holds values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from ltx2c import inventory

_REPEATED = 1 << 22  # values, drawn once


def make(folder: Path, blocks: int, rank: int) -> tuple[Path, Path]:
    """Write a base and an adapter; their paths."""
    base, lora = folder / "base.safetensors", folder / "lora.safetensors"
    end = _write_header(base, inventory.base_tensors(blocks))
    with base.open("r+b") as file:
        file.truncate(end)
    end = _write_header(lora, inventory.adapter_tensors(blocks, rank))
    drawn = np.random.default_rng(0).standard_normal(_REPEATED, np.float32) * 0.02
    some = memoryview(drawn.astype(ml_dtypes.bfloat16).view(np.uint8))
    with lora.open("ab") as file:
        while (left := end - file.tell()) > 0:
            file.write(some[:left])
    return base, lora


def _write_header(path: Path, tensors: Iterable[inventory.TensorSpec]) -> int:
    """Write a file's header; how large the file is with its tensors."""
    entries: dict[str, object] = {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + int(np.prod(tensor.shape)) * {"BF16": 2, "F32": 4}[tensor.dtype]
        entries[tensor.key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return 8 + len(text) + end
