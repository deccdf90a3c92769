"""The whole main job on made-up inputs, checked by two readers that share no code with it.

Inputs of LTX-2.5's shape are synthesised and fused. Then, through safetensors' own reader, a sample of rows of every
kind of weight is recomputed by the reference, and every tensor that the adapter does not touch is compared whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c import api, inventory, reference, synth
from ltx2c.engines.report import FuseReport
from ltx2c.errors import Ltx2cError
from ltx2c.files.destination import Destination
from ltx2c.progress import OnProgress

FUSED_NAME = "fused.safetensors"
STRENGTH = 0.8

_SAMPLED_ROWS = 16

# A context for the length of the step that it is given the name of, with where to report progress.
Watch = Callable[[str], AbstractContextManager[OnProgress | None]]


class DemoReport(NamedTuple):
    """What was made, fused and found equal."""

    synthesised: synth.SynthReport
    fused: FuseReport
    rows_checked: int
    weights_checked: int
    untouched_checked: int


class MismatchError(Ltx2cError):
    """The fused file is not what the reference makes of its inputs: a bug in ltx2c, or a broken machine."""


def demo(
    folder: str | os.PathLike[str],
    *,
    blocks: int = 1,
    rank: int = inventory.RANK,
    threads: int | None = None,
    watch: Watch = lambda step: nullcontext(),
) -> DemoReport:
    """Synthesise a model and an adapter into ``folder``, fuse them, and check the result.

    Args:
        folder: where base, adapter and result go; they are left there.
        blocks, rank: as ``synth.synth`` takes them.
        threads: as ``fuse_checkpoint`` takes them.
        watch: makes a context for each step, given its name, that yields what to call with its progress, or None.

    Raises:
        RefusedError: a number out of range, too little room for all three files, or a file in the way.
        OSError: as the system raised it.
        MismatchError: the result is wrong.
    """
    synth.check_options(blocks, rank)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    needed = 2 * synth.nbytes(inventory.base_tensors(blocks)) + synth.nbytes(inventory.adapter_tensors(blocks, rank))
    Destination.check(folder / FUSED_NAME, inputs=(), needed_bytes=needed)
    with watch("synth") as progress:
        made = synth.synth(folder, blocks=blocks, rank=rank, progress=progress)
    out = folder / FUSED_NAME
    with watch("fuse") as progress:
        fused = api.fuse_checkpoint(made.base, [(made.adapter, STRENGTH)], out, threads=threads, progress=progress)
    return DemoReport(made, fused, *_check(made, out))


class _Checked(NamedTuple):
    rows: int
    weights: int
    untouched: int


def _check(inputs: synth.SynthReport, out: Path) -> _Checked:
    from safetensors import safe_open  # an import that only a demo pays

    with (
        safe_open(inputs.base, "numpy") as base,
        safe_open(inputs.adapter, "numpy") as adapter,
        safe_open(out, "numpy") as fused,
    ):
        return _compare(base, adapter, fused)


def _compare(base: Any, adapter: Any, fused: Any) -> _Checked:
    keys = list(base.keys())
    if keys != list(fused.keys()):
        raise MismatchError("the fused file's keys are not the base's")
    a_keys = [key for key in list(adapter.keys()) if ".lora_A." in key]
    modules = {_weight_key(key): key for key in a_keys}
    untouched = [key for key in keys if key not in modules]
    for key in untouched:
        _expect_equal(key, fused.get_tensor(key), base.get_tensor(key))
    sampled = {tuple(base.get_slice(key).get_shape()): key for key in keys if key in modules}
    rows = sum(_check_rows(base, adapter, fused, key, modules[key]) for key in sampled.values())
    return _Checked(rows, len(sampled), len(untouched))


def _weight_key(a_key: str) -> str:
    module = a_key.removeprefix(inventory.ADAPTER_PREFIX).removesuffix(".lora_A.weight")
    return f"{inventory.BASE_PREFIX}{module}.weight"


def _check_rows(base: Any, adapter: Any, fused: Any, key: str, a_key: str) -> int:
    weight = base.get_slice(key)
    rows = np.unique(np.linspace(0, weight.get_shape()[0] - 1, _SAMPLED_ROWS).astype(int))
    b = adapter.get_slice(a_key.replace("lora_A", "lora_B"))
    expected = reference.fuse_tensor(_rows(weight, rows), [(adapter.get_tensor(a_key), _rows(b, rows), STRENGTH)])
    _expect_equal(key, _rows(fused.get_slice(key), rows), expected)
    return len(rows)


def _rows(tensor: Any, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([tensor[int(row) : int(row) + 1] for row in rows])


def _expect_equal(key: str, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    if found.dtype != expected.dtype or found.tobytes() != expected.tobytes():
        raise MismatchError(f"{key}: not the bytes that the reference gives")
