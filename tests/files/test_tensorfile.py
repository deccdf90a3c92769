from __future__ import annotations

import errno
import gc
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rawfiles import entry, header_of, raw_file, write_tensors
from safetensors.numpy import load_file

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile
from ltx2c.files.buffers import new_buffer
from ltx2c.files.header import PAGE

DATA = Path(__file__).parent.parent / "data"
E2E = sorted((DATA / "e2e").glob("*.safetensors"))


@pytest.mark.parametrize("path", E2E, ids=lambda path: path.stem)
def test_reads_what_the_safetensors_library_reads(path: Path) -> None:
    expected = load_file(path)
    with TensorFile.open(path) as file:
        assert file.tensors.keys() == expected.keys()
        for key, tensor in file.tensors.items():
            for array in (tensor.read(), tensor.view()):
                assert array.dtype == expected[key].dtype and array.shape == expected[key].shape
                assert array.tobytes() == expected[key].tobytes()
            assert not tensor.view().flags.writeable


def test_tensors_come_in_the_order_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file(header_of(z=entry("U8", (2,), (4, 6)), a=entry("U8", (4,), (0, 4))), b"123456"))
    with TensorFile.open(path) as file:
        assert list(file.tensors) == ["z", "a"]
        assert file.tensors["z"].read().tobytes() == b"56"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_format_is_read(dtype: str, tmp_path: Path) -> None:
    bits = DTYPES[dtype].bits
    shape = (2, 4)
    data = os.urandom(8 * bits // 8) if dtype != "BOOL" else bytes(8)
    with TensorFile.open(write_tensors(tmp_path / "x.safetensors", {"t": (dtype, shape, data)})) as file:
        tensor = file.tensors["t"]
        assert tensor.read().tobytes() == tensor.view().tobytes() == data
        assert tensor.read().shape == (shape if DTYPES[dtype].numpy is not None else (bits,))


def test_scalars_empty_tensors_and_odd_names(tmp_path: Path) -> None:
    tensors = {
        "": ("F32", (), np.float32(1.5).tobytes()),
        "empty": ("BF16", (0, 7), b""),
        'a b\n"c" \\ é \U0001f600 \0': ("F64", (1, 1), np.float64(-2).tobytes()),
    }
    with TensorFile.open(write_tensors(tmp_path / "x.safetensors", tensors, {"\t": "é\n"})) as file:
        assert list(file.tensors) == list(tensors) and file.metadata == {"\t": "é\n"}
        assert file.tensors[""].read().shape == () and file.tensors[""].read() == 1.5
        assert file.tensors["empty"].read().shape == file.tensors["empty"].view().shape == (0, 7)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file("{}   "))
    with TensorFile.open(path) as file:
        assert not file.tensors and not file.metadata
        assert file.header_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_part_of_a_tensor_is_read_into_a_buffer(tmp_path: Path) -> None:
    with TensorFile.open(write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (9,), b"123456789")})) as file:
        part = bytearray(3)
        file.tensors["t"].read_into(part, 4)
        assert part == b"567"
        array = np.zeros((2, 2), np.uint16)
        file.tensors["t"].read_into(array)
        assert array.tobytes() == b"12345678"


def test_reads_that_come_back_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(1000)
    path = write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (1000,), data)})
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: whole(fd, [memoryview(buffers[0])[:7]], at))
    with TensorFile.open(path) as file:
        assert file.tensors["t"].read().tobytes() == data


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "x.safetensors"
    return write_tensors(path, {"t": ("U8", (300_001,), os.urandom(300_001))})


@pytest.mark.parametrize("fault", ["none", "nobody knows", "no direct reads", "direct reads fail", "short"])
@given(
    begin=st.integers(0, 300_000),
    nbytes=st.integers(0, 300_001),
    congruent=st.booleans(),
    cold=st.booleans(),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_a_block_is_read_around_the_cache_or_through_it(
    fault: str, begin: int, nbytes: int, congruent: bool, cold: bool, data: st.DataObject, big: Path
) -> None:
    nbytes = min(nbytes, 300_001 - begin)
    with TensorFile.open(big) as file, pytest.MonkeyPatch.context() as patch:
        offset = file.data_start + begin
        at = offset % PAGE if congruent else data.draw(st.integers(0, PAGE - 1))
        if cold:
            descriptor = os.open(big, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        preadv, plain = os.preadv, file._reader._descriptor

        def faulty(descriptor: int, buffers: list, place: int) -> int:
            if fault == "direct reads fail" and descriptor != plain:
                raise OSError(errno.EIO, "Input/output error")
            short = 5000 if descriptor == plain else 2 * PAGE  # direct reads come in whole pages
            share = short if fault == "short" else len(buffers[0])
            return preadv(descriptor, [memoryview(buffers[0])[:share]], place)

        patch.setattr(os, "preadv", faulty)
        if fault == "nobody knows":
            file._reader._count_pages = lambda *_: None
        if fault == "no direct reads":
            file._reader._direct = -1
        buffer = new_buffer(PAGE * (2 + (at + nbytes) // PAGE))
        file.read_block(buffer, at, nbytes, offset)
        assert bytes(buffer[at : at + nbytes]) == big.read_bytes()[offset : offset + nbytes]


def test_a_read_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (1,), b"1")})

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with TensorFile.open(path) as file:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match="Input/output error") as caught:
            file.tensors["t"].read()
        assert caught.value.filename == str(path)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_reading_past_a_truncation_is_refused(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (4,), b"1234")})
    with TensorFile.open(path) as file:
        _truncate(path)
        with pytest.raises(RefusedError) as caught:
            file.tensors["t"].read()
        assert caught.value.code == "file-changed"


def test_a_header_at_the_limit_of_the_format(tmp_path: Path) -> None:
    """100,000,000 bytes, nearly all of them one metadata value with escapes in it."""
    text = '{"__metadata__":{"long":"' + "\\n" * 100_000 + "x" * (100_000_000 - 200_000 - 29) + '"}}'
    assert len(text) == 100_000_000 - 1
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file(text + " "))
    with TensorFile.open(path) as file:
        assert len(file.metadata["long"]) == 100_000_000 - 100_000 - 29
    path.write_bytes(raw_file(text + "  "))
    with pytest.raises(RefusedError) as caught:
        TensorFile.open(path)
    assert caught.value.code == "header-length"


def test_a_relative_path_is_checked_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (4,), b"1234")})
    monkeypatch.chdir(tmp_path)
    with TensorFile.open(path.name) as file:
        monkeypatch.chdir("/")
        file.check_unchanged()
        assert file.path == Path(path.name)


def test_a_file_that_is_dropped_is_closed(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "x.safetensors", {"t": ("U8", (4 * PAGE,), bytes(4 * PAGE))})

    def opened() -> int:
        return sum(link.exists() and link.samefile(path) for link in Path("/proc/self/fd").iterdir())

    file = TensorFile.open(path)
    file._reader._read_direct(new_buffer(PAGE), 0)
    assert opened() >= 1
    del file
    gc.collect()
    assert opened() == 0
