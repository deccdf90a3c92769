"""The inventory expands to exactly the published files."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from ltx2c import inventory, plan_fuse
from ltx2c.inventory import TensorSpec


def digest(tensors: Iterable[TensorSpec]) -> str:
    """SHA-256 over lines of key, dtype and shape, in order."""
    lines = (f"{key} {dtype} {'x'.join(map(str, shape))}\n" for key, dtype, shape in tensors)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def parameters(tensors: Iterable[TensorSpec]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors)


def test_the_whole_base_is_the_published_one() -> None:
    tensors = list(inventory.base_tensors())

    assert len(tensors) == 4349
    assert parameters(tensors) == 21_004_025_600
    assert Counter(tensor.dtype for tensor in tensors) == {"BF16": 4059, "F32": 290}
    assert digest(tensors) == "75bd3e59c9c8a5eb323c0f0e08ba0e197cfea40f0bfd8e4487d41cc24bd08cb8"


def test_the_whole_adapter_is_the_published_one() -> None:
    tensors = list(inventory.adapter_tensors())
    factors_a, factors_b = tensors[0::2], tensors[1::2]

    assert len(factors_a) == len(factors_b) == 1660
    assert parameters(tensors) == 4_449_681_408
    assert Counter(a.shape[0] for a in factors_a) == {450: 1360, 32: 288, 256: 8, 128: 4}
    macs = sum(b.shape[0] * a.shape[0] * a.shape[1] for a, b in zip(factors_a, factors_b, strict=True))
    assert macs == 8_526_382_497_792
    assert digest(tensors) == "a83241ce3a88beaa56913f171d6d504353dcbad35d7d03773f26e06da1e6eb35"


@pytest.mark.parametrize("blocks", [1, 2, 6, 47])
def test_fewer_blocks_are_a_part_of_the_whole(blocks: int) -> None:
    whole = set(inventory.base_tensors())
    part = list(inventory.base_tensors(blocks))

    assert set(part) <= whole
    assert len({key.split(".")[3] for key, *_ in part if ".transformer_blocks." in key}) == blocks


def test_every_pair_has_its_weight_in_the_base() -> None:
    shapes = {tensor.key: tensor.shape for tensor in inventory.base_tensors(1)}
    tensors = list(inventory.adapter_tensors(1, rank=16))

    for a, b in zip(tensors[0::2], tensors[1::2], strict=True):
        weight = "model." + a.key.replace(".lora_A.weight", ".weight")
        assert shapes[weight] == (b.shape[0], a.shape[1])
        assert b.key == a.key.replace("lora_A", "lora_B")
        assert a.shape[0] == b.shape[1] == 16


@pytest.mark.parametrize("kind", inventory.KIND_TENSORS)
def test_adapters_of_every_kind_fit_the_whole_base(tmp_path: Path, kind: inventory.Kind) -> None:
    def hollow(path: Path, tensors: Iterable[inventory.TensorSpec]) -> Path:
        header, end = {}, 0
        for key, dtype, shape in tensors:
            begin, end = end, end + math.prod(shape) * {"BF16": 2, "F32": 4}[dtype]
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
        text = json.dumps(header).encode()
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return path

    base = hollow(tmp_path / "base.safetensors", inventory.base_tensors(1))
    adapter = hollow(tmp_path / "adapter.safetensors", inventory.adapter_tensors(1, 64, kind))
    plan = plan_fuse(base, [(adapter, 1.0)])
    assert plan.adapters[0].deltas == plan.adapters[0].deltas_fused == len(plan.fusions)
    assert len(plan.fusions) == len(list(inventory.adapter_tensors(1))) // 2
