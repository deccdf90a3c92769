"""PEFT's kinds of module: what one adapter does to each of a module's tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas import LoadedDelta
from ltx2c.adapters.deltas.full import LoadedFull
from ltx2c.adapters.deltas.loha import LoadedLoHa
from ltx2c.adapters.deltas.lokr import LoadedLoKr
from ltx2c.adapters.deltas.lowrank import LoadedPair
from ltx2c.adapters.deltas.product import folded, product
from ltx2c.arrays import as_array
from ltx2c.errors import RefusedError

Array = npt.NDArray[Any]
Changes = Iterator["Change"]

_DORA = tuple(f"Dora{layer}Variant" for layer in ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d"))


@dataclass(frozen=True)
class Change:
    """A delta onto one tensor, all of it: ``target`` is a matrix over the memory of ``parameter``."""

    parameter: Any
    target: Any
    delta: LoadedDelta
    effective_strength: float
    rows: None = None
    at: int = 0
    step: None = None


def other_kind(kind: str) -> RefusedError:
    """What is not merged here."""
    return RefusedError(f"{kind} is not read here; merge_and_unload() can merge it", code="peft-kind")


# ---- LoRA -----------------------------------------------------------------------------------------------------------


def _linear(module: Any, adapter: str) -> Changes:
    a, b = _matrix(module.lora_A[adapter].weight, "A"), _matrix(module.lora_B[adapter].weight, "B")
    weight, transposed = module.base_layer.weight, module.fan_in_fan_out
    pair = LoadedPair(b.T, a.T) if transposed else LoadedPair(a, b)  # stored [in, out], the delta is A' times B'
    yield _change(module, adapter, weight, weight, pair, by_column=transposed)
    yield from _bias(module, adapter)


def _embedding(module: Any, adapter: str) -> Changes:
    weight = module.base_layer.weight  # [embeddings, dimensions]; DoRA's lengths are of the dimensions
    a, b = _matrix(module.lora_embedding_A[adapter], "A"), _matrix(module.lora_embedding_B[adapter], "B")
    yield _change(module, adapter, weight, weight, LoadedPair(b.T, a.T), by_column=True)


def _conv(module: Any, adapter: str) -> Changes:
    """The kernel of B is a point, so the delta is a product of matrices over [in, kernel...] laid in a row."""
    weight = module.base_layer.weight
    if module.base_layer.groups > 1:
        raise other_kind(f"a convolution of {module.base_layer.groups} groups")
    a, b = _matrix(module.lora_A[adapter].weight, "A"), _matrix(module.lora_B[adapter].weight, "B")
    yield _change(module, adapter, weight, _flat(weight), LoadedPair(a, b))
    yield from _bias(module, adapter)


def _change(
    module: Any, adapter: str, weight: Any, target: Any, pair: LoadedPair, *, by_column: bool = False
) -> Change:
    """A pair onto a weight, with DoRA's lengths where the adapter has them."""
    lengths = _lengths(module, adapter)
    if lengths is None:
        return Change(weight, target, LoadedDelta(pair), module.scaling[adapter])
    expected = target.shape[1] if by_column else target.shape[0]
    if lengths.size != expected:
        raise RefusedError(f"DoRA has {lengths.size} magnitudes for {expected} lengths", code="shape-mismatch")
    return Change(weight, target, LoadedDelta(pair, lengths, by_column), module.scaling[adapter])


def _lengths(module: Any, adapter: str) -> npt.NDArray[np.float32] | None:
    """DoRA's magnitudes; None where the adapter has no variant, a refusal of any other."""
    variant = module.lora_variant.get(adapter)
    if variant is None:
        return None
    variants = sys.modules["peft.tuners.lora.variants"]
    if type(variant) not in [getattr(variants, name, None) for name in _DORA]:
        raise other_kind(type(variant).__name__)
    # PEFT measures the weight without any adapter, which is there no more once another has been merged.
    if module.merged_adapters or next(name for name in module.active_adapters if name in module.scaling) != adapter:
        raise other_kind("DoRA after another adapter of the same module")
    magnitudes = module.lora_magnitude_vector[adapter].weight
    return as_array(magnitudes.reshape(1, -1), "the magnitudes").reshape(-1).astype(np.float32)


