"""What the plan and the engines ask of a delta, whatever its kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ltx2c.adapters.deltas.magnitude import Magnitude
from ltx2c.adapters.scaling import Scaling
from ltx2c.dtypes import FUSIBLE
from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.files.url import AnyPath
from ltx2c.terms import KernelTerm

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]

FACTOR_DTYPES = tuple(FUSIBLE)


class Difference(Protocol):
    """A delta's tensors, read: what it comes to for some rows."""

    @property
    def computed(self) -> bool:
        """Whether the rows of a full difference are made when they are asked for: few at a time stay in cache."""
        ...

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """What the kernels fuse, in this order, into ``rows`` of the target as a matrix ``[shape[0], the rest]``.

        Args:
            effective_strength: float32.
            rows: of the target; all when None. A scalar has one row.
            threads: for kinds that are computed first.
        """
        ...


@dataclass(frozen=True, eq=False)
class LoadedDelta:
    """A delta whose tensors have been read.

    Attributes:
        difference: what it comes to.
        lengths: DoRA's, ``float32``, where the module has a magnitude.
        by_column: whether those are of inputs.
        replaces: whether it takes the place of the target's values.
    """

    difference: Difference
    lengths: Float32Array | None = None
    by_column: bool = False
    replaces: bool = False

    @property
    def computed(self) -> bool:
        """As ``Difference.computed``."""
        return self.difference.computed

    def terms(
        self, effective_strength: float, rows: slice | None = None, *, threads: int | None = 1
    ) -> Sequence[KernelTerm]:
        """As ``Difference.terms``."""
        return self.difference.terms(effective_strength, rows, threads=threads)


@dataclass(frozen=True, eq=False)
class Delta(ABC):
    """One module's delta, unread. Compared by identity: a delta is one place in one file.

    Attributes:
        module: the module's name as the adapter spells it, namespace removed.
        target: which tensor of the module it enters, such as ``"weight"``.
        scaling: alpha.
        adapter: the file or folder that it comes from.
        underscored: whether the module's name is written with underscores for dots.
        magnitude: DoRA's, where the module has one.
    """

    module: str
    target: str
    scaling: Scaling
    adapter: AnyPath
    underscored: bool = False
    magnitude: Magnitude | None = None

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is called, such as ``"lora"``."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the delta, and of the targets that it fits; see ``fits``."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[StoredTensor, ...]:
        """What is read to compute it; the key of the first names the delta within its adapter."""

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-adds to fuse it."""

    @abstractmethod
    def read(self) -> Difference:
        """Read its own tensors. Raises as ``load`` does."""

    @property
    def replaces(self) -> bool:
        """Whether it takes the place of the target's values, instead of being added to them."""
        return False

    def load(self) -> LoadedDelta:
        """Read the tensors. Raises OSError where the file cannot be read, RefusedError where it has changed."""
        magnitude = self.magnitude
        return LoadedDelta(
            self.read(),
            lengths=magnitude.read() if magnitude else None,
            by_column=magnitude is not None and magnitude.by_column,
            replaces=self.replaces,
        )

    @property
    def nbytes(self) -> int:
        """Of its tensors as stored."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether it can enter a tensor of this shape.

        A delta that is a matrix fits a convolution of as many numbers per output channel: its columns are the
        kernel's, flattened. Extents of 1 at the end count for nothing.
        """
        if len(self.shape) == 2 and len(shape) >= 2:
            return self.shape == (shape[0], math.prod(shape[1:]))
        return _trimmed(self.shape) == _trimmed(shape)

    def effective_strength(self, strength: float) -> float:
        """``strength`` with what the file says of this delta's own, such as alpha.

        Computed in double and rounded to float32 once; a negative zero becomes zero. Infinite beyond float32's range.
        Under LyCORIS' DoRA alpha alone: there the strength scales the whole step, not the delta in it.
        """
        return self.scaling.of(1.0 if self.magnitude and self.magnitude.scales_the_step else strength)

    def strength_reason(self, strength: float) -> str:
        """How the effective strength comes about, in words, for a message."""
        return self.scaling.reason(strength)


def _trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return tuple(shape[:end])


def check_factor(tensor: StoredTensor, name: str, where: str, *, least: int = 2) -> None:
    """Refuse (``bad-factor``) what cannot be a factor: too few dimensions, empty, or of another dtype."""
    if len(tensor.shape) < least or 0 in tensor.shape or tensor.dtype not in FACTOR_DTYPES:
        raise RefusedError(
            f"{where}: {printable(tensor.key)} cannot be factor {name}: shape {list(tensor.shape)}, dtype "
            f"{tensor.dtype}; a factor is {least}-D or more, not empty, and {', '.join(FACTOR_DTYPES)}",
            code="bad-factor",
        )


def check_rank(one: StoredTensor, rank: int, other: StoredTensor, other_rank: int, where: str) -> None:
    """Refuse (``rank-mismatch``) two factors that do not multiply."""
    if rank != other_rank:
        raise RefusedError(
            f"{where}: the rank differs: {printable(one.key)} {list(one.shape)} has {rank}, {printable(other.key)} "
            f"{list(other.shape)} has {other_rank}",
            code="rank-mismatch",
        )


def matrix(array: Array) -> Array:
    """``[shape[0], the rest]`` of an array of any shape; a scalar has one row and one column."""
    return array.reshape(array.shape[0] if array.ndim else 1, -1)
