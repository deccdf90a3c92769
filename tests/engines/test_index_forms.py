"""A base in shards, its index in each form that tools write: what comes out is right, and opens again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fusing import assert_same, load, save, small_model

import ltx2c

NUMBERED = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
FORMS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "no metadata": (NUMBERED, INDEX, {}),
    "null": (NUMBERED, INDEX, {"metadata": None}),
    "nested": (NUMBERED, INDEX, {"metadata": {"dtypes": ["bf16"], "quantization": {"bits": 8}}, "dtype": "bfloat16"}),
    "variant": (["model.fp16-00001-of-00002.safetensors", "x.safetensors"], "model.safetensors.index.fp16.json", {}),
    "subfolders": (["a/model.safetensors", "b/model.safetensors"], INDEX, {}),
}


def sharded(folder: Path, base: Path, shards: list[str], index: str, top: dict[str, Any]) -> Path:
    tensors = load(base)
    weight_map = {key: shards[at % 2] for at, key in enumerate(tensors)}
    for name in shards:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        save(folder / name, {key: tensors[key] for key in tensors if weight_map[key] == name})
    (folder / index).write_text(json.dumps({**top, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [None, 20_000])
def test_every_form_comes_out_sound(form: str, limit: int | None, tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    shards, index, top = FORMS[form]
    folder = sharded(tmp_path / "in", base, shards, index, top)
    ltx2c.fuse_checkpoint(folder, adapters, tmp_path / "out", max_shard_bytes=limit)
    got = load(tmp_path / "out")
    assert_same({key: got[key] for key in wanted}, wanted)
    with ltx2c.Checkpoint.open(tmp_path / "out") as out:
        assert out.notes == () and out.index_name == index
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    if limit is None:
        assert names == sorted([index, *(NUMBERED if form == "subfolders" else shards)])
    else:
        assert len(names) > 3 and {name.split("-0")[0] for name in names} == {
            index,
            "model.fp16" if form == "variant" else "model",
        }
    told = json.loads((tmp_path / "out" / index).read_text())
    size = sum(array.nbytes for array in wanted.values())
    assert told.pop("weight_map").keys() == wanted.keys()
    assert told == {**top, "metadata": {**(top.get("metadata") or {}), "total_size": size}}
