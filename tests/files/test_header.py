"""Headers are read as JSON is, quickly; however they are laid out, one reading gives what the other gives."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import mutated, sound_file
from rawfiles import entry, raw_file, write_tensors
from safetensors import deserialize
from steps import steps

from ltx2c import inventory
from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile, header
from ltx2c.files.header import parse_header


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])).filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 6), max_size=4).map(lambda s: [*s, 8])),
        max_size=8,
    ),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.booleans(),
    st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}]),
)
def test_any_sound_header_is_read_as_json_reads_it(tensors, metadata, ascii_only, layout) -> None:
    header = {"__metadata__": metadata}
    at = 0
    for key, (dtype, shape) in tensors.items():
        size = DTYPES[dtype].bits * int(np.prod(shape)) // 8
        header[key] = entry(dtype, shape, (at, at + size))
        at += size
    parsed = parse_header(json.dumps(header, ensure_ascii=ascii_only, **layout).encode(), at)
    assert parsed.metadata == metadata
    assert list(parsed.tensors) == list(tensors)
    for key, info in parsed.tensors.items():
        dtype, shape, (begin, end) = header[key].values()
        assert info == (dtype, tuple(shape), begin, end)


def _outcome(text: bytes, data_bytes: int) -> object:
    try:
        return parse_header(text, data_bytes)
    except RefusedError as error:
        return error.code, str(error)


def test_what_is_read_at_one_glance_is_read_token_by_token_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound or broken: the same tensors or the same words. Runs of plain entries are a shortcut, not a rule."""
    chance = random.Random(time.time_ns())
    texts = []
    for _ in range(2000):
        file = mutated(sound_file(chance), chance)
        length = int.from_bytes(file[:8], "little")
        texts.append((file[8 : 8 + length], max(0, len(file) - 8 - length)))
    glances = [_outcome(*given) for given in texts]
    monkeypatch.setattr(header, "_PLAIN_ENTRY", re.compile(rb"(?!)"))
    for given_, glance in zip(texts, glances, strict=True):
        assert _outcome(*given_) == glance, given_


def test_metadata_null_is_none(tmp_path: Path) -> None:
    content = raw_file('{"__metadata__": null, "a": ' + json.dumps(entry()) + "}", b"1234")
    assert deserialize(content)
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with TensorFile.open(path) as file:
        assert file.metadata == {} and file.tensors["a"].read().tobytes() == b"1234"


def test_the_models_own_header_opens_in_few_steps(tmp_path: Path) -> None:
    path = tmp_path / "base.safetensors"
    at, listed = 0, {}
    for key, dtype, shape in inventory.base_tensors():
        end = at + int(np.prod(shape, dtype=object)) * DTYPES[dtype].bits // 8
        listed[key], at = entry(dtype, shape, (at, end)), end
    path.write_bytes(raw_file(json.dumps(listed)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + at)
    with TensorFile.open(path) as opened:
        assert len(opened.tensors) == 4349
    assert steps(lambda: TensorFile.open(path).close()) < 15 * 4349


_OPEN = """
import re, sys
from pathlib import Path
from ltx2c import Checkpoint
with Checkpoint.open(sys.argv[1]) as checkpoint:
    peak = re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())
    print(len(checkpoint.tensors), peak[1])
"""


def test_a_quarter_of_a_million_tensors_open_in_little_memory(tmp_path: Path) -> None:
    keys = [f"language_model.layers.{i // 4000}.mlp.experts.{i % 4000}.gate_proj.weight" for i in range(250_000)]
    path = write_tensors(tmp_path / "x.safetensors", dict.fromkeys(keys, ("U8", (1, 2), b"12")))
    told = subprocess.run([sys.executable, "-c", _OPEN, path], capture_output=True, check=True, text=True).stdout
    count, kilobytes = map(int, told.split())
    assert count == 250_000 and kilobytes < 300_000
