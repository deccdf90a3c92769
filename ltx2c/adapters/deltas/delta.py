"""What the plan and the engines ask of a delta, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ltx2c.files import StoredTensor

Array = npt.NDArray[Any]

KernelTerm = tuple[Array, Array, float]
"""``(A, B, strength)``, as ``ltx2c.fusion`` takes it."""


class LoadedDelta(Protocol):
    """A delta whose tensors have been read."""

    def terms(self, effective_strength: float, rows: slice | None = None) -> Sequence[KernelTerm]:
        """What the kernels fuse, in this order, into ``rows`` of the target; all rows when None."""
        ...


class Delta(Protocol):
    """One module's delta, unread. Compared by identity: a delta is one place in one file.

    Attributes:
        kind: what it is called, such as ``"lora"``.
        module: the module's name as the adapter spells it, namespace removed.
        target: which tensor of the module it enters, such as ``"weight"``.
        shape: of the delta, and of the only targets that it fits.
        tensors: what is read to compute it; the key of the first names the delta within its adapter.
        macs: multiply-adds to fuse it.
        nbytes: of its tensors as stored.
        adapter: the file or folder that it comes from.
    """

    @property
    def kind(self) -> str: ...
    @property
    def module(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def tensors(self) -> tuple[StoredTensor, ...]: ...
    @property
    def macs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def adapter(self) -> Path: ...
    def __hash__(self) -> int: ...

    def effective_strength(self, strength: float) -> float:
        """``strength`` with what the file says of this delta's own, such as alpha.

        Computed in double and rounded to float32 once; a negative zero becomes zero. Infinite beyond float32's range.
        """
        ...

    def strength_reason(self, strength: float) -> str:
        """How the effective strength comes about, in words, for a message."""
        ...

    def load(self) -> LoadedDelta:
        """Read the tensors. Raises OSError where the file cannot be read, RefusedError where it has changed."""
        ...


def rounded_strength(value: float) -> float:
    """An effective strength, computed in double, rounded to float32 once; a negative zero becomes zero."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) + 0.0
