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
from ltx2c.arithmetic import Arithmetic
from ltx2c.dtypes import DTYPES
from ltx2c.engines.rows import Rows, fuse_rows
from ltx2c.engines.weights import FusedValues, WeightInWork, row_bytes
from ltx2c.files import StoredTensor
from ltx2c.files.buffers import allocate
from ltx2c.layouts import DeltaSize, Encoded, Loss, Working, largest_magnitude, measure_delta
from ltx2c.reference import BFLOAT16

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# Decoded values that are worked on at once: enough for the kernels, little enough to stay in the processor's cache.
WORKING_BYTES = 8 << 20

# Of these, what is worth one more thread.
THREAD_BYTES = 256 << 10

# So many times as much is kept of what a first pass over a weight computes, beside what was computed last, so that the
# second need not do it again: with that all of 4096 x 4096 values in bfloat16.
KEPT = 3


class Part(NamedTuple):
    """Whole rows of a weight, from its byte ``start`` on, as they lie in ``memory``.

    Attributes:
        out: where they go, of a weight that is converted; others are fused in place.
        first_pass: whether they are only looked at, for the scale of all rows, and come again.
    """

    tensor: StoredTensor
    start: int
    weight: WeightInWork
    memory: Bytes
    out: Bytes | None = None
    first_pass: bool = False

    @property
    def in_place(self) -> bool:
        """Whether the kernels take its bytes as they lie."""
        return not self.first_pass and self.out is None and self.weight.stored.layout.in_place


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
        self._rooms = _Rooms()
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
                if part.first_pass:
                    self._look_through(part, worker)
                elif not part.in_place:
                    loss = self._encode(part, worker)
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
            rows.append(Rows(values, part.start // row_bytes(part.tensor), part.weight.loaded))
        counts = fuse_rows(rows, worker.threads, self._arithmetic)
        nonfinite: Counter[str] = Counter()
        for part, count in zip(parts, counts, strict=True):
            nonfinite[part.tensor.key] += count
        return Fused(nonfinite, Counter())

    def _look_through(self, part: Part, worker: _Worker, *, to_be_encoded: bool = False) -> None:
        """The first of two passes: find the largest magnitude, and keep values for the second as far as there is room.

        ``to_be_encoded``: next, from the last rows on, which then may stay in the worker's own memory.
        """
        codes, first_pass = _stored_rows(part), part.weight.first_pass
        for some in self._chunks(part, codes):
            values = self._values(part, codes, some, worker, self._rooms.take())
            largest = largest_magnitude(values.array, worker.threads_for(values.array.nbytes))
            first_pass.add(largest, row_bytes(part.tensor) * len(values.array))
            if values.room is not None or (to_be_encoded and some.stop == len(codes)):
                first_pass.kept[_rows(part, some).start] = values

    def _encode(self, part: Part, worker: _Worker) -> Loss:
        """Decode, fuse, and encode where the codes lie or, of a weight that is converted, at ``part.out``."""
        weight, codes = part.weight, _stored_rows(part)
        results = codes if part.out is None else _as_rows(part.out, weight.written.codes.dtype, len(codes))
        if weight.written.layout.whole and not weight.first_pass.nbytes:
            self._look_through(part, worker, to_be_encoded=True)
        loss = Loss()
        for some in reversed(self._chunks(part, codes)):
            rows = _rows(part, some)
            values = weight.first_pass.kept.pop(rows.start, None) or self._values(part, codes, some, worker)
            loss += self._encoded(weight, values, results[some], rows, worker)
            self._rooms.give_back(values.room)
        return loss

    def _chunks(self, part: Part, codes: Array) -> list[slice]:
        """Rows of a part that are worked on at once: whole granules."""
        granule, columns = part.weight.stored.layout.granule_rows, math.prod(part.weight.stored.shape[1:])
        granules = WORKING_BYTES // (granule * columns * self._working(part.weight).dtype.itemsize)
        step = len(codes) if part.weight.whole else max(1, granules) * granule
        return [slice(begin, min(begin + step, len(codes))) for begin in range(0, len(codes), step)]

    def _values(self, part: Part, codes: Array, some: slice, worker: _Worker, room: Bytes | None = None) -> FusedValues:
        """Decode some of a part's rows and fuse them, in ``room``, which is given back if it is too small."""
        weight, rows, working = part.weight, _rows(part, some), self._working(part.weight)
        shape = (some.stop - some.start, math.prod(weight.stored.shape[1:]))
        nbytes = math.prod(shape) * working.dtype.itemsize
        if room is not None and len(room) < nbytes:
            self._rooms.give_back(room)
            room = None
        values = (worker.memory(nbytes) if room is None else room[:nbytes]).view(working.dtype).reshape(shape)
        threads = worker.threads_for(nbytes)
        weight.stored.layout.decode(codes[some], weight.companions, rows, values, threads)
        fused = [Rows(values, rows.start, weight.loaded)]
        (nonfinite,) = fuse_rows(fused, threads, working.arithmetic)
        if working.arithmetic.rounds_sum and working.dtype != BFLOAT16:
            layouts.round_to_bf16(values, threads)  # rows that nothing enters too
        return FusedValues(values, nonfinite, room)

    def _working(self, weight: WeightInWork) -> Working:
        return layouts.working(weight.stored, weight.written, self._arithmetic)

    def _encoded(self, weight: WeightInWork, values: FusedValues, codes: Array, rows: slice, worker: _Worker) -> Loss:
        layout, threads = weight.written.layout, worker.threads_for(values.array.nbytes)
        largest = weight.first_pass.largest if layout.whole else None
        if weight.converted:
            found = layouts.convert(layout, values.array, codes, weight.results, rows, threads, largest)
            return Loss(Encoded(0, 0, found.nonfinite + values.nonfinite, found.unencodable))
        size = DeltaSize()
        if self._measure:
            size = measure_delta(layout, values.array, codes, weight.companions, rows)
        return Loss(layout.encode(values.array, codes, weight.results, rows, threads, largest), size)


class _Rooms:
    """Memory for values that are kept from a first pass to the second, for whichever worker asks first."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        for _ in range(KEPT):
            self._free.put(None)

    def take(self) -> Bytes | None:
        """``WORKING_BYTES``, or None where all is in use."""
        try:
            room = self._free.get_nowait()
        except queue.Empty:
            return None
        return allocate(WORKING_BYTES) if room is None else room

    def give_back(self, room: Bytes | None) -> None:
        """What ``take`` gave."""
        if room is not None:
            self._free.put(room)


class _Worker:
    """Threads, and memory for decoded values that grows as it is needed."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory: Bytes = allocate(0)

    def threads_for(self, nbytes: int) -> int:
        """How many are worth waking for so many bytes of values."""
        return max(1, min(self.threads, nbytes // THREAD_BYTES))

    def memory(self, nbytes: int) -> Bytes:
        """The same at each call."""
        if nbytes > self._memory.size:
            self._memory = allocate(nbytes)
        return self._memory[:nbytes]


def _stored_rows(part: Part) -> Array:
    return _as_rows(part.memory, part.tensor.dtype, len(part.memory) // row_bytes(part.tensor))


def _as_rows(memory: Bytes, name: str, rows: int) -> Array:
    dtype = DTYPES[name].numpy
    assert dtype is not None
    return memory.view(dtype).reshape(rows, -1)


def _rows(part: Part, some: slice) -> slice:
    """Which rows of the weight some of the part's are."""
    first = part.start // row_bytes(part.tensor)
    return slice(first + some.start, first + some.stop)
