"""What a plan's output will be, to the byte: its files, their headers and metadata. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ltx2c.adapters import Adapter
from ltx2c.files.layout import FileLayout, plan_file
from ltx2c.plan import Plan
from ltx2c.version import CONTRACT, __version__

VERSION_KEY = "ltx2c.version"
CONTRACT_KEY = "ltx2c.contract"
ADAPTERS_KEY = "ltx2c.adapters"


def lay_out(plan: Plan) -> FileLayout:
    """The output file: the base's keys in its order, its dtypes, its metadata and ours.

    Raises:
        RefusedError: ``header-length``.
    """
    return plan_file(plan.base.path.name, plan.base.tensors.values(), fused_metadata(plan))


def fused_metadata(plan: Plan) -> dict[str, str]:
    """The base's metadata with how the file came about. No times: the same inputs give the same bytes.

    Fusing into a file that ltx2c has fused before adds to its list of adapters.
    """
    adapters = [
        {**_identity(adapter), "strength": strength, "pairs": fused}
        for (adapter, strength), fused in zip(plan.adapters, plan.pairs_fused, strict=True)
    ]
    return {
        **plan.base.metadata,
        VERSION_KEY: __version__,
        CONTRACT_KEY: CONTRACT,
        ADAPTERS_KEY: json.dumps([*_fused_before(plan.base.metadata), *adapters]),
    }


def _identity(adapter: Adapter) -> dict[str, Any]:
    files = adapter.checkpoint.files
    headers = [file.header_sha256 for file in files]
    return {
        "file": adapter.path.name,
        "size": sum(file.size for file in files),
        "sha256": headers[0] if len(headers) == 1 else hashlib.sha256("".join(headers).encode()).hexdigest(),
    }


def _fused_before(metadata: Mapping[str, str]) -> list[Any]:
    try:
        before = json.loads(metadata.get(ADAPTERS_KEY, "[]"))
    except (ValueError, RecursionError):
        return []
    return before if isinstance(before, list) else []
