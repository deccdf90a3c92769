from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fusing import adapter, save
from rawfiles import entry, raw_file

from ltx2c.arithmetic import LTX
from ltx2c.engines.blocks import cut_into_blocks, read_block
from ltx2c.engines.pipeline import BLOCK_BYTES
from ltx2c.engines.weights import Work
from ltx2c.files import TensorFile
from ltx2c.files.buffers import new_buffer
from ltx2c.files.header import PAGE
from ltx2c.files.layout import OutputTensor, plan_file

MEASURE = """
import json, re, sys, ltx2c
def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before = status("VmRSS")
ltx2c.fuse_checkpoint(sys.argv[1], [(sys.argv[2], 1.0)], sys.argv[3], threads=2, **json.loads(sys.argv[4]))
print(status("VmHWM") - before)
"""


def sparse_file(path: Path, header: dict[str, object], size: int, tail: bytes = b"") -> Path:
    """A file whose data are a hole of ``size`` bytes and ``tail``: large, and nearly nothing on disk."""
    text = raw_file(json.dumps(header))
    with path.open("wb") as file:
        file.write(text)
        file.truncate(len(text) + size)
        file.seek(len(text) + size)
        file.write(tail)
    return path


def test_the_peak_is_bounded_however_large_the_base(tmp_path: Path) -> None:
    """1.2 GB of base, of which a weight of 64 MB at rank 256 is fused: buffers, two factors, and what Python takes."""
    fused, untouched = (8192, 4096), 1_100_000_000
    size = 2 * fused[0] * fused[1]
    header = {
        "m.weight": entry("BF16", fused, (0, size)),
        "other": entry("U8", (untouched,), (size, size + untouched)),
    }
    base = sparse_file(tmp_path / "base", header, size + untouched)
    lora = save(tmp_path / "lora", adapter({"m": (8192, 256, 4096)}, 1))
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, base, lora, out, "{}"], capture_output=True, text=True, check=True
    )
    out.unlink()
    assert int(run.stdout) < lora.stat().st_size + 128_000_000


LARGE = (16384, 4096)


def in_codes(layout: str) -> dict[str, tuple[str, tuple[int, ...], np.ndarray]]:
    """A weight of the model's largest shape, by the last parts of its tensors' names."""
    rows, columns = LARGE
    codes = np.arange(rows * columns, dtype=np.uint32).astype(np.uint8) % 120
    scale = np.full((), 0.01, np.float32)
    if layout == "nvfp4":
        blocks = np.full((rows, columns // 16), 0x50, np.uint8)
        codes = codes[: codes.size // 2]
        return {
            "weight": ("U8", (rows, columns // 2), codes),
            "weight_scale": ("F8_E4M3", blocks.shape, blocks),
            "weight_scale_2": ("F32", (), scale),
        }
    scales = np.broadcast_to(scale, () if layout == "fp8-scaled" else (rows, 1))
    return {"weight": ("F8_E4M3", LARGE, codes), "weight_scale": ("F32", scales.shape, scales)}


@pytest.mark.parametrize("layout", ["fp8-row", "fp8-scaled", "nvfp4"])
def test_weights_in_codes_take_no_more_than_plain_ones(layout: str, tmp_path: Path) -> None:
    """Also where one scale is for all of 67 million values, so that all are looked at before any is encoded."""
    header: dict[str, object] = {}
    data = []
    for name, (dtype, shape, values) in in_codes(layout).items():
        begin = sum(map(len, data))
        data.append(values.tobytes())
        header[f"m.{name}"] = entry(dtype, shape, (begin, begin + len(data[-1])))
    base = sparse_file(tmp_path / "base", header, 0, b"".join(data))
    lora = save(tmp_path / "lora", adapter({"m": (LARGE[0], 16, LARGE[1])}, 1))
    options = json.dumps({"nvfp4_scales": "linear"} if layout == "nvfp4" else {})
    command = [sys.executable, "-c", MEASURE, base, lora, tmp_path / "out", options]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < lora.stat().st_size + 128_000_000


def test_a_tensor_of_more_than_4_gb_is_reached_to_its_end(tmp_path: Path) -> None:
    size = 5_000_000_000
    header = {"big": entry("F4", (2, size + 3), (0, size + 3))}
    with TensorFile.open(sparse_file(tmp_path / "base", header, size, b"end")) as file:
        layout = plan_file("out", map(OutputTensor.copy_of, file.tensors.values()), {})
        *_, last = cut_into_blocks(layout.tensors, Work(file.tensors, {}, {}, {}, LTX, None), BLOCK_BYTES)
        assert last.begin + last.nbytes == layout.size > 1 << 32
        buffer = new_buffer(BLOCK_BYTES + 2 * PAGE)
        read_block(last, buffer)
        assert bytes(buffer[last.lead + last.nbytes - 4 :][:4]) == b"\0end"
