"""What a fused file's metadata says of how it came about, and what it no longer says of its base."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ltx2c.files import StoredTensor
from ltx2c.files.layout import OutputTensor
from ltx2c.files.packed import parse_packed
from ltx2c.files.url import Url
from ltx2c.layouts import declared_anew
from ltx2c.layouts.modelopt import ENTRY
from ltx2c.plan import Plan
from ltx2c.plan.sources import Source
from ltx2c.plan.written import left_in_codes
from ltx2c.version import __version__

KEY = "ltx2c"
VERSION = 1

# What ComfyUI calls FP8 with one scale, which it does not know by the scale alone.
SCALED_FORMAT = "float8_e4m3fn"

# Facts of a base that are untrue of what is fused from it: digests of its weights, and when it was made.
STALE = ("modelspec.hash_sha256", "modelspec.date", "sshs_*hash")


def provenance(
    plan: Plan, base: Mapping[str, str], adapter_sha256: Sequence[str] | None = None, request: str | None = None
) -> str:
    """The JSON entry that says what was fused. No times: the same inputs give the same bytes.

    Args:
        base: the base's metadata. What it says of its own fusing is kept, within what is said of the base.
        adapter_sha256: digests of the adapters' whole content, one each.
        request: the digest of all that was asked for, where it was taken.
    """
    adapters = [{**_described(one.source), "strength": one.strength} for one in plan.adapters]
    for entry, digest in zip(adapters, adapter_sha256 or (), strict=False):
        entry["sha256"] = digest
    before = _fused_before(base)
    entry = {
        "version": VERSION,
        "program": f"ltx2c {__version__}",
        "arithmetic": plan.arithmetic.name,
        **plan.options,
        "base": _described(plan.base) | ({KEY: before} if before else {}),
        "adapters": adapters,
        **({"request": request} if request else {}),
    }
    return json.dumps(entry)


class Described:
    """Puts into files' metadata what a plan made of them."""

    def __init__(self, plan: Plan, entry: str, tensors: Mapping[str, StoredTensor]) -> None:
        """``entry``: from ``provenance``. ``tensors``: the base's."""
        self._entry = entry
        self._left = left_in_codes(plan, tensors)
        self._converted = {key: one for key, one in plan.written.items() if one.layout != plan.weights[key].layout}

    def metadata(self, before: Mapping[str, str], tensors: Iterable[OutputTensor]) -> dict[str, str]:
        """A file's metadata with what is stale left out and ours put in; ``tensors``: those in it."""
        kept = {key: value for key, value in before.items() if not any(fnmatchcase(key, stale) for stale in STALE)}
        held = [key for key in (tensor.key for tensor in tensors) if key in self._converted]
        if held:
            modules = {key: key.removesuffix(".weight") for key in held}
            scaled = {modules[key]: SCALED_FORMAT for key in held if self._converted[key].companions}
            kept = declared_anew(kept, modules.values(), scaled)
        if self._left == 0:
            kept.pop(ENTRY, None)
        return {**kept, KEY: self._entry}


def _described(source: Source) -> dict[str, Any]:
    place = source.place
    name = place.name if isinstance(place, Url) else Path(os.path.abspath(place)).name  # noqa: PTH100  (of ".." too)
    return {"name": name, "size": source.size, "header_sha256": source.header_sha256}


def _fused_before(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        before = parse_packed(metadata.get(KEY, "{}"))
    except ValueError:
        return {}
    return before if isinstance(before, dict) else {}
