"""How two tensors' bytes differ, and what the differences of a whole checkpoint look like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c.dtypes import DTYPES
from ltx2c.layouts import PLAIN

# Another tool that sums in another order differs in about one element in 300,000 of trained weights, by one step.
# Another base, adapter or strength changes nearly all elements of a tensor. Below this share of them it is neither.
_FEW = 1e-3
_CHUNK = 1 << 18

# Dtypes whose values have a next one.
_ORDERED = (*PLAIN, "F8_E4M3", "F8_E5M2")


class Compared(NamedTuple):
    """Of ``elements`` compared, ``differing`` have other bits; ``one_step`` of these the next value or code."""

    elements: int
    differing: int
    one_step: int


@dataclass(frozen=True)
class KeyDifference:
    """A tensor of which bytes differ.

    Attributes:
        key: its name.
        fused: whether an adapter touches it.
        elements, differing: how many were compared, and how many of them have other bits.
        one_step: how many of those are the neighbouring bfloat16 value, or FP8 code; 0 for dtypes that are never fused.
    """

    key: str
    fused: bool
    elements: int
    differing: int
    one_step: int


def compare(ours: memoryview, theirs: memoryview, dtype: str) -> Compared:
    """Compare two stretches of the same tensor, as stored. Elements narrower than a byte are compared byte by byte."""
    bits = max(8, DTYPES[dtype].bits if DTYPES[dtype].numpy is not None else 8)
    if bits == 128 or len(ours) % (bits // 8):
        bits = 8
    one, other = (np.frombuffer(data, f"u{bits // 8}") for data in (ours, theirs))
    differing = one_step = 0
    for at in range(0, len(one), _CHUNK):  # in parts, so that intermediate arrays stay in the processor's cache
        part = slice(at, at + _CHUNK)
        differ = one[part] != other[part]
        if count := int(np.count_nonzero(differ)):
            differing += count
            one_step += _one_step(one[part][differ], other[part][differ], dtype)
    return Compared(len(one), differing, one_step)


def _one_step(one: npt.NDArray[Any], other: npt.NDArray[Any], dtype: str) -> int:
    """How many pairs of stored values are neighbours as bfloat16 (or the same one, in a wider dtype).

    None of values that are not whole elements.
    """
    kind = DTYPES[dtype].numpy
    if kind is None or dtype not in _ORDERED or kind.itemsize != one.itemsize:
        return 0
    order = _fp8_order if kind.itemsize == 1 else _bf16_order
    first, second = (order(values.view(kind)) for values in (one, other))
    return int(np.count_nonzero(np.abs(first - second) <= 1))


def _bf16_order(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Integers in the order of the values, one apart for neighbouring bfloat16 numbers; both zeros are 0."""
    bits = (values.astype(np.float32).view(np.int32)) >> 16
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def _fp8_order(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Likewise for FP8 codes, which are a sign and a magnitude."""
    bits = values.view(np.uint8).astype(np.int32)
    return np.where(bits & 0x80, -(bits & 0x7F), bits)


def likely_cause(structure: Sequence[str], differences: Iterable[KeyDifference]) -> str:
    """What differences look like, in words for a person; empty where there are none."""
    differences = list(differences)
    if structure:
        return "keys, dtypes or shapes differ"
    if not differences:
        return ""
    few = all(difference.differing <= max(1, _FEW * difference.elements) for difference in differences)
    if few and any(difference.one_step < difference.differing for difference in differences):
        return "few elements differ, by more than a step: damaged?"
    if not all(difference.fused for difference in differences):
        return (
            "tensors that no adapter touches differ: made from another base, or with adapters that touch more weights"
        )
    if few:
        return "few elements differ, by one bfloat16 step: another tool's rounding of the same fuse"
    return "many elements differ: another adapter, strength, order of adapters or arithmetic"
