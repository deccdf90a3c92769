"""Fusing parts of weights where they lie: through the kernels alone, or decoded, fused and encoded again."""

from __future__ import annotations

import contextlib
import math
import queue
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ltx2c import layouts
from ltx2c.arithmetic import KERNEL_ARITHMETICS, Arithmetic
from ltx2c.dtypes import DTYPES
from ltx2c.engines.rows import Rows, fuse_rows
from ltx2c.engines.weights import WeightInWork, row_bytes
from ltx2c.files import StoredTensor
from ltx2c.files.buffers import allocate
from ltx2c.layouts import DeltaSize, Encoded, Loss, measure_delta
from ltx2c.reference import BFLOAT16

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# Decoded values that are worked on at once: enough for the kernels, little enough to stay in the processor's cache.
WORKING_BYTES = 8 << 20


class Part(NamedTuple):
    """Whole rows of a weight, from its byte ``start`` on, as they lie in ``memory``.

    ``out``: where they go, of a weight that is converted; others are fused in place.
    """

    tensor: StoredTensor
    start: int
    weight: WeightInWork
    memory: Bytes
    out: Bytes | None = None

    @property
    def in_place(self) -> bool:
        """Whether the kernels take its bytes as they lie."""
        return self.out is None and self.weight.stored.layout.in_place


class Fused(NamedTuple):
    """What fusing came to, by weight key, only of keys with any.

    Attributes:
        nonfinite: results that are infinite or NaN where the base was finite.
        unencodable: results that the weight's layout has no code for.
        loss: what encoding left of the deltas, of all weights in codes; measured where that is asked for.
    """

    nonfinite: Counter[str]
    unencodable: Counter[str]
    loss: Loss = Loss()

    def plus(self, more: Fused) -> Fused:
        """What both came to."""
        return Fused(self.nonfinite + more.nonfinite, self.unencodable + more.unencodable, self.loss + more.loss)


