"""Destinations for a test to write to, and what may stand there before."""

from __future__ import annotations

from pathlib import Path

from ltx2c.files.destination import Destination


def check(path: Path, **options: object) -> Destination:
    return Destination.check(path, **{"inputs": [], "needed_bytes": 10, **options})


def old_result(path: Path) -> Path:
    path.mkdir()
    (path / "old.safetensors").write_bytes(b"old")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "old.safetensors"}}')
    return path
