"""LTX-2.5-shaped files without LTX-2.5: the real names, dtypes and shapes, with values like trained ones.

For trying things out, for tests and for benchmarks, where what matters is the layout and the range of the values and
not what the model would draw. Values are cut, at a place that depends on the seed and the key, from a pool of
normally distributed numbers drawn once; so the files are written as fast as the disk takes them, in a few hundred MB
of memory, and the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c import inventory
from ltx2c.errors import RefusedError, printable
from ltx2c.files.buffers import new_buffer
from ltx2c.files.destination import Destination
from ltx2c.files.direct import OutputFile
from ltx2c.files.naming import naming
from ltx2c.files.staging import publish, stage
from ltx2c.inventory import TensorSpec
from ltx2c.progress import OnProgress, Progress
from ltx2c.reference import BFLOAT16

BASE_NAME = "base.safetensors"
ADAPTER_NAME = "distilled-lora.safetensors"

_BUFFER_BYTES = 16 << 20


class SynthReport(NamedTuple):
    """What ``synth`` wrote: both paths, the tensors in each, and the bytes of both together."""

    base: Path
    adapter: Path
    base_tensors: int
    adapter_tensors: int
    bytes_written: int


class _File(NamedTuple):
    path: Path
    tensors: list[TensorSpec]
    metadata: dict[str, str]

    @property
    def header(self) -> bytes:
        entries: dict[str, Any] = {"__metadata__": self.metadata}
        end = 0
        for tensor in self.tensors:
            begin, end = end, end + _nbytes(tensor)
            entries[tensor.key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
        text = json.dumps(entries, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    @property
    def nbytes(self) -> int:
        return 8 + len(self.header) + nbytes(self.tensors)


def synth(
    folder: str | os.PathLike[str],
    *,
    blocks: int = inventory.BLOCKS,
    rank: int = inventory.RANK,
    kind: inventory.Kind = "lora",
    seed: int = 0,
    force: bool = False,
    progress: OnProgress | None = None,
) -> SynthReport:
    """Write ``base.safetensors`` and ``distilled-lora.safetensors`` into ``folder``, which is made if it is missing.

    Args:
        folder: where the two files go. They appear under their names only when both are complete.
        blocks: transformer blocks, 1 to 48; 48 is the real model (42 GB, and 9 GB for the adapter).
        rank: the adapter's rank, at least 1; where a layer's sides are smaller, the smaller side.
        kind: of the adapter's deltas: ``"lora"``, ``"loha"``, ``"lokr"``, ``"dora"`` (by rows, on LoRA) or ``"diff"``.
        seed: any integer that is not negative. Same seed, same bytes.
        force: replace files that stand there already.
        progress: called after every piece.

    Raises:
        RefusedError: a number out of range, or as ``Destination.check`` says: a file in the way, too little room.
        OSError: as the system raised it; neither file is left behind.
    """
    check_options(blocks, rank, seed)
    if kind not in inventory.KIND_TENSORS:
        raise RefusedError(
            f"kind is one of {', '.join(inventory.KIND_TENSORS)}, not {printable(kind)}", code="out-of-range"
        )
    files = _files(Path(folder), blocks, rank, kind)
    Path(folder).mkdir(parents=True, exist_ok=True)
    total = sum(file.nbytes for file in files)
    destinations = [Destination.check(file.path, inputs=(), needed_bytes=total, force=force) for file in files]
    _write_all(files, destinations, _Values(seed), progress or (lambda now: None), total)
    base, adapter = files
    return SynthReport(base.path, adapter.path, len(base.tensors), len(adapter.tensors), total)


def nbytes(tensors: Iterable[TensorSpec]) -> int:
    """Bytes that the values of ``tensors`` take."""
    return sum(map(_nbytes, tensors))


def _files(folder: Path, blocks: int, rank: int, kind: inventory.Kind) -> tuple[_File, _File]:
    return (
        _File(
            folder / BASE_NAME,
            list(inventory.base_tensors(blocks)),
            {"model_version": inventory.MODEL_VERSION, "config": json.dumps(inventory.config(blocks))},
        ),
        _File(
            folder / ADAPTER_NAME,
            list(inventory.adapter_tensors(blocks, rank, kind)),
            {"model_version": inventory.MODEL_VERSION, "lora_rank": str(rank), "lora_alpha": str(rank)},
        ),
    )


def check_options(blocks: int, rank: int, seed: int = 0) -> None:
    """Refuse (``out-of-range``) what ``synth`` would."""
    inventory.check_blocks(blocks)
    if rank < 1:
        raise RefusedError(f"rank must be at least 1, not {rank}", code="out-of-range")
    if seed < 0:
        raise RefusedError(f"seed must not be negative, and is {seed}", code="out-of-range")


def _write_all(
    files: Sequence[_File], destinations: Sequence[Destination], values: _Values, progress: OnProgress, total: int
) -> None:
    done = 0
    buffer = new_buffer(_BUFFER_BYTES)
    with contextlib.ExitStack() as unfinished:
        results = [unfinished.enter_context(stage(destination)) for destination in destinations]
        for file, staged in zip(files, results, strict=True):
            part = staged.file(file.path.name)
            with naming(part.path), contextlib.closing(OutputFile(part, file.nbytes)) as out:
                for piece in _pieces(file, values):
                    out.append_copy(piece, buffer)
                    done += len(piece)
                    progress(Progress(done, total, 0, 0))
                out.finish()
        publish(*results)


def _pieces(file: _File, values: _Values) -> Iterator[memoryview]:
    header = file.header
    yield memoryview(len(header).to_bytes(8, "little") + header)
    for tensor in file.tensors:
        yield from values.of(tensor)


class _Kind(NamedTuple):
    """How the values of some tensors are distributed: a normal of this mean and standard deviation."""

    mean: float
    sd: float


# By what the key holds, first match. The delta, A times B over rank 450, comes to some 4 % of the weight.
_KINDS = (
    (".lora_A.", _Kind(0.0, 0.02)),
    (".lora_B.", _Kind(0.0, 0.002)),
    ("_norm.", _Kind(1.0, 0.1)),
    ("scale_shift_table", _Kind(0.0, 0.3)),
    ("", _Kind(0.0, 0.02)),
)

_NUMPY = {"BF16": BFLOAT16, "F32": np.dtype("<f4")}

# A prime just under 2^23, so that rows of a tensor larger than the pool do not repeat each other.
_POOL = 8_388_593


class _Values:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._normal = _draw(seed)
        self._pools: dict[tuple[_Kind, str], memoryview] = {}

    def of(self, tensor: TensorSpec) -> Iterator[memoryview]:
        """The tensor's bytes, in pieces of at most the pool's size."""
        pool = self._pool(_kind(tensor.key), tensor.dtype)
        left = _nbytes(tensor)
        start = self._start(tensor.key) * _NUMPY[tensor.dtype].itemsize
        while left:
            piece = pool[start : start + left]
            left -= len(piece)
            start = 0
            yield piece

    def _start(self, key: str) -> int:
        digest = hashlib.sha256(f"{self._seed} {key}".encode()).digest()
        return int.from_bytes(digest[:8], "little") % _POOL

    def _pool(self, kind: _Kind, dtype: str) -> memoryview:
        if (kind, dtype) not in self._pools:
            values = (np.float32(kind.mean) + np.float32(kind.sd) * self._normal).astype(_NUMPY[dtype])
            self._pools[kind, dtype] = values.view(np.uint8).data
        return self._pools[kind, dtype]


def _kind(key: str) -> _Kind:
    return next(kind for part, kind in _KINDS if part in key)


def _draw(seed: int) -> npt.NDArray[np.float32]:
    """A pool of standard normals, each the sum of twelve 16-bit uniforms: integers, so exact on every machine."""
    raw = np.random.PCG64(seed)
    total = np.zeros(_POOL, np.int32)
    for _ in range(12):
        total += raw.random_raw(_POOL // 4 + 1).astype("<u8").view("<u2")[:_POOL]
    return ((total - 6 * 65535) / np.float32(65536)).astype(np.float32)


def _nbytes(tensor: TensorSpec) -> int:
    return math.prod(tensor.shape) * int(_NUMPY[tensor.dtype].itemsize)
