"""The tensors of LTX-2.5: names, dtypes and shapes of the public 22B transformer and of its distilled LoRA.

``data/ltx25.json`` holds the base as sections, each a name prefix, a number of copies (the real model's) and the
tensors of one copy. Expanded at all 48 blocks it gives the published file: 4349 tensors, 21,004,025,600 parameters.
The adapter needs no list of its own: it has one pair for every linear layer outside the embedding connectors, 1660
of them, and a pair's rank is min(450, in, out).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, Literal, NamedTuple

from ltx2c.errors import RefusedError

BLOCKS = 48
RANK = 450
MODEL_VERSION = "2.5.0"

BASE_PREFIX = "model.diffusion_model."
ADAPTER_PREFIX = "diffusion_model."

Kind = Literal["lora", "loha", "lokr", "dora", "diff"]

Parts = list[tuple[str, tuple[int, ...]]]
"""What an adapter holds for one module: endings of keys, with their tensors' shapes."""


def check_blocks(blocks: int) -> None:
    """Refuse (``out-of-range``) a number of transformer blocks that the model cannot be cut down to."""
    if not 1 <= blocks <= BLOCKS:
        raise RefusedError(f"blocks must be 1 to {BLOCKS}, not {blocks}", code="out-of-range")


class TensorSpec(NamedTuple):
    """One tensor of a file that need not exist: its key, safetensors' name of its dtype, its shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]


def base_tensors(blocks: int = BLOCKS) -> Iterator[TensorSpec]:
    """The base's tensors with ``blocks`` of the 48 transformer blocks.

    What else the model has several copies of (the blocks of the embedding connectors) is reduced in proportion,
    rounded down.
    """
    for section in _sections():
        for copy in range(_copies(section, blocks)):
            prefix = section["prefix"].format(copy)
            for name, dtype, shape in section["tensors"]:
                yield TensorSpec(prefix + name, dtype, tuple(shape))


def adapter_tensors(blocks: int = BLOCKS, rank: int = RANK, kind: Kind = "lora") -> Iterator[TensorSpec]:
    """An adapter's tensors for the same blocks and the distilled LoRA's modules, in the base's order.

    As ``kind`` says; ``"lora"``, A and B of each pair, is the distilled LoRA itself.
    """
    for key, dtype, shape in base_tensors(blocks):
        if _is_target(key, shape):
            module = ADAPTER_PREFIX + key.removeprefix(BASE_PREFIX).removesuffix(".weight")
            out, into = shape
            for name, extents in KIND_TENSORS[kind](out, into, rank):
                yield TensorSpec(f"{module}.{name}", dtype, extents)


def _lora(out: int, into: int, rank: int) -> Parts:
    rank = min(rank, into, out)
    return [("lora_A.weight", (rank, into)), ("lora_B.weight", (out, rank))]


def _loha(out: int, into: int, rank: int) -> Parts:
    rank = min(rank, into, out)
    return [part for n in (1, 2) for part in ((f"hada_w{n}_a", (out, rank)), (f"hada_w{n}_b", (rank, into)))]


def _lokr(out: int, into: int, rank: int) -> Parts:
    """w1 nearly square in each extent, as LyCORIS factors them; w2 a product where that is smaller."""
    (rows1, rows2), (columns1, columns2) = _nearest_factors(out), _nearest_factors(into)
    w1 = ("lokr_w1", (rows1, columns1))
    if 2 * rank >= max(rows2, columns2):
        return [w1, ("lokr_w2", (rows2, columns2))]
    return [w1, ("lokr_w2_a", (rows2, rank)), ("lokr_w2_b", (rank, columns2))]


def _dora(out: int, into: int, rank: int) -> Parts:
    return [*_lora(out, into, rank), ("dora_scale", (out, 1))]


def _diff(out: int, into: int, rank: int) -> Parts:
    return [("diff", (out, into))]


KIND_TENSORS: dict[Kind, Callable[[int, int, int], Parts]] = {
    "lora": _lora,
    "loha": _loha,
    "lokr": _lokr,
    "dora": _dora,
    "diff": _diff,
}


def _nearest_factors(extent: int) -> tuple[int, int]:
    """Two factors of ``extent``, the smaller first, as close as they come."""
    smaller = next(factor for factor in range(math.isqrt(extent), 0, -1) if extent % factor == 0)
    return smaller, extent // smaller


def config(blocks: int = BLOCKS) -> dict[str, dict[str, int]]:
    """What the base's ``config`` metadata says of its transformer: the numbers that its shapes follow from."""
    return {
        "transformer": {
            "num_layers": blocks,
            "num_attention_heads": 32,
            "attention_head_dim": 128,
            "in_channels": 128,
            "out_channels": 128,
            "cross_attention_dim": 4096,
            "audio_num_attention_heads": 32,
            "audio_attention_head_dim": 64,
            "audio_in_channels": 128,
            "audio_out_channels": 128,
            "audio_cross_attention_dim": 2048,
        }
    }


def _is_target(key: str, shape: tuple[int, ...]) -> bool:
    return key.endswith(".weight") and len(shape) == 2 and "_embeddings_connector." not in key


def _copies(section: dict[str, Any], blocks: int) -> int:
    copies: int = section["copies"]
    return copies if copies == 1 else copies * blocks // BLOCKS


@functools.cache
def _sections() -> list[dict[str, Any]]:
    text = resources.files("ltx2c").joinpath("data", "ltx25.json").read_text("utf-8")
    sections: list[dict[str, Any]] = json.loads(text)
    return sections
