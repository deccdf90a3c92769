"""How a weight is stored: the words that plan, engines and layouts share.

A layout turns stored codes into values that the kernels fuse, and fused values into codes again. Engines hold the
arrays: the codes of some rows of a weight, and its companions (scales) in whole, copied from the base before anything
is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ltx2c.arithmetic import Arithmetic

Array = npt.NDArray[Any]
Companions = Mapping[str, Array]

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


class Working(NamedTuple):
    """What the kernels see of a layout: the dtype of decoded rows, and what is done to them."""

    dtype: np.dtype[Any]
    arithmetic: Arithmetic


def rounded_sum(arithmetic: Arithmetic) -> Working:
    """Of a layout that encodes the sum as the arithmetic rounds it; what is decoded is rounded alike."""
    return Working(BFLOAT16 if arithmetic.rounds_sum else FLOAT32, arithmetic)


def unrounded_sum(arithmetic: Arithmetic) -> Working:
    """Of a layout that encodes the sum of float32 values and aggregate as it is."""
    return Working(FLOAT32, arithmetic.unrounded)


@dataclass(frozen=True)
class Encoded:
    """What encoding some rows came to; adds up over the parts of a weight.

    Attributes:
        elements: values that were encoded.
        changed: codes that are others than before.
        nonfinite: results that are infinite or NaN where the stored value before was finite.
        unencodable: values of granules for which there is no scale, because one of them is infinite or NaN or all are
            too small. A result with any is refused, whatever the caller allows; what its codes hold means nothing.
    """

    elements: int = 0
    changed: int = 0
    nonfinite: int = 0
    unencodable: int = 0

    def __add__(self, other: Encoded) -> Encoded:
        return Encoded(*(ours + theirs for ours, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


class TensorSpec(NamedTuple):
    """A tensor of an output, by the names of a safetensors header."""

    key: str
    dtype: str
    shape: tuple[int, ...]


class Layout(Protocol):
    """One way to store a weight: a value, given by its name.

    Attributes:
        name: as reports and plans write it, such as ``"fp8-block"``.
        in_place: whether the stored bytes are the values, which the kernels take as they lie.
        granule_rows: rows that are encoded together; a weight is cut at multiples of it.
        whole: whether one scale is for all rows: before any is encoded, all must have been fused and looked at.
        lowest_bits: of a stored byte: flipping them makes of each code a neighbour, one quantisation step away.
    """

    @property
    def name(self) -> str: ...
    @property
    def in_place(self) -> bool: ...
    @property
    def granule_rows(self) -> int: ...
    @property
    def whole(self) -> bool: ...
    @property
    def lowest_bits(self) -> int: ...

    def working(self, arithmetic: Arithmetic) -> Working:
        """What a weight is decoded to and fused as, where a user has chosen ``arithmetic``."""

    def decode(self, codes: Array, companions: Companions, rows: slice, out: Array, threads: int) -> None:
        """Decode some rows.

        Args:
            codes: the stored rows, ``[rows, stored columns]``.
            companions: the whole companions by role, of the base's shape and dtype.
            rows: which rows of the weight these are; they begin at a multiple of ``granule_rows``.
            out: ``[rows, in]``, of the dtype that ``working`` names.
        """

    def encode(
        self, values: Array, codes: Array, companions: Companions, rows: slice, threads: int, largest: int | None = None
    ) -> Encoded:
        """Encode some rows: overwrites ``codes``, which hold what was there before, and their part of ``companions``.

        Args are as for ``decode``; ``values`` are the fused rows, of the dtype that ``working`` names. Where ``whole``,
        they are some of the weight's and ``largest`` is the ``largest_magnitude`` of all of them; or without it, all.
        """


@dataclass(frozen=True)
class StoredWeight:
    """A weight of a checkpoint, and how it is stored.

    Attributes:
        layout: how.
        codes: the tensor of that name; ``codes.shape`` is as stored.
        companions: role -> each tensor that belongs to it and that fusing changes.
        shape: of the values: ``(out, in)`` of a linear layer's weight.
    """

    layout: Layout
    codes: TensorSpec
    companions: Mapping[str, TensorSpec]
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """The weight's name."""
        return self.codes.key

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the fused weight writes: itself, then its companions."""
        return (self.codes, *self.companions.values())
