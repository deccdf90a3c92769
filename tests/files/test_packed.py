"""JSON in metadata is anybody's: neither its size nor its depth may end a fuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import ltx2c
from ltx2c.engines.provenance import KEY
from ltx2c.files import TensorFile
from ltx2c.files.packed import parse_packed

E2E = Path(__file__).parents[1] / "data" / "e2e"


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 10**6, "[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, "[" + "[]," * 10**7 + "1]"]
)
def test_what_no_reader_should_try(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|nested|letters"):
        parse_packed(text)


@pytest.mark.parametrize("value", [None, 1, "x" * 1000, [[[]]], {"a": {"b": [1, {}]}}])
def test_what_is_within_bounds(value: object) -> None:
    assert parse_packed(json.dumps(value)) == value


def test_a_base_that_tells_of_a_fuse_nested_to_the_last_readable_level(tmp_path: Path) -> None:
    """What Python just reads it cannot write again a few levels deeper."""
    base, adapter = tmp_path / "base.safetensors", E2E / "adapter0.safetensors"
    tensors = load_file(E2E / "base.safetensors")
    for depth in range(900, 1000, 5):
        told = '{"a":' * depth + "1" + "}" * depth
        save_file(tensors, base, {KEY: told})
        out = tmp_path / f"{depth}.safetensors"
        ltx2c.fuse_checkpoint(base, [(adapter, 1.0)], out)
        with TensorFile.open(out) as fused:
            assert KEY not in json.loads(fused.metadata[KEY])["base"]
        out.unlink()
