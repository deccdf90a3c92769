"""Fuse what is too large for the tests: ``python ci/large_files.py [DIR]`` (needs 12 GB of disk for a minute).

A fused weight of more than 4 GB, beside an untouched tensor of more than 4 GB; and a header at the format's limit of
100 MB. Sampled rows are checked against the reference, the rest against the base.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import ltx2c
from ltx2c.files import TensorFile
from ltx2c.files.header import MAX_HEADER_BYTES

BF16 = np.dtype(ml_dtypes.bfloat16)

NEEDED_BYTES = 12_000_000_000


def hollow(path: Path, header: dict[str, object], size: int) -> Path:
    """A file whose data are a hole: zeros that take no disk."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    return path


def entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}


def adapter(path: Path, out: int, rank: int, into: int) -> Path:
    chance = np.random.default_rng(0)
    b, a = (chance.standard_normal(shape, np.float32).astype(BF16) for shape in ((out, rank), (rank, into)))
    header = {
        "m.lora_B.weight": entry("BF16", b.shape, 0, b.nbytes),
        "m.lora_A.weight": entry("BF16", a.shape, b.nbytes, b.nbytes + a.nbytes),
    }
    hollow(path, header, 0)
    with path.open("ab") as file:
        file.write(b.tobytes() + a.tobytes())
    return path


def large_tensors(folder: Path) -> None:
    out, into, other = 540_000, 4096, 4_500_000_001
    size = 2 * out * into
    header = {"other": entry("U8", (other,), 0, other), "m.weight": entry("BF16", (out, into), other, other + size)}
    base = hollow(folder / "base", header, other + size)
    lora = adapter(folder / "lora", out, 2, into)
    report = ltx2c.fuse_checkpoint(base, [(lora, 0.8)], folder / "out")
    with TensorFile.open(folder / "out") as fused, TensorFile.open(lora) as factors:
        weight = fused.tensors["m.weight"].view()
        a, b = (factors.tensors[f"m.lora_{side}.weight"].read() for side in "AB")
        for row in (0, 1, out // 2, out - 1):
            wanted = ltx2c.reference.fuse_tensor(np.zeros((1, into), BF16), [(a, b[row : row + 1], 0.8)])
            assert weight[row].tobytes() == wanted.tobytes(), row
        other_bytes = fused.tensors["other"].view()
        assert not any(other_bytes[at : at + (1 << 26)].any() for at in range(0, other, 1 << 26))
    print(f"large tensors: {report.bytes_written / 1e9:.1f} GB in {report.seconds:.1f} s")
    for name in ("base", "out"):
        (folder / name).unlink()


def large_header(folder: Path) -> None:
    header = {"__metadata__": {"long": ""}, "m.weight": entry("BF16", (8, 8), 0, 128)}
    spare = 1000  # what the output's own metadata takes
    header["__metadata__"] = {"long": "x" * (MAX_HEADER_BYTES - len(json.dumps(header)) - spare)}
    base = hollow(folder / "base", header, 128)
    began = time.perf_counter()
    ltx2c.fuse_checkpoint(base, [(adapter(folder / "lora", 8, 2, 8), 0.8)], folder / "out")
    with TensorFile.open(folder / "out") as fused:
        assert fused.metadata["long"] == header["__metadata__"]["long"]
        assert fused.data_start <= MAX_HEADER_BYTES + 8
    print(f"large header: {time.perf_counter() - began:.1f} s")


def main() -> None:
    parent = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    if (free := shutil.disk_usage(parent).free) < NEEDED_BYTES:
        print(f"NOT RUN: {parent} has {free / 1e9:.1f} GB free, and {NEEDED_BYTES / 1e9:.0f} GB are needed")
        return
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        large_tensors(Path(folder))
        large_header(Path(folder))


if __name__ == "__main__":
    main()
