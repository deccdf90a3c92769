"""What a checkpoint says of itself: ComfyUI's marks of quantised layers."""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Iterable, Mapping

from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.files.packed import parse_packed

METADATA = "_quantization_metadata"  # in a file's metadata: JSON, {"layers": {name: {"format": ...}}}
MARK = ".comfy_quant"  # beside a weight: U8, the bytes of {"format": ...}
ACTIVATION_SCALES = (".input_scale", ".scale_input")  # of what a layer in codes is multiplied with
SCALED_FP8 = "scaled_fp8"  # ends the name of a tensor that says of its dtype alone: FP8 weights have scales
MOST_MARK_BYTES = 1 << 16


def declared_format(tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str], module: str) -> str | None:
    """The format that the checkpoint declares for ``module``, as ComfyUI names it; None where it says nothing.

    Raises:
        RefusedError: ``bad-quantization-metadata``: it cannot be read.
    """
    mark = tensors.get(module + MARK)
    if mark is not None:
        where = f"{printable(mark.file.path)}: {printable(mark.key)}"
        if mark.dtype != "U8" or mark.nbytes > MOST_MARK_BYTES:
            raise _unreadable(where, f"{mark.dtype} of {mark.nbytes} bytes")
        return _format(_parsed(where, bytes(mark.read().tobytes())), where)
    if METADATA not in metadata:
        return None
    layers = _layers(metadata[METADATA])
    # Names may lack the namespace that the file's keys have.
    name = next((name for name in _endings(module) if name in layers), None)
    return None if name is None else _format(layers[name], f"{METADATA} of {printable(name)}")


def unneeded(tensors: Container[str], module: str) -> list[str]:
    """What lies beside a module's weight and has no meaning where that is not in codes any more."""
    return [module + ending for ending in (MARK, *ACTIVATION_SCALES) if module + ending in tensors]


def declared_anew(metadata: Mapping[str, str], gone: Iterable[str], new: Mapping[str, str]) -> dict[str, str]:
    """A file's metadata where the formats of some layers are others than it declares.

    Args:
        gone: modules that are in no codes any more.
        new: module -> the format that it has now.

    Raises:
        RefusedError: ``bad-quantization-metadata``: what is declared cannot be read.
    """
    kept = {key: value for key, value in metadata.items() if key != METADATA}
    formats = dict(new)
    if METADATA in metadata:
        layers = _layers(metadata[METADATA])
        ended = {ending for module in gone for ending in _endings(module)}
        stay = {name: layer for name, layer in layers.items() if name not in ended}
        if len(stay) == len(layers) and not new:
            return dict(metadata)
        formats = {name: _format(layer, METADATA) for name, layer in stay.items()} | formats
    return kept | quantisation_entry(formats)


def quantisation_entry(formats: Mapping[str, str]) -> dict[str, str]:
    """The metadata that declares layers' formats to ComfyUI; ``formats``: by module. Empty where there are none."""
    if not formats:
        return {}
    layers = {module: {"format": name} for module, name in formats.items()}
    return {METADATA: json.dumps({"format_version": "1.0", "layers": layers})}


def _endings(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]


@functools.lru_cache(maxsize=4)
def _layers(text: str) -> Mapping[str, object]:
    parsed = _parsed(METADATA, text)
    layers = parsed.get("layers") if isinstance(parsed, dict) else None
    if not isinstance(layers, dict):
        raise _unreadable(METADATA, "no object of layers")
    return layers


def _parsed(where: str, text: str | bytes) -> object:
    try:
        return parse_packed(text)
    except ValueError as error:
        raise _unreadable(where, f"no JSON: {printable(error)}") from None


def _format(entry: object, where: str) -> str:
    found = entry.get("format") if isinstance(entry, dict) else None
    if not isinstance(found, str):
        raise _unreadable(where, "no format")
    return found


def _unreadable(where: str, why: str) -> RefusedError:
    return RefusedError(f"{where} does not say how a layer is quantised: {why}", code="bad-quantization-metadata")
