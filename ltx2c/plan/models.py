"""Which model a set of names belongs to, as far as that can be told: an adapter for another model is no misspelling."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ltx2c.adapters import Adapter
from ltx2c.adapters.names import to_original
from ltx2c.errors import printable
from ltx2c.files import Checkpoint

# The first whose pattern is found in a module's name, dots or underscores alike, names its model.
MODELS = (
    ("LTX-2", r"audio_attn1|video_to_audio_attn|audio_to_video_attn|av_ca_|av_cross_attn|audio_patchify_proj"),
    ("Flux", r"single_transformer_blocks|double_blocks.\d+.img_attn.(qkv|proj)|single_blocks.\d+.linear[12]"),
    ("HunyuanVideo", r"double_blocks.\d+.img_attn_qkv|txt_in.individual_token_refiner"),
    ("Qwen-Image", r"transformer_blocks.\d+.(img|txt)_(mlp|mod)"),
    ("Wan", r"(^|\b|_)blocks.\d+.(self_attn|cross_attn).[qkvo]\b|(^|\b)blocks.\d+.attn[12].to_"),
    ("Stable Diffusion", r"(down|up|mid)_block|(input|output|middle)_block"),
    ("LTX-Video", r"transformer_blocks.\d+.(attn[12]|ff).|^patchify_proj"),
)
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in MODELS)

# This many names are enough to tell.
_LOOKED_AT = 400


def model_of(names: Iterable[str]) -> str | None:
    """The model that most of the names that tell anything belong to; the first of ``MODELS`` where any is its alone."""
    told = {model for _, name in zip(range(_LOOKED_AT), names, strict=False) if (model := _model(to_original(name)))}
    return next((name for name, _ in MODELS if name in told), None)


def _model(name: str) -> str | None:
    return next((model for model, pattern in _COMPILED if pattern.search(name)), None)


def other_model(base: Checkpoint, adapter: Adapter, wrong: int) -> str:
    """For a refusal: that the adapter is made for another model than the base, where its names or metadata tell so."""
    own, given = base.metadata.get("model_version"), adapter.metadata.get("model_version")
    if own is not None and given is not None and own != given:
        return f"; it was made for model_version {printable(given)}, the base is {printable(own)}"
    theirs, ours = model_of(delta.module for delta in adapter.deltas), model_of(base.tensors)
    if theirs is not None and ours is not None and theirs != ours and not {theirs, ours} <= {"LTX-2", "LTX-Video"}:
        return f"; its names are {theirs}'s, the base is {ours}: an adapter for another model, not a misspelling"
    if 2 * wrong > len(adapter.deltas) and theirs is not None and theirs == ours:
        return f"; both have {ours}'s names: it may be made for another version of the model"
    return ""
