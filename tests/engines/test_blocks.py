from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from ltx2c.engines.blocks import buffer_bytes, cut_into_blocks
from ltx2c.files.header import PAGE
from ltx2c.files.layout import Placed
from ltx2c.files.tensorfile import StoredTensor

BLOCK = 1 << 16


def placed(shapes: list[tuple[int, int]], start: int) -> list[Placed]:
    file = SimpleNamespace(path=Path("x"))
    sizes = [2 * rows * columns for rows, columns in shapes]
    begins = list(itertools.accumulate([start, *sizes]))
    return [
        Placed(StoredTensor(f"{at}", "BF16", shape, file, begin, begin + size), begin)
        for at, (shape, begin, size) in enumerate(zip(shapes, begins, sizes, strict=False))
    ]


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 3, 32, 500]), st.sampled_from([0, 1, 7, 64, 4096, 50_000])), max_size=9),
    st.integers(0, 10_000),
    st.sets(st.integers(0, 8)),
)
@settings(max_examples=200, deadline=None)
def test_blocks_cover_every_byte_once_in_order_and_fit_their_buffers(shapes, start, fused) -> None:
    tensors = placed(shapes, start)
    terms = {f"{at}": () for at in fused}
    room = buffer_bytes([tensor for tensor, _ in tensors], terms, BLOCK)
    at = start
    seen = {tensor.key: 0 for tensor, _ in tensors}
    for block in cut_into_blocks(tensors, terms, BLOCK):
        assert block.begin == at and block.nbytes == sum(piece.nbytes for piece in block.pieces)
        assert block.lead + block.nbytes <= room - PAGE
        for tensor, begin, nbytes in block.pieces:
            assert seen[tensor.key] == begin
            seen[tensor.key] += nbytes
            if tensor.key in terms and nbytes:
                row = tensor.nbytes // tensor.shape[0]
                assert begin % row == nbytes % row == 0
        at += block.nbytes
    assert seen == {tensor.key: tensor.nbytes for tensor, _ in tensors}


def test_a_large_weight_is_cut_into_equal_parts() -> None:
    blocks = list(cut_into_blocks(placed([(33, 1000)], 0), {"0": ()}, BLOCK))
    assert [block.nbytes for block in blocks] == [2000 * 16, 2000 * 17]


def test_small_tensors_share_a_block() -> None:
    assert len(list(cut_into_blocks(placed([(8, 100)] * 30, 0), {}, BLOCK))) == 1
