"""Weights in codes, a layout each, with what the reference makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from goldens import bits

from ltx2c import Checkpoint, reference
from ltx2c.layouts import reference as stored

SHAPE = (256, 192)
Tensors = dict[str, np.ndarray]


def codes(seed: int, dtype: Any = stored.E4M3) -> np.ndarray:
    found = np.random.default_rng(seed).integers(0, 120, SHAPE).astype(np.uint8)
    return (found | np.random.default_rng(seed + 1).integers(0, 2, SHAPE).astype(np.uint8) << 7).view(dtype)


def scales(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-3, 1e-2, shape).astype(np.float32)


def nvfp4(seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    blocks = rng.uniform(1, 400, (SHAPE[0], SHAPE[1] // 16)).astype(stored.E4M3)
    return {
        "weight": rng.integers(0, 256, (SHAPE[0], SHAPE[1] // 2)).astype(np.uint8),
        "weight_scale": blocks,
        "weight_scale_2": np.array(2e-4, np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout: tensors of one weight by their last name, and how the reference fuses them."""

    make: Callable[[int], Tensors]
    fuse: Callable[[Tensors, stored.Sum, str], tuple[np.ndarray, ...]]
    wide: bool = False
    options: dict[str, str] = dataclasses.field(default_factory=dict)

    def expected(self, tensors: Tensors, terms: list, arithmetic: str) -> Tensors:
        def in_f32(decoded: np.ndarray) -> np.ndarray:
            return reference.fuse_tensor(decoded, terms, arithmetic="f32")

        aggregate = reference.aggregate(terms)
        through = stored.wide_sum(aggregate) if self.wide else stored.bf16_sum(aggregate)
        fused = self.fuse(tensors, in_f32 if arithmetic == "f32" else through, arithmetic)
        return dict(zip(tensors, fused, strict=True))


CASES = {
    "fp8": Case(lambda seed: {"weight": codes(seed)}, lambda t, add, _: (stored.fuse_fp8_cast(t["weight"], add),)),
    "fp8-e5m2": Case(
        lambda seed: {"weight": codes(seed, stored.E5M2)}, lambda t, add, _: (stored.fuse_fp8_cast(t["weight"], add),)
    ),
    "fp8-scaled": Case(
        lambda seed: {"weight": codes(seed), "weight_scale": scales(seed, 1)},
        lambda t, add, _: stored.fuse_fp8_scaled(*t.values(), add),
        wide=True,
    ),
    "fp8-row": Case(
        lambda seed: {"weight": codes(seed), "weight_scale": scales(seed, SHAPE[0], 1)},
        lambda t, add, _: stored.fuse_fp8_row(*t.values(), add),
        wide=True,
    ),
    "fp8-block": Case(
        lambda seed: {"weight": codes(seed), "weight_scale_inv": scales(seed, 2, 2)},
        lambda t, add, arithmetic: stored.fuse_fp8_block(*t.values(), add, arithmetic=arithmetic),
    ),
    "nvfp4": Case(
        nvfp4,
        lambda t, add, arithmetic: stored.fuse_nvfp4(*t.values(), add, arithmetic=arithmetic),
        options={"nvfp4_scales": "linear"},
    ),
}


def flat(by_module: dict[str, Tensors]) -> Tensors:
    return {f"{module}.{name}": value for module, tensors in by_module.items() for name, value in tensors.items()}


def assert_holds(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and found[key].shape == value.shape, key
        assert np.array_equal(bits(found[key]), bits(value)), key


def read(path: Path) -> Tensors:
    with Checkpoint.open(path) as checkpoint:
        return {key: tensor.read() for key, tensor in checkpoint.tensors.items()}
