from __future__ import annotations

import json
from pathlib import Path

import pytest
from rawfiles import raw_file, write_tensors
from refusals import refused
from safetensors import safe_open

from ltx2c.files import TensorFile
from ltx2c.files import layout as module
from ltx2c.files.header import PAGE
from ltx2c.files.layout import OutputTensor, plan_file

TENSORS = {"b": ("U8", (5,), b"12345"), "empty": ("F32", (0,), b""), "a": ("F4", (2,), b"6")}


def written(layout: module.FileLayout, path: Path) -> Path:
    data = bytearray(layout.size)
    data[: len(layout.header)] = layout.header
    for tensor, begin in layout.tensors:
        data[begin : begin + tensor.nbytes] = tensor.source.read().tobytes()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pad", [0, 1, 57, 4000, 5000])
def test_the_planned_file_holds_the_same_tensors_at_congruent_offsets(pad: int, tmp_path: Path) -> None:
    base = write_tensors(tmp_path / "base", TENSORS, {"k": "x" * pad})
    with TensorFile.open(base) as source:
        layout = plan_file("out", map(OutputTensor.copy_of, source.tensors.values()), {"k": "v\n\u2028"})
        for tensor, begin in layout.tensors:
            assert begin % PAGE == tensor.source.begin % PAGE
        with TensorFile.open(written(layout, tmp_path / "out")) as out:
            assert list(out.tensors) == list(source.tensors)
            assert out.metadata == {"k": "v\n\u2028"}
            for key, tensor in out.tensors.items():
                assert tensor.read().tobytes() == source.tensors[key].read().tobytes()


def test_the_safetensors_library_opens_what_was_planned(tmp_path: Path) -> None:
    with TensorFile.open(write_tensors(tmp_path / "base", {"t": ("F32", (2,), bytes(8))})) as source:
        layout = plan_file("out", map(OutputTensor.copy_of, source.tensors.values()), {"k": "v"})
        path = written(layout, tmp_path / "out")
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"k": "v"} and file.get_tensor("t").shape == (2,)


def test_the_order_of_keys_is_kept_apart_from_the_order_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "base"
    header = {
        "z": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    }
    path.write_bytes(raw_file(json.dumps(header), b"az"))
    with TensorFile.open(path) as source:
        layout = plan_file("out", map(OutputTensor.copy_of, source.tensors.values()), {})
        assert [placed.tensor.key for placed in layout.tensors] == ["a", "z"]
        with TensorFile.open(written(layout, tmp_path / "out")) as out:
            assert list(out.tensors) == ["z", "a"] and out.tensors["z"].read().tobytes() == b"z"


def test_a_part_of_a_files_tensors_is_packed_without_holes(tmp_path: Path) -> None:
    with TensorFile.open(write_tensors(tmp_path / "base", TENSORS)) as source:
        layout = plan_file("out", [OutputTensor.copy_of(source.tensors["a"])], {})
        assert layout.size == len(layout.header) + 1


def test_no_tensors_at_all() -> None:
    layout = plan_file("out", [], {})
    assert layout.size == len(layout.header) and json.loads(layout.header[8:]) == {}


def test_a_header_beyond_the_formats_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TensorFile.open(write_tensors(tmp_path / "base", TENSORS)) as source:
        tight = len(json.dumps({})) + 1000
        monkeypatch.setattr(module, "MAX_HEADER_BYTES", tight)
        assert len(plan_file("out", map(OutputTensor.copy_of, source.tensors.values()), {}).header) <= tight + 8
        with refused("result-header-length", "out"):
            plan_file("out", map(OutputTensor.copy_of, source.tensors.values()), {"k": "x" * 1000})


def test_a_part_of_a_file_keeps_its_offsets_modulo_the_page(tmp_path: Path) -> None:
    """As when shards are cut anew: a shard's first byte lies somewhere within its source."""
    tensors = {"x": ("U8", (777,), bytes(777)), "z": ("U8", (50,), bytes(50)), "y": ("U8", (9000,), bytes(9000))}
    with TensorFile.open(write_tensors(tmp_path / "base", tensors)) as source:
        layout = plan_file("out", [OutputTensor.copy_of(source.tensors[key]) for key in "yz"], {})
        assert [begin % PAGE for _, begin in layout.tensors] == [
            tensor.source.begin % PAGE for tensor, _ in layout.tensors
        ]