class Fuser:
    """Fuses for several workers at the same time, each with threads and working memory of its own."""

    def __init__(self, arithmetic: Arithmetic, threads: Iterable[int], *, measure: bool = False) -> None:
        """``threads``: of each worker that calls ``fuse``. ``measure``: what encoding leaves of the deltas."""
        self._arithmetic = arithmetic
        self._measure = measure
        self._workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for share in threads:
            self._workers.put(_Worker(share))

    def fuse(self, parts: Sequence[Part]) -> Fused:
        """Fuse parts where they lie, with a worker that is not at work. Their weights have been loaded."""
        if not parts:
            return Fused(Counter(), Counter())
        with self._worker() as worker:
            fused = self._fuse_in_place([part for part in parts if part.in_place], worker)
            total = Loss()
            for part in parts:
                if not part.in_place:
                    loss = self._recode(part, worker) if part.out is None else self._convert(part, part.out, worker)
                    fused.nonfinite[part.tensor.key] += loss.encoded.nonfinite
                    fused.unencodable[part.tensor.key] += loss.encoded.unencodable
                    total += loss
        return Fused(+fused.nonfinite, +fused.unencodable, total if self._measure else Loss())

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        worker = self._workers.get()
        try:
            yield worker
        finally:
            self._workers.put(worker)

    def _fuse_in_place(self, parts: Sequence[Part], worker: _Worker) -> Fused:
        rows = []
        for part in parts:
            values = _stored_rows(part)
            rows.append(Rows(values, _rows(part, len(values)).start, part.weight.loaded))
        counts = fuse_rows(rows, worker.threads, self._arithmetic)
        nonfinite: Counter[str] = Counter()
        for part, count in zip(parts, counts, strict=True):
            nonfinite[part.tensor.key] += count
        return Fused(nonfinite, Counter())

    def _recode(self, part: Part, worker: _Worker) -> Loss:
        weight, codes = part.weight, _stored_rows(part)
        layout, columns = weight.stored.layout, math.prod(weight.stored.shape[1:])
        working = layout.working(self._arithmetic.name)
        granules = max(1, WORKING_BYTES // (layout.granule_rows * columns * working.dtype.itemsize))
        step = len(codes) if weight.whole else granules * layout.granule_rows
        values = worker.working((len(codes) if layout.whole else min(step, len(codes)), columns), working.dtype)
        rows = _rows(part, len(codes))
        loss = Loss()
        for begin in range(0, len(codes), step):
            some = slice(begin, min(begin + step, len(codes)))
            of_weight = slice(rows.start + some.start, rows.start + some.stop)
            decoded = values[some] if layout.whole else values[: some.stop - some.start]
            layout.decode(codes[some], weight.companions, of_weight, decoded, worker.threads)
            part_of = Rows(decoded, of_weight.start, weight.loaded)
            fuse_rows([part_of], worker.threads, KERNEL_ARITHMETICS[working.arithmetic])
            if not layout.whole:
                loss += self._encode(weight, decoded, codes[some], of_weight, worker)
        if layout.whole:
            loss += self._encode(weight, values, codes, rows, worker)
        return loss

    def _convert(self, part: Part, out: Bytes, worker: _Worker) -> Loss:
        """Decode, fuse and encode in another layout. Where ``out`` overlaps what is decoded, it begins before that."""
        weight, codes = part.weight, _stored_rows(part)
        source, target = weight.stored, weight.written
        results = _as_rows(out, target.codes.dtype, len(codes))
        columns, rows = math.prod(source.shape[1:]), _rows(part, len(codes))
        working = layouts.working(source, target, self._arithmetic.name)
        granules = max(1, WORKING_BYTES // (source.layout.granule_rows * columns * working.dtype.itemsize))
        whole = weight.whole or target.layout.whole
        step = len(codes) if whole else granules * source.layout.granule_rows
        values = worker.working((min(step, len(codes)), columns), working.dtype)
        encoded = Encoded()
        for begin in range(0, len(codes), step):
            some = slice(begin, min(begin + step, len(codes)))
            of_weight = slice(rows.start + some.start, rows.start + some.stop)
            decoded = values[: some.stop - some.start]
            source.layout.decode(codes[some], weight.companions, of_weight, decoded, worker.threads)
            fused = [Rows(decoded, of_weight.start, weight.loaded)]
            (nonfinite,) = fuse_rows(fused, worker.threads, KERNEL_ARITHMETICS[working.arithmetic])
            if working.arithmetic == "ltx" and working.dtype != BFLOAT16:
                layouts.round_to_bf16(decoded, worker.threads)  # rows that nothing enters too
            found = layouts.convert(target.layout, decoded, results[some], weight.results, of_weight, worker.threads)
            encoded += Encoded(0, 0, found.nonfinite + nonfinite, found.unencodable)
        return Loss(encoded)

    def _encode(self, weight: WeightInWork, values: Array, codes: Array, rows: slice, worker: _Worker) -> Loss:
        layout, companions = weight.stored.layout, weight.companions
        size = measure_delta(layout, values, codes, companions, rows) if self._measure else DeltaSize()
        return Loss(layout.encode(values, codes, companions, rows, worker.threads), size)


class _Worker:
    """Threads, and memory for decoded values that grows as it is needed."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory = allocate(0)

    def working(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self._memory.size:
            self._memory = allocate(nbytes)
        return self._memory[:nbytes].view(dtype).reshape(shape)


def _stored_rows(part: Part) -> Array:
    return _as_rows(part.memory, part.tensor.dtype, len(part.memory) // row_bytes(part.tensor))


def _as_rows(memory: Bytes, name: str, rows: int) -> Array:
    dtype = DTYPES[name].numpy
    assert dtype is not None
    return memory.view(dtype).reshape(rows, -1)


def _rows(part: Part, count: int) -> slice:
    first = part.start // row_bytes(part.tensor)
    return slice(first, first + count)
