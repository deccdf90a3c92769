from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ltx2c.arithmetic import LTX
from ltx2c.engines.blocks import buffer_bytes, cut_into_blocks
from ltx2c.engines.weights import Work
from ltx2c.files.header import PAGE
from ltx2c.files.layout import OutputTensor, Placed
from ltx2c.files.tensorfile import StoredTensor

BLOCK = 1 << 16


@dataclass(frozen=True)
class Layout:
    granule_rows: int = 1
    whole: bool = False


PLAIN = Layout()


def placed(shapes: list[tuple[int, int]], start: int) -> list[Placed]:
    file: Any = SimpleNamespace(path=Path("x"))
    sizes = [2 * rows * columns for rows, columns in shapes]
    begins = list(itertools.accumulate([start, *sizes]))
    return [
        Placed(OutputTensor.copy_of(StoredTensor(f"{at}", "BF16", shape, file, begin, begin + size)), begin)
        for at, (shape, begin, size) in enumerate(zip(shapes, begins, sizes, strict=False))
    ]


def work(tensors: list[Placed], fused: set[str], layout: Layout = PLAIN) -> Work:
    stored: Any = SimpleNamespace(layout=layout, companions={})
    sources = {placed.tensor.key: placed.tensor.source for placed in tensors}
    load: Any = None
    weights = dict.fromkeys(fused, stored)
    return Work(sources, dict.fromkeys(fused, ()), weights, weights, LTX, load)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 3, 32, 500]), st.sampled_from([0, 1, 7, 64, 4096, 50_000])), max_size=9),
    st.integers(0, 10_000),
    st.sets(st.integers(0, 8)),
    st.builds(Layout, st.sampled_from([1, 3, 128]), st.booleans()),
)
@settings(max_examples=200, deadline=None)
def test_blocks_cover_every_byte_once_in_order_and_fit_their_buffers(shapes, start, fused, layout) -> None:
    tensors = placed(shapes, start)
    of_these = work(tensors, {f"{at}" for at in fused if at < len(shapes)}, layout)
    room = buffer_bytes(of_these.tensors.values(), of_these, BLOCK)
    at = start
    seen, looked_at = dict.fromkeys(of_these.tensors, 0), dict.fromkeys(of_these.tensors, 0)
    for block in cut_into_blocks(tensors, of_these, BLOCK):
        assert block.begin == at and block.nbytes == sum(piece.fused_bytes for piece in block.pieces)
        assert block.lead + block.nbytes <= room - PAGE
        assert all(begin + piece.nbytes <= room for piece, begin in block.asides())
        for tensor, begin, nbytes, weight, _, first_pass in block.pieces:
            assert (looked_at if first_pass else seen)[tensor.key] == begin
            assert (weight is not None) == (tensor.key in of_these.fusions and nbytes > 0)
            (looked_at if first_pass else seen)[tensor.key] += nbytes
            if weight is not None:
                unit = tensor.nbytes // tensor.shape[0] * layout.granule_rows
                assert begin % unit == 0 and ((begin + nbytes) % unit == 0 or begin + nbytes == tensor.nbytes)
                is_last = begin + nbytes == tensor.nbytes and not first_pass
                assert weight.is_complete_with(0 if first_pass else nbytes) == is_last
                if not first_pass and layout.whole:  # in one piece, or looked at before
                    assert nbytes == tensor.nbytes or looked_at[tensor.key] == tensor.nbytes
        at += block.nbytes
    assert seen == {key: tensor.nbytes for key, tensor in of_these.tensors.items()}
    assert layout.whole or not any(looked_at.values())


@given(
    st.lists(st.tuples(st.sampled_from([1, 3, 32, 500]), st.sampled_from([1, 7, 64, 4096, 50_000])), max_size=9),
    st.integers(0, 10_000),
    st.sets(st.integers(0, 8)),
    st.sampled_from(["F8_E4M3", "F32"]),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_what_is_converted_is_read_aside_in_pages_of_its_own(shapes, start, converted, dtype, whole) -> None:
    tensors, at = [], start
    for source in placed(shapes, start):
        key, (rows, columns) = source.tensor.key, source.tensor.shape
        tensor = source.tensor._replace(dtype=dtype) if int(key) in converted else source.tensor
        assert tensor.nbytes == rows * columns * {"BF16": 2, "F32": 4, "F8_E4M3": 1}[tensor.dtype]
        tensors.append(Placed(tensor, at))
        at += tensor.nbytes
    end = at
    chosen = [one.tensor for one in tensors if one.tensor.dtype == dtype]
    plain, other = Layout(), Layout(2, whole)
    weights: Any = {one.key: SimpleNamespace(layout=plain, companions={}, codes=one.source) for one in chosen}
    written: Any = {one.key: SimpleNamespace(layout=other, companions={}, codes=one) for one in chosen}
    sources, load = {one.tensor.key: one.tensor.source for one in tensors}, None
    of_these = Work(sources, dict.fromkeys(weights, ()), weights, written, LTX, load)  # type: ignore[arg-type]
    room = buffer_bytes(sources.values(), of_these, BLOCK)
    seen, looked_at, at = dict.fromkeys(sources, 0), dict.fromkeys(sources, 0), start
    for block in cut_into_blocks(tensors, of_these, BLOCK):
        assert block.begin == at
        used = -(-(block.lead + block.nbytes) // PAGE) * PAGE
        for piece, begin in block.asides():
            assert begin // PAGE * PAGE >= used and (begin - piece.tensor.begin - piece.start) % PAGE == 0
            used = -(-(begin + piece.nbytes) // PAGE) * PAGE
        assert used <= room
        for piece in block.pieces:
            counted = looked_at if piece.first_pass else seen
            assert counted[piece.tensor.key] == piece.start and piece.converted == (piece.tensor.key in weights)
            counted[piece.tensor.key] += piece.nbytes
            if whole and piece.converted and not piece.first_pass:
                assert piece.tensor.nbytes in (piece.nbytes, looked_at[piece.tensor.key])
        at += block.nbytes
    assert at == end and seen == {key: tensor.nbytes for key, tensor in sources.items()}


def test_a_large_weight_is_cut_into_equal_parts() -> None:
    tensors = placed([(33, 1000)], 0)
    blocks = list(cut_into_blocks(tensors, work(tensors, {"0"}), BLOCK))
    assert [block.nbytes for block in blocks] == [2000 * 16, 2000 * 17]


def test_small_tensors_share_a_block() -> None:
    tensors = placed([(8, 100)] * 30, 0)
    assert len(list(cut_into_blocks(tensors, work(tensors, set()), BLOCK))) == 1
