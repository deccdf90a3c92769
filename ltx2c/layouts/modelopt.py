"""NVIDIA ModelOpt's checkpoints: what proves that one is, and why its NVFP4 is not read.

Its writer packs the first of two NVFP4 codes into the low half of a byte, where files with the other order have the
same dtypes, shapes and names. So what says of itself that ModelOpt wrote it is refused, and never decoded wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping

from ltx2c.files.packed import parse_packed
from ltx2c.files.url import AnyPath

QUANT_CONFIG = "hf_quant_config.json"
CONFIG = "config.json"
ENTRY = "quantization_config"  # in a file's metadata, or in config.json

_MOST_BYTES = 4_000_000


def modelopt_proof(folder: AnyPath, metadata: Mapping[str, str]) -> str | None:
    """What says that ModelOpt quantised the checkpoint in ``folder``; None where nothing does."""
    if _names_modelopt(_parsed(metadata.get(ENTRY))):
        return f"metadata {ENTRY}"
    if _names_modelopt(_parsed(_text(folder / QUANT_CONFIG))):
        return str(folder / QUANT_CONFIG)
    config = _parsed(_text(folder / CONFIG))
    if isinstance(config, dict) and _names_modelopt(config.get(ENTRY)):
        return f"{ENTRY} in {folder / CONFIG}"
    return None


def _names_modelopt(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    producer = entry.get("producer")
    names = [entry.get("quant_method"), producer.get("name") if isinstance(producer, dict) else producer]
    return any(isinstance(name, str) and name.lower().startswith("modelopt") for name in names)


def _text(path: AnyPath) -> bytes | None:
    """A small file's content; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            return bytes(file.read(_MOST_BYTES))
    except OSError:
        return None


def _parsed(text: str | bytes | None) -> object:
    """None where it is no JSON: then it says nothing."""
    try:
        return None if text is None else parse_packed(text)
    except ValueError:
        return None
