"""Units: parts of a result that are made alone, in any order, by anybody, and come to the same bytes.

A unit is a byte range of an output file. What is fused is cut between rows, or granules of a layout, or not at all
where all rows are needed at once. So a range of any bytes is made of more than it holds, and cut.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ltx2c.engines.blocks import Block, Piece, cut, gather
from ltx2c.engines.fuser import Fused
from ltx2c.engines.pipeline import BLOCK_BYTES
from ltx2c.engines.stream import Stream
from ltx2c.engines.weights import WeightInWork, row_bytes, work_of
from ltx2c.errors import RefusedError, printable
from ltx2c.files.header import PAGE
from ltx2c.files.layout import FileLayout, OutputLayout, Placed
from ltx2c.layouts import StoredWeight
from ltx2c.plan.opened import OpenedPlan

Put = Callable[[str, int, memoryview], None]
"""Takes bytes of the file of that name, from an offset on; they are gone when it returns."""

Nothing = Callable[[], None]


class Unit(NamedTuple):
    """Bytes of an output file, from ``begin`` to ``end``."""

    file: str
    begin: int
    end: int


class _Span(NamedTuple):
    """Bytes of a tensor of the base."""

    start: int
    stop: int


class UnitFuser:
    """Makes units of one result, one after the other, over the same buffers."""

    def __init__(self, opened: OpenedPlan, layout: OutputLayout, threads: int, *, measure: bool = False) -> None:
        """``threads``: to compute with. ``measure``: as for ``Fuser``."""
        self._work = work_of(opened)
        self._stream = Stream(self._work, threads, block_bytes=self._work.block_bytes(BLOCK_BYTES), measure=measure)
        self._files = {file.name: file for file in layout.files}
        self._places = {
            placed.tensor.key: (file.name, placed.begin) for file in layout.files for placed in file.tensors
        }
        self._companions = self._work.companions

    def cut(self, count: int) -> list[Unit]:
        """Cut the tensors' bytes into about ``count`` units of about equal size, at least one for each file.

        Of what is fused nothing is in two units that could not be made apart. The headers are in none.
        """
        total = sum(file.size - len(file.header) for file in self._files.values())
        return [unit for file in self._files.values() for unit in self._cut_file(file, max(1, total // max(1, count)))]

    def _cut_file(self, file: FileLayout, unit_bytes: int) -> Iterator[Unit]:
        begin, size = len(file.header), file.size
        count = max(1, round((size - begin) / unit_bytes))
        targets = [begin + (size - begin) * number // count for number in range(1, count)]
        ends: list[int] = []
        at = iter(targets)
        target = next(at, None)
        for placed in file.tensors:
            while target is not None and target < placed.begin + placed.tensor.nbytes:
                ends.append(self._boundary(placed, target))
                target = next(at, None)
        for end in [*ends, size]:
            if end > begin:
                yield Unit(file.name, begin, end)
                begin = end

    def _boundary(self, placed: Placed, offset: int) -> int:
        """Where a file can be cut at or before ``offset``, which lies in a tensor."""
        tensor, begin = placed
        if tensor.key in self._work.fusions:
            unit = self._work.written_bytes(tensor.key, self._work.unit_bytes(tensor.key))
            return begin + (offset - begin) // unit * unit
        if tensor.key in self._companions and tensor.key not in self._work.tensors:
            return begin
        return max(begin, offset // PAGE * PAGE)

    def make(self, unit: Unit, put: Put, done: Nothing = lambda: None) -> Fused:
        """Make a unit that ``cut`` gave, and with its weights their companions, wherever those lie.

        Args:
            put: takes the bytes, in an order that is always the same. Companions in the unit's range, which belong to
                weights in other units or in this one, come with their weights alone.
            done: called now and then.

        Returns:
            What fusing came to.

        Raises as ``StoredTensor.read`` does.
        """
        spans = {}
        for tensor, begin in self._overlapping(unit):
            if tensor.key not in self._companions:
                span = _Span(max(0, unit.begin - begin), min(tensor.nbytes, unit.end - begin))
                spans[tensor.key] = self._of_base(tensor.key, span)
        return self._fuse(spans, put, done)

    def read(self, unit: Unit) -> bytearray:
        """The bytes of any range of a file, its header included. Raises as ``StoredTensor.read`` does."""
        found = bytearray(unit.end - unit.begin)

        def put(file: str, offset: int, data: memoryview) -> None:
            low, high = max(unit.begin, offset), min(unit.end, offset + len(data))
            if file == unit.file and low < high:
                found[low - unit.begin : high - unit.begin] = data[low - offset : high - offset]

        put(unit.file, 0, memoryview(self._files[unit.file].header))
        self._fuse(self._needed(unit), put, lambda: None)
        return found

    def _overlapping(self, unit: Unit) -> Iterator[Placed]:
        for placed in self._files[unit.file].tensors:
            if placed.tensor.nbytes and placed.begin < unit.end and unit.begin < placed.begin + placed.tensor.nbytes:
                yield placed

    def _needed(self, unit: Unit) -> dict[str, _Span]:
        """What of the base's tensors is to be read and fused for a range of any bytes."""
        spans: dict[str, _Span] = {}
        for tensor, begin in self._overlapping(unit):
            key, span = tensor.key, _Span(max(0, unit.begin - begin), min(tensor.nbytes, unit.end - begin))
            if key in self._companions:
                written = self._companions[key]
                key, span = written.key, self._behind(written, key, span)
            else:
                span = self._of_base(key, span)
            if key in self._work.fusions:
                whole = self._work.unit_bytes(key)
                stop = min(self._work.tensors[key].nbytes, -(-span.stop // whole) * whole)
                span = _Span(span.start // whole * whole, stop)
            known = spans.get(key, span)
            spans[key] = _Span(min(known.start, span.start), max(known.stop, span.stop))
        return spans

    def _of_base(self, key: str, span: _Span) -> _Span:
        """The base's bytes that some bytes of a tensor come from: whole rows where it is converted."""
        if key not in self._work.fusions:
            return span
        way, source = self._work.way(key), self._work.tensors[key]
        if way.stored.layout == way.written.layout:
            return span
        row = self._work.written_bytes(key, row_bytes(source))
        return _Span(span.start // row * row_bytes(source), -(-span.stop // row) * row_bytes(source))

    def _behind(self, written: StoredWeight, companion: str, span: _Span) -> _Span:
        """The bytes of a weight that some bytes of its companion come from."""
        weight = self._work.tensors[written.key]
        if written.layout.whole:
            return _Span(0, weight.nbytes)
        scale = row_bytes(self._work.tensors[companion])
        granule = row_bytes(weight) * written.layout.granule_rows
        return _Span(span.start // scale * granule, min(weight.nbytes, -(-span.stop // scale) * granule))

    def _fuse(self, spans: dict[str, _Span], put: Put, done: Nothing) -> Fused:
        total = Fused(Counter(), Counter())
        blocks = self._stream.run(gather(self._pieces(spans), self._work, self._stream.block_bytes))
        with contextlib.closing(blocks):
            for block, buffer, fused in blocks:
                total = total.plus(fused)
                for file, offset, data in self._runs(block, buffer):
                    put(file, offset, data)
                for piece in block.pieces:
                    if piece.weight is not None and not piece.first_pass:
                        self._put_companions(piece, piece.weight, put)
                done()
        return total

    def _pieces(self, spans: dict[str, _Span]) -> Iterator[tuple[Piece, int]]:
        for key, (start, stop) in spans.items():
            weight = self._work.begin(key, stop - start)
            whole = Piece(self._work.tensors[key], start, stop - start, weight)
            for piece in cut(whole, self._work, self._stream.block_bytes):
                yield piece, self._places[key][1] + piece.begin

    def _runs(self, block: Block, buffer: memoryview) -> Iterator[tuple[str, int, memoryview]]:
        """A block's bytes as they lie in the result, adjoining pieces joined."""
        file, offset, begin, end = "", 0, 0, 0
        for piece, at in block.places():
            name, place = self._places[piece.tensor.key]
            place += piece.begin
            if end > begin and (name, place) != (file, offset + end - begin):
                yield file, offset, buffer[begin:end]
                begin = end
            if end == begin:
                file, offset, begin = name, place, at
            end = at + piece.size
        if end > begin:
            yield file, offset, buffer[begin:end]

    def _put_companions(self, piece: Piece, weight: WeightInWork, put: Put) -> None:
        """The part of a weight's companions that comes from some of its rows; all of them after the last if need be."""
        layout = weight.written.layout
        if not weight.is_complete_with(piece.nbytes) and layout.whole:
            return
        for role, spec in weight.written.companions.items():
            name, begin = self._places[spec.key]
            data = np.ascontiguousarray(weight.results[role]).reshape(-1).view(np.uint8).data
            low, high = 0, len(data)
            if not layout.whole:
                scale = row_bytes(self._work.tensors[spec.key])
                granule = row_bytes(piece.tensor) * layout.granule_rows
                low = piece.start // granule * scale
                high = min(high, -(-(piece.start + piece.nbytes) // granule) * scale)
            put(name, begin + low, data[low:high])


def check_range(layout: OutputLayout, begin: int, end: int, file: str | None) -> Unit:
    """A range that a caller named.

    Raises:
        RefusedError: ``no-such-file``: there is none of that name, or there are several and none was named;
            ``bad-range``: it does not lie in the file.
    """
    sizes = {one.name: one.size for one in layout.files}
    sizes |= {name: len(content) for name, content in layout.texts.items()}
    chosen = next(iter(sizes)) if file is None and len(sizes) == 1 else file
    if chosen is None or chosen not in sizes:
        named = "" if chosen is None else f", {printable(chosen)} is none of them"
        raise RefusedError(
            f"the result has {len(sizes)} files, such as {printable(next(iter(sizes)))}{named}: name one",
            code="no-such-file",
        )
    if not 0 <= begin <= end <= sizes[chosen]:
        raise RefusedError(
            f"{printable(chosen)}: bytes {begin} to {end} are no range of its {sizes[chosen]}", code="bad-range"
        )
    return Unit(chosen, begin, end)
