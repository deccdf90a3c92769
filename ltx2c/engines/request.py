"""What was asked for, as one digest of content, and whether a result that stands there already is that."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ltx2c.engines.provenance import KEY
from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile
from ltx2c.files.layout import OutputLayout
from ltx2c.files.packed import parse_packed
from ltx2c.files.remembered import remembered_sha256
from ltx2c.files.siblings import Sibling
from ltx2c.files.url import on_this_disk
from ltx2c.plan import Plan
from ltx2c.plan.opened import OpenedPlan
from ltx2c.plan.sources import Source

_VERSION = 1


class Request:
    """A request by content: not by names of single files, and not by times.

    Attributes:
        sha256: hex digest of it all.
        inputs: hex digest of each of the inputs' files.
    """

    def __init__(
        self,
        opened: OpenedPlan,
        layout: OutputLayout,
        max_shard_bytes: int | None,
        each: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads the inputs' files, as far as their digests are not remembered, and calls ``each`` now and then.

        Raises:
            OSError: as the system says.
            RefusedError: ``file-changed``, ``not-by-url``.
        """
        plan, sources = opened
        self.inputs = {file: remembered_sha256(on_this_disk(file.path, "reuse"), each) for file in sources.files}
        sources.check_unchanged()
        self._siblings = {sibling.name: remembered_sha256(sibling.path, each) for sibling in layout.siblings}
        whole = {
            "request": _VERSION,
            "arithmetic": plan.arithmetic.name,
            "options": dict(plan.options),
            "max_shard_bytes": max_shard_bytes,
            "base": [self.inputs[file] for file in sources.base.files],
            "adapters": [
                [one.strength, *(self.inputs[file] for file in adapter.checkpoint.files)]
                for one, adapter in zip(plan.adapters, sources.adapters, strict=True)
            ],
            "fused": _fused(plan),
            "files": [file.name for file in layout.files] if layout.is_folder else 1,
            "texts": {name: hashlib.sha256(content).hexdigest() for name, content in layout.texts.items()},
            "siblings": self._siblings,
        }
        self.sha256 = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def of_adapters(self, opened: OpenedPlan) -> list[str]:
        """As ``Digests.of_adapters``."""
        every = ([self.inputs[file] for file in one.checkpoint.files] for one in opened.sources.adapters)
        return [parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest() for parts in every]

    def differs(self, out: Path, layout: OutputLayout) -> str | None:
        """Why what stands at ``out`` is not whole what this request makes; None where it is.

        Raises:
            OSError: as the system says.
        """
        if out.is_dir() != layout.is_folder:
            return "it is a file" if layout.is_folder else "it is a folder"
        for file in layout.files:
            problem = self._differs(out / file.name if layout.is_folder else out)
            if problem:
                return f"{file.name}: {problem}" if layout.is_folder else problem
        for name, content in layout.texts.items():
            if not _is_file(out / name) or (out / name).read_bytes() != content:
                return f"{name} is missing or another"
        for sibling in layout.siblings:
            if not self._is_copy(out / sibling.name, sibling):
                return f"{sibling.name} is missing or another"
        return None

    def _differs(self, path: Path) -> str | None:
        try:
            with TensorFile.open(path) as file:
                told = _request_in(file.metadata)
        except FileNotFoundError:
            return "it is missing"
        except RefusedError as error:
            return str(error)
        if told is None:
            return "it does not say by which request it was made, as what is made with --reuse does"
        return None if told == self.sha256 else "it was made by another request"

    def _is_copy(self, path: Path, sibling: Sibling) -> bool:
        if not _is_file(path) or path.stat().st_size != sibling.size:
            return False
        return remembered_sha256(path) == self._siblings[sibling.name]


def _fused(plan: Plan) -> dict[str, Any]:
    """What enters each weight. Effective strengths stand for alpha, in whatever file it is stated."""
    number = {adapter.source: at for at, adapter in enumerate(plan.adapters)}
    return {key: list(_deltas(plan, key, number)) for key in plan.fusions}


def _deltas(plan: Plan, key: str, number: Mapping[Source, int]) -> Iterator[dict[str, Any]]:
    yield {"layout": plan.weights[key].layout.name}
    for one in plan.fusions[key]:
        told = one.as_json(0)
        del told["macs"], told["nbytes"]
        yield {**told, "adapter": number[one.delta.adapter]}


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and stat.S_ISREG(path.lstat().st_mode)


def _request_in(metadata: Mapping[str, str]) -> str | None:
    try:
        told = parse_packed(metadata.get(KEY, "{}"))
    except ValueError:
        return None
    request = told.get("request") if isinstance(told, dict) else None
    return request if isinstance(request, str) else None
