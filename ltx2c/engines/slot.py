"""Where one tensor lives in resident memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c.dtypes import DTYPES, FUSIBLE
from ltx2c.engines.arena import Bytes
from ltx2c.files import StoredTensor

# Dtypes that ``widen`` turns into float32.
WIDENED = tuple(dtype.name for dtype in FUSIBLE.values() if dtype.bits < np.finfo(np.float32).bits)

_WIDEN_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Slot:
    """One tensor's place.

    A widened tensor is read and fused in its stored dtype in the last half of its place and then widened over the
    whole of it, so that no second buffer is needed.
    """

    stored: StoredTensor
    memory: Bytes
    widened: bool

    @property
    def narrow(self) -> npt.NDArray[Any]:
        """The tensor in its stored dtype, as it is read and fused."""
        return self._shaped(self.narrow_bytes, DTYPES[self.stored.dtype].numpy)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The tensor as it is handed out."""
        return self._shaped(self.memory, np.dtype(np.float32)) if self.widened else self.narrow

    def read(self) -> None:
        """Bring in the base's bytes; ``settle`` must follow. Raises as ``StoredTensor.read_into`` does."""
        self.stored.read_into(self.narrow_bytes)

    def settle(self) -> None:
        """Widen, if that is asked for, what ``read`` and a fuse left. Exact: every bf16 and f16 is a float32."""
        if not self.widened:
            return
        wide, narrow = self.memory.view(np.float32), self.narrow.reshape(-1)
        # Front to back, a chunk ends at or before the narrow values that are still to come; NumPy sees to the overlap
        # within a chunk.
        for start in range(0, wide.size, _WIDEN_CHUNK):
            part = slice(start, start + _WIDEN_CHUNK)
            wide[part] = narrow[part]

    @property
    def narrow_bytes(self) -> Bytes:
        """The bytes of ``narrow``."""
        return self.memory[self.memory.size - self.stored.nbytes :]

    def _shaped(self, data: Bytes, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
        return data if dtype is None else data.view(dtype).reshape(self.stored.shape)


def is_widened(stored: StoredTensor, widen: bool) -> bool:
    """Whether the tensor is held as float32 where widening is asked for."""
    return widen and stored.dtype in WIDENED


def slot_bytes(stored: StoredTensor, widen: bool) -> int:
    """What the tensor takes in resident memory."""
    return stored.nbytes * 2 if is_widened(stored, widen) else stored.nbytes