def _bias(module: Any, adapter: str) -> Changes:
    if not module.lora_bias.get(adapter):
        return
    bias = getattr(module.base_layer, "bias", None)
    if bias is None:
        raise RefusedError("lora_bias, but the base layer has no bias", code="peft-kind")
    difference = LoadedFull(as_array(module.lora_B[adapter].bias[None], "B's bias"))
    yield Change(bias, bias[None], LoadedDelta(difference), module.scaling[adapter])


# ---- LoHa, LoKr -----------------------------------------------------------------------------------------------------


def _loha(module: Any, adapter: str) -> Changes:
    one, two = (
        _factors(
            getattr(module, f"hada_w{number}_a")[adapter],
            getattr(module, f"hada_w{number}_b")[adapter],
            getattr(module, f"hada_t{number}").get(adapter),
        )
        for number in (1, 2)
    )
    target = _flat(module.base_layer.weight)
    for a, b in (one, two):
        _check_shape(target, a.shape[0], b.shape[1])
    yield Change(module.base_layer.weight, target, LoadedDelta(LoadedLoHa(one, two)), module.scaling[adapter])


def _lokr(module: Any, adapter: str) -> Changes:
    one, two = (_side(module, adapter, number) for number in (1, 2))
    target = _flat(module.base_layer.weight)
    _check_shape(target, *(mine * its for mine, its in zip(one.shape, two.shape, strict=True)))
    yield Change(module.base_layer.weight, target, LoadedDelta(LoadedLoKr(one, two)), module.scaling[adapter])


def _side(module: Any, adapter: str, number: int) -> npt.NDArray[np.float32]:
    """``w1`` or ``w2``, whole or multiplied out."""
    whole = getattr(module, f"lokr_w{number}")
    if adapter in whole:
        return np.ascontiguousarray(_matrix(whole[adapter], f"w{number}"), np.float32)
    a, b = (getattr(module, f"lokr_w{number}_{side}")[adapter] for side in "ab")
    return product(*_factors(a, b, module.lokr_t2.get(adapter) if number == 2 else None), 1)


def _factors(a: Any, b: Any, core: Any) -> tuple[Array, Array]:
    """``(a [rows, rank], b [rank, columns])``; with a core, ``a`` is stored as ``[rank, rows]`` and b takes it in."""
    left, right = _matrix(a, "a"), _matrix(b, "b")
    if core is not None:
        _matrix(core, "the core")
        if core.shape[:2] != (left.shape[0], right.shape[0]):
            raise RefusedError(
                f"the core {list(core.shape)} does not fit {list(a.shape)}, {list(b.shape)}", code="rank-mismatch"
            )
        middle = _matrix(core, "the core").reshape(core.shape)
        left, right = np.ascontiguousarray(left.T), folded(middle, right, 1)
    if left.shape[1] != right.shape[0]:
        raise RefusedError(f"the rank differs: {list(a.shape)} and {list(b.shape)}", code="rank-mismatch")
    return left, right


def _check_shape(target: Any, rows: int, columns: int) -> None:
    if (rows, columns) != tuple(target.shape):
        raise RefusedError(f"the delta is [{rows}, {columns}], the weight {list(target.shape)}", code="shape-mismatch")


# ---- Arrays ---------------------------------------------------------------------------------------------------------


def _matrix(tensor: Any, name: str) -> Array:
    return as_array(tensor.flatten(1), name)


def _flat(weight: Any) -> Any:
    """``[out, the rest]`` over the weight's own memory."""
    if not weight.is_contiguous():
        raise RefusedError(f"the weight's memory format is not contiguous: strides {weight.stride()}", code="layout")
    return weight.flatten(1)


KINDS: Mapping[tuple[str, str], Callable[[Any, str], Changes]] = MappingProxyType(
    {
        ("lora", "Linear"): _linear,
        ("lora", "Embedding"): _embedding,
        ("lora", "Conv1d"): _conv,
        ("lora", "Conv2d"): _conv,
        ("lora", "Conv3d"): _conv,
        ("loha", "Linear"): _loha,
        ("loha", "Conv1d"): _loha,
        ("loha", "Conv2d"): _loha,
        ("lokr", "Linear"): _lokr,
        ("lokr", "Conv2d"): _lokr,  # not Conv1d: PEFT's Kronecker product there mixes rows and kernel places up
    }
)
"""What reads a module, by PEFT's tuner and the class of its layer."""
