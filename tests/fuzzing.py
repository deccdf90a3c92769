"""Inputs without end, sound, broken and huge, and what the readers must make of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from mutations import mutated, mutated_text, sound_file
from rawfiles import tensor_bytes, write_tensors

from ltx2c.adapters import Adapter
from ltx2c.dtypes import DTYPES, FUSIBLE
from ltx2c.errors import RefusedError, escaped
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files.index import read_index
from ltx2c.plan import plan_fuse


class Kind(NamedTuple):
    """A kind of input.

    Attributes:
        name: of the file that it is written to.
        make: its content, by chance.
        read: opens the file of that content and says what came of it: a refusal's code, or ``"opened"``.
    """

    name: str
    make: Callable[[random.Random], bytes]
    read: Callable[[Path, bytes], str]


def tried(kind: Kind, content: bytes, folder: Path) -> str:
    """What comes of ``content`` as an input of ``kind`` in ``folder``, made by ``furnish``.

    Raises AssertionError where a refusal is no clear line, and whatever else the readers let through.
    """
    path = folder / kind.name
    path.write_bytes(content)
    try:
        return kind.read(path, content)
    except RefusedError as error:
        message = str(error)
        assert message == escaped(message) and len(message) < 3000, message
        return error.code
    finally:
        path.unlink()


def furnish(folder: Path) -> None:
    """Put into ``folder`` what the inputs refer to: shards and a base."""
    for name, keys in (("one.safetensors", "ab"), ("two.safetensors", "c")):
        write_tensors(folder / name, {key: ("U8", (1,), b"1") for key in keys})
    (folder / "sub").mkdir()
    write_tensors(folder / "sub" / "one.safetensors", {"a": ("U8", (1,), b"1")})
    weights = {f"{module}.weight": ("BF16", (4, 6), bytes(48)) for module in _MODULES}
    write_tensors(folder / "base.safetensors", weights, {"model_version": "2.5"})


def _open_file(path: Path, content: bytes) -> str:
    with TensorFile.open(path) as file:
        keys = set(file.tensors)
    assert keys == {key for key, _ in safetensors.deserialize(content)}, "the safetensors library differs"
    return "opened"


_SHARDS = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
_ODD_SHARDS = [
    "two.safetensors",
    "sub/one.safetensors",
    "../one.safetensors",
    "none.safetensors",
    "/x",
    "\n.safetensors",
]


def _index(chance: random.Random) -> bytes:
    top: dict[str, Any] = {}
    if chance.random() < 0.7:
        top["metadata"] = chance.choice([None, {}, {"total_size": 3}, {"a": [1, {"b": None}], "c": -1.5e3}])
    if chance.random() < 0.2:
        top["dtype"] = "float16"
    top["weight_map"] = {
        key: shard if chance.random() < 0.95 else chance.choice(_ODD_SHARDS)
        for key, shard in _SHARDS.items()
        if chance.random() < 0.8
    }
    text = json.dumps(top, indent=chance.choice([None, 2])).encode()
    return mutated_text(text, chance) if chance.random() < 0.4 else text


def _open_index(path: Path, content: bytes) -> str:
    index = read_index(path)
    whole = json.loads(content)
    assert index.weight_map == whole.pop("weight_map"), "the json library differs"
    assert (index.metadata, index.others) == (whole.pop("metadata", None) or {}, whole), "the json library differs"
    assert json.loads(index.as_bytes())["weight_map"] == index.weight_map
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.tensors.keys() == index.weight_map.keys()
    return "opened"


_MODULES = ["blocks.0.to_q", "blocks.0.to_k", "blocks.1.to_q"]
_ODD_NAMES = [
    "blocks.9.to_q", "", ".", "..", "{}", "{0}%s", "%", "\x1b[2J", "\u202e", "\n", "é", "a" * 300, "." * 300,
    "lora_unet_x", "\0",
]  # fmt: skip
_SPELLINGS = [(".lora_A.weight", ".lora_B.weight"), (".lora_down.weight", ".lora_up.weight"), (".lora_A", ".lora_B")]
_EXTRAS = [
    ".alpha",
    ".alpha",
    ".alpha",
    ".dora_scale",
    ".diff",
    ".diff_b",
    ".lora_mid.weight",
    ".weight",
    ".hada_w1_a",
    ".lokr_w1",
    ".x",
]
_NUMBERS = ["4", "8.0", "nan", "-1", "1e999", "0", "x", "", "null", "9" * 40]
_METADATA = [
    "lora_alpha", "lora_rank", "ss_network_alpha", "ss_network_dim", "reference_downscale_factor", "model_version",
    "reference_temporal_scale_factor", "lora_adapter_metadata", "ss_network_args", "ltx2c",
]  # fmt: skip


def _adapter(chance: random.Random) -> bytes:
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    prefix = chance.choice(["", "diffusion_model.", "transformer."])
    for _ in range(1 + chance.randrange(3)):
        module = chance.choice(_MODULES if chance.random() < 0.9 else _ODD_NAMES)
        names = _SPELLINGS[0] if chance.random() < 0.95 else chance.choice(_SPELLINGS)
        rank = chance.randrange(1, 4)
        for name, shape in zip(names, ((rank, 6), (4, rank)), strict=True):
            if chance.random() < 0.98:
                shape = shape if chance.random() < 0.98 else chance.choice([(), (0, 6), (4,), (1, 2, 3), (6, 4)])
                tensors[f"{prefix}{module}{name}"] = _zeros(
                    chance.choice(list(FUSIBLE) if chance.random() < 0.98 else ["U8"]), shape
                )
        if chance.random() < 0.2:
            scalar = chance.choice([(), (), (1,), (4, 6)])
            tensors[f"{prefix}{module}{chance.choice(_EXTRAS)}"] = _zeros("F32", scalar)
    metadata = {name: _stated(chance) for name in chance.sample(_METADATA, chance.randrange(4))}
    file = tensor_bytes(tensors, metadata or None)
    return mutated(file, chance) if chance.random() < 0.3 else file


def _zeros(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], bytes]:
    size = DTYPES[dtype].bits // 8
    for extent in shape:
        size *= extent
    return dtype, shape, bytes(size)


def _stated(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return chance.choice(_NUMBERS)
    names = ["lora_alpha", "r", "transformer.lora_alpha", "transformer.r", "adapters", "use_dora", "alpha_pattern"]
    values: list[Any] = [4, 8.5, None, "4", [], {"a": 1}, True, -1, 10**30]
    text = json.dumps({name: chance.choice(values) for name in chance.sample(names, chance.randrange(4))})
    return mutated_text(text.encode(), chance).decode("utf-8", "replace") if chance.random() < 0.5 else text


def _open_adapter(path: Path, content: bytes) -> str:
    del content
    with Checkpoint.open(path.with_name("base.safetensors")) as base, Adapter.open(path) as adapter:
        plan_fuse(base, [(adapter, 0.5)], unmatched="warn")
        plan_fuse(base, [(adapter, 0.5)])
    return "opened"


def _huge(chance: random.Random) -> bytes:
    """A file of megabytes that is nearly all of one thing: what a reader could take long over, or much memory for."""
    size = chance.choice([1 << 20, 4 << 20, 16 << 20])
    entry = b'{"dtype":"F4","shape":[0],"data_offsets":[0,0]}'
    name = b"m.lora_A.weight"
    part, before, after = chance.choice(
        [
            (b"a", b'{"', b'":%b}' % entry), (b".", b'{"m.lora_A.weight":%b,"' % entry, b'":%b}' % entry),
            (b"a.", b'{"m.lora_B.weight":%b,"' % entry, b'.lora_A.weight":%b}' % entry), (b"[", b"{", b"}"),
            (b'{"a":', b"", b""), (b" ", b"{", b"}"), (b"\\n", b'{"', b'":%b}' % entry), (b"\\", b'{"', b'"}'),
            (b"[],", b'{"__metadata__":{"lora_adapter_metadata":"{\\"a\\":[', b'1]}"},"%b":%b}' % (name, entry)),
            (b"[", b'{"__metadata__":{"lora_adapter_metadata":"', b'"},"%b":%b}' % (name, entry)),
            (b"9", b'{"__metadata__":{"lora_alpha":"', b'"},"%b":%b}' % (name, entry)),
            (b"0,", b'{"a":{"dtype":"F4","shape":[', b'0],"data_offsets":[0,0]}}'), (b"\xff", b'{"', b'":1}'),
        ]
    )  # fmt: skip
    if chance.random() < 0.3:
        shape = b",".join(b"%d" % chance.randrange(300) for _ in range(chance.choice([0, 3, 31])))
        keys = (
            b'"%d.lora_%b.weight":{"dtype":"F4","shape":[0%b],"data_offsets":[0,0]},'
            % (number, b"AB"[number % 2 : number % 2 + 1], b"," * bool(shape) + shape)
            for number in range(size // 120)
        )
        before, part, after = b"{" + b"".join(keys), b"", b'"z":%b}' % entry
    text = before + part * (size // max(1, len(part))) + after
    return len(text).to_bytes(8, "little") + text


FILE = Kind("x.safetensors", lambda chance: mutated(sound_file(chance), chance), _open_file)
INDEX = Kind("model.safetensors.index.json", _index, _open_index)
ADAPTER = Kind("lora.safetensors", _adapter, _open_adapter)
HUGE = Kind("lora.safetensors", _huge, _open_adapter)
