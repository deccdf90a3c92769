"""Safetensors files byte by byte, so that tests can write what no library would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def raw_file(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with exactly this header text; ``length`` overrides what its first 8 bytes say."""
    text = header.encode() if isinstance(header, str) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header_of(**tensors: Any) -> str:
    return json.dumps(tensors)


def tensor_bytes(
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A sound file of (dtype, shape, bytes) by key, in this order, for dtypes that no array library can hold."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = entry(dtype, shape, (at, at + len(data)))
        at += len(data)
    return raw_file(json.dumps(header), b"".join(data for _, _, data in tensors.values()))


def write_tensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write ``tensor_bytes``."""
    path.write_bytes(tensor_bytes(tensors, metadata))
    return path
