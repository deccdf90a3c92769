"""Quantised layers of kinds that are recognised and not fused, so that a refusal can say what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Container

ADVICE = "fuse the bf16 checkpoint, then quantise the result"

# Endings of tensors in the place of ``.weight`` or beside it -> what such a layer is. The first that is there speaks.
KINDS = {
    ".weight.absmax": "quantised by bitsandbytes",
    ".weight.quant_state.bitsandbytes__nf4": "quantised by bitsandbytes",
    ".weight.quant_state.bitsandbytes__fp4": "quantised by bitsandbytes",
    ".SCB": "INT8, quantised by bitsandbytes",
    ".weight_format": "INT8, quantised by bitsandbytes",
    ".wscales": "quantised by SVDQuant (nunchaku)",
    ".proj_down": "quantised by SVDQuant (nunchaku)",
    ".smooth_factor": "quantised by SVDQuant (nunchaku)",
    ".qzeros": "quantised by GPTQ or AWQ",
    ".qweight": "packed integers",
    ".weight_packed": "packed by compressed-tensors",
    ".weight_zero_point": "quantised with zero points",
}

# ComfyUI's names of formats, by how they begin.
FORMATS = {
    "int8": "INT8",
    "convrot": "INT8 or INT4 (ConvRot)",
    "svdquant": "SVDQuant",
    "mxfp8": "MXFP8",
    "mxfp4": "MXFP4",
}


def foreign_kind(tensors: Container[str], module: str, dtype: str | None = None, declared: str | None = None) -> str:
    """What the layer ``module`` is, for a person, or "" where nothing known.

    Args:
        dtype: of its ``.weight``, where it has one.
        declared: the format that the checkpoint declares for it.
    """
    found = next((kind for ending, kind in KINDS.items() if module + ending in tensors), "")
    if declared and not found:
        found = next((kind for start, kind in FORMATS.items() if declared.startswith(start)), "")
        return f"{found}, {declared}" if found else ""
    if not found and dtype in ("I8", "I32"):
        return "quantised to integers"
    return found


def foreign_modules(keys: Collection[str]) -> dict[str, str]:
    """Layers of ``keys`` that have no ``.weight`` because theirs is stored under another name: module -> what it is."""
    packed = (".qweight", ".weight_packed")
    modules = (key.removesuffix(ending) for key in keys for ending in packed if key.endswith(ending))
    return {module: foreign_kind(keys, module) for module in modules}
