"""LTX-2.5-shaped files without LTX-2.5: the real names, dtypes and shapes, with values like trained ones.

For trying things out, for tests and for benchmarks, where what matters is the layout and the range of the values and
not what the model would draw. Values are cut, at a place that depends on the seed and the key, from a pool of
normally distributed numbers drawn once; so the files are written as fast as the disk takes them, in a few hundred MB
of memory, and the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ltx2c import inventory, layouts
from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.files.buffers import new_buffer
from ltx2c.files.destination import Destination
from ltx2c.files.direct import OutputFile
from ltx2c.files.naming import naming
from ltx2c.files.staging import publish, stage
from ltx2c.inventory import TensorSpec
from ltx2c.layouts import StoredWeight
from ltx2c.layouts.nvfp4 import BLOCK as NVFP4_BLOCK
from ltx2c.progress import OnProgress, Progress
from ltx2c.synth_values import Values

BASE_NAME = "base.safetensors"
ADAPTER_NAME = "distilled-lora.safetensors"

BASE_LAYOUTS = {
    "bf16": layouts.PLAIN["BF16"],
    **{name: layouts.LAYOUTS[name] for name in ("fp8", "fp8-scaled", "fp8-row", "fp8-block")},
    "nvfp4": layouts.LAYOUTS["nvfp4-swizzled"],
}

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
    quantised: Mapping[str, StoredWeight] = MappingProxyType({})  # by key; companions follow their weight

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
    layout: str = "bf16",
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
        layout: how the base stores the weights of its linear layers, a name of ``BASE_LAYOUTS``; norms, biases and
            embeddings are as the real one has them. NVFP4's block scales are swizzled, which the metadata says.
        seed: any integer that is not negative. Same seed, same bytes.
        force: replace files that stand there already.
        progress: called after every piece.

    Raises:
        RefusedError: ``out-of-range``, ``bad-choice``, or as ``Destination.check`` says: a file in the way, too little
            room.
        OSError: as the system raised it; neither file is left behind.
    """
    check_options(blocks, rank, seed)
    if kind not in inventory.KIND_TENSORS:
        raise RefusedError(
            f"kind is one of {', '.join(inventory.KIND_TENSORS)}, not {printable(kind)}", code="bad-choice"
        )
    if layout not in BASE_LAYOUTS:
        raise RefusedError(f"layout is one of {', '.join(BASE_LAYOUTS)}, not {printable(layout)}", code="bad-choice")
    files = _files(Path(folder), blocks, rank, kind, layout)
    Path(folder).mkdir(parents=True, exist_ok=True)
    total = sum(file.nbytes for file in files)
    destinations = [Destination.check(file.path, inputs=(), needed_bytes=total, force=force) for file in files]
    _write_all(files, destinations, Values(seed), progress or (lambda now: None), total)
    base, adapter = files
    return SynthReport(base.path, adapter.path, len(base.tensors), len(adapter.tensors), total)


def nbytes(tensors: Iterable[TensorSpec]) -> int:
    """Bytes that the values of ``tensors`` take."""
    return sum(map(_nbytes, tensors))


def _files(folder: Path, blocks: int, rank: int, kind: inventory.Kind, layout: str) -> tuple[_File, _File]:
    return (
        _base(folder / BASE_NAME, blocks, layout),
        _File(
            folder / ADAPTER_NAME,
            list(inventory.adapter_tensors(blocks, rank, kind)),
            {"model_version": inventory.MODEL_VERSION, "lora_rank": str(rank), "lora_alpha": str(rank)},
        ),
    )


def _base(path: Path, blocks: int, layout: str) -> _File:
    tensors: list[TensorSpec] = []
    quantised: dict[str, StoredWeight] = {}
    for tensor in inventory.base_tensors(blocks):
        stored = _quantised(tensor, layout)
        if stored is None:
            tensors.append(tensor)
        else:
            quantised[tensor.key] = stored
            tensors += [TensorSpec(*spec) for spec in stored.outputs]
    metadata = {"model_version": inventory.MODEL_VERSION, "config": json.dumps(inventory.config(blocks))}
    if layout == "nvfp4":
        metadata |= layouts.quantisation_entry({key.removesuffix(".weight"): "nvfp4" for key in quantised})
    return _File(path, tensors, metadata, quantised)


def _quantised(tensor: TensorSpec, layout: str) -> StoredWeight | None:
    """How a tensor is stored in codes; None where it is not."""
    if layout == "bf16" or not layouts.is_quantisable(*tensor):
        return None
    if layout == "nvfp4" and tensor.shape[1] % NVFP4_BLOCK:
        return None
    return layouts.stored_as(BASE_LAYOUTS[layout], tensor.key, tensor.shape)


def check_options(blocks: int, rank: int, seed: int = 0) -> None:
    """Refuse (``out-of-range``) what ``synth`` would."""
    inventory.check_blocks(blocks)
    if rank < 1:
        raise RefusedError(f"rank must be at least 1, not {rank}", code="out-of-range")
    if seed < 0:
        raise RefusedError(f"seed must not be negative, and is {seed}", code="out-of-range")


def _write_all(
    files: Sequence[_File], destinations: Sequence[Destination], values: Values, progress: OnProgress, total: int
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


def _pieces(file: _File, values: Values) -> Iterator[memoryview]:
    header = file.header
    yield memoryview(len(header).to_bytes(8, "little") + header)
    made: set[str] = set()
    for tensor in file.tensors:
        if tensor.key in file.quantised:
            weight = file.quantised[tensor.key]
            made.update(spec.key for spec in weight.outputs)
            yield from values.quantised(weight)
        elif tensor.key not in made:
            yield from values.of(tensor)


def _nbytes(tensor: TensorSpec) -> int:
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].bits // 8
