"""Adapters as other people's tools saved them, with their bases and the tools' own merges in float32.

``data/clients/``: every tensor once in ``tensors.safetensors``, by a digest of it; ``cases.json.gz`` says which make up
each file. Of a merge only what differs from the base is kept.
"""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from tensor_files import write

from ltx2c import Checkpoint

DATA = Path(__file__).parent / "data" / "clients"


@functools.cache
def cases() -> dict[str, Any]:
    """Case name -> what it is."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / "cases.json.gz").read_bytes()))
    return found


@functools.cache
def _tensors() -> dict[str, np.ndarray]:
    with Checkpoint.open(DATA / "tensors.safetensors") as store:
        return {digest: tensor.read() for digest, tensor in store.tensors.items()}


def tensors(names: dict[str, str]) -> dict[str, np.ndarray]:
    """The arrays of one file."""
    return {key: _tensors()[digest] for key, digest in names.items()}


def write_adapters(folder: Path, case: dict[str, Any]) -> list[Path]:
    """The case's adapters, as its tool saved them: files, or folders with their configuration."""
    paths = []
    for adapter in case["adapters"]:
        path = folder / adapter["file"]
        path.parent.mkdir(exist_ok=True)
        write(path, tensors(adapter["tensors"]), adapter["metadata"])
        if adapter["config"] is not None:
            (path.parent / "adapter_config.json").write_text(json.dumps(adapter["config"]))
            path = path if path.parent == folder else path.parent
        paths.append(path)
    return paths
