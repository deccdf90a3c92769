from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from destinations import empty_file
from hypothesis import given, settings
from hypothesis import strategies as st

from ltx2c.files import direct
from ltx2c.files.buffers import new_buffer
from ltx2c.files.direct import OutputFile
from ltx2c.files.header import PAGE

SHM = Path("/dev/shm")  # tmpfs: refuses O_DIRECT on most kernels


def write(path: Path, pieces: list[bytes]) -> None:
    output = OutputFile(empty_file(path), sum(map(len, pieces)))
    buffer = new_buffer(3 * PAGE + max(map(len, pieces), default=0))
    for piece in pieces:
        lead = output.position % PAGE
        buffer[:] = b"\xee" * len(buffer)
        buffer[lead : lead + len(piece)] = piece
        output.append(buffer, len(piece))
    output.finish()


def random_pieces(sizes: list[int]) -> list[bytes]:
    return [os.urandom(size) for size in sizes]


@pytest.mark.parametrize("refused", [False, True], ids=["direct", "through the page cache"])
@given(sizes=st.lists(st.sampled_from([0, 1, 7, 4095, 4096, 4097, 8192, 10000, 100_000]), max_size=12))
@settings(max_examples=40, deadline=None)
def test_pieces_of_any_size_come_out_one_behind_the_other(
    refused: bool, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / "file"
    pieces = random_pieces(sizes)
    with pytest.MonkeyPatch.context() as patch:
        if refused:
            patch.setattr(direct, "_set_direct", lambda descriptor, on: False)
        write(path, pieces)
    assert path.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("sizes", [[10], [5000], [3000, 3000, 20_000]])
def test_the_first_page_comes_last(sizes: list[int], tmp_path: Path) -> None:
    path = tmp_path / "file"
    pieces = [b"\xaa" * size for size in sizes]
    output = OutputFile(empty_file(path), sum(sizes))
    buffer = new_buffer(10 * PAGE)
    for piece in pieces:
        lead = output.position % PAGE
        buffer[lead : lead + len(piece)] = piece
        output.append(buffer, len(piece))
    first = min(PAGE, sum(sizes))
    assert path.read_bytes()[:first] == bytes(first)
    output.finish()
    assert path.read_bytes() == b"".join(pieces)


def test_here_output_is_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would show nothing. Where the temporary folder refuses O_DIRECT, say so loudly."""
    seen: list[bool] = []
    set_direct = direct._set_direct
    monkeypatch.setattr(direct, "_set_direct", lambda *words: seen.append(set_direct(*words)) or seen[-1])
    write(tmp_path / "file", random_pieces([100_000]))
    assert seen[0], f"{tmp_path} is on a file system without O_DIRECT: set TMPDIR elsewhere"


def test_a_file_on_tmpfs(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SHM / f"ltx2c-test-{os.getpid()}"
    pieces = random_pieces([5000, 100_000, 3])
    try:
        write(path, pieces)
        assert path.read_bytes() == b"".join(pieces)
    finally:
        path.unlink()


def _faulty_pwritev(monkeypatch: pytest.MonkeyPatch, fault) -> None:
    """``fault(call, size)`` says how many bytes the call may write, or raises."""
    whole, calls = os.pwritev, []

    def pwritev(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        return whole(descriptor, [buffers[0][: fault(len(calls), len(buffers[0]))]], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)


@pytest.mark.parametrize("share", [PAGE, 3 * PAGE, 1000])
def test_short_writes_are_continued(share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _faulty_pwritev(monkeypatch, lambda call, size: min(share, size))
    pieces = random_pieces([50_000, 1, 60_000])
    write(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_a_direct_write_that_is_refused_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(call: int, size: int) -> int:
        if call == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        return size

    _faulty_pwritev(monkeypatch, fault)
    pieces = random_pieces([50_000, 50_000, 60_000])
    write(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_write_error_names_the_file(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(call: int, size: int) -> int:
        raise OSError(code, os.strerror(code))

    _faulty_pwritev(monkeypatch, fault)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        write(tmp_path / "file", random_pieces([50_000]))
    assert caught.value.filename == str(tmp_path / "file")


def test_buffered_output_never_leaves_more_than_a_window_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, int]] = []
    finished: list[tuple[int, int]] = []
    monkeypatch.setattr(direct, "WINDOW_BYTES", 100_000)
    monkeypatch.setattr(direct, "_set_direct", lambda descriptor, on: False)
    monkeypatch.setattr(direct, "start_writeback", lambda fd, begin, end: started.append((begin, end)))
    monkeypatch.setattr(direct, "finish_writeback", lambda fd, begin, end: finished.append((begin, end)))
    write(tmp_path / "file", random_pieces([40_960] * 20))
    assert started[0][0] == 0 and all(one[1] == two[0] for one, two in itertools.pairwise(started))
    assert all(end - begin <= 100_000 for begin, end in started)
    assert finished[-1][1] >= 20 * 40_960 - 200_000


def test_a_small_file_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        direct.write_small_file(empty_file(tmp_path / "index.json"), b"{}")
    assert caught.value.filename == str(tmp_path / "index.json")
