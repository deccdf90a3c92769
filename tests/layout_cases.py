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
RAGGED = (200, 176)  # of no whole blocks of 128 x 128, nor tiles of 128 x 4 scales
Tensors = dict[str, np.ndarray]


def codes(seed: int, dtype: Any = stored.E4M3, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    found = np.random.default_rng(seed).integers(0, 120, shape).astype(np.uint8)
    return (found | np.random.default_rng(seed + 1).integers(0, 2, shape).astype(np.uint8) << 7).view(dtype)


def scales(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-3, 1e-2, shape).astype(np.float32)


def nvfp4(seed: int, shape: tuple[int, int] = SHAPE) -> Tensors:
    rng = np.random.default_rng(seed)
    blocks = rng.uniform(1, 400, (shape[0], shape[1] // 16)).astype(stored.E4M3)
    return {
        "weight": rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8),
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
    shape: tuple[int, int] = SHAPE

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


def swizzled(seed: int) -> Tensors:
    """With scales in tiles of 128 x 4, padded by what is to stay."""
    made = nvfp4(seed, RAGGED)
    return made | {"weight_scale": in_tiles(made["weight_scale"], np.full((256, 12), 0x5A, np.uint8))}


def in_tiles(blocks: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Scales of blocks in swizzled order; ``plain`` is row-major and has the padding."""
    plain[: RAGGED[0], : RAGGED[1] // 16] = blocks.view(np.uint8)
    return stored.swizzled(plain).view(stored.E4M3)


def fuse_swizzled(tensors: Tensors, add: stored.Sum, arithmetic: str) -> tuple[np.ndarray, ...]:
    weight, scales, scale = tensors.values()
    plain = np.empty(scales.shape, np.uint8)
    plain.reshape(-1)[stored.swizzled(np.arange(scales.size).reshape(scales.shape))] = scales.view(np.uint8)
    blocks = plain[: RAGGED[0], : RAGGED[1] // 16].view(stored.E4M3)
    weight, blocks, scale = stored.fuse_nvfp4(weight, blocks, scale, add, arithmetic=arithmetic)
    return weight, in_tiles(blocks, plain), scale


# In shapes whose last granules are not whole.
RAGGED_CASES = {
    "nvfp4-swizzled": Case(swizzled, fuse_swizzled, options={"nvfp4_scales": "swizzled"}, shape=RAGGED),
    "fp8-block, ragged": dataclasses.replace(
        CASES["fp8-block"],
        make=lambda seed: {"weight": codes(seed, shape=RAGGED), "weight_scale_inv": scales(seed, 2, 2)},
        shape=RAGGED,
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
