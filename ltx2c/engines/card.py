"""A model card for a result: what it was made from, for a hub and for people. It states no licence of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ltx2c.files import Checkpoint
from ltx2c.files.url import Url
from ltx2c.plan.opened import OpenedPlan

CARD_NAME = "README.md"

_SNAPSHOT = re.compile(r"/models--(?P<org>[^/]+?)--(?P<repo>[^/]+)/snapshots/[^/]+(?P<rest>/|$)")
_FRONT = re.compile(r"---\r?\n(.*?)\r?\n---\s*(?:\r?\n|\Z)", re.DOTALL)
_LICENCE = re.compile(r"^(license|license_name|license_link):[ \t]+(\S.*?)[ \t\r]*$", re.MULTILINE)
_LARGEST = 1 << 20


def model_card(opened: OpenedPlan) -> bytes:
    """The card of a plan's result.

    ``base_model`` lists what the hub can know, by the place in its cache that each was read from; the licence is what
    the base's own card or metadata states, and nothing where it states none.

    Raises:
        OSError: a card beside an input cannot be read.
    """
    plan, sources = opened
    checkpoints = sources.checkpoints
    repositories = list(dict.fromkeys(filter(None, map(_repository, checkpoints))))
    front = [
        *(["base_model:", *(f"- {json.dumps(one)}" for one in repositories)] if repositories else []),
        "base_model_relation: merge",
        *(f"{name}: {value}" for name, value in _licence(sources.base).items()),
        "tags:",
        "- lora",
        "- merge",
    ]
    lines = [
        "---",
        *front,
        "---",
        "",
        "# Fused by ltx2c",
        "",
        f"Arithmetic `{plan.arithmetic.name}`; in this order:",
        "",
    ]
    lines.append(f"- base: {_named(sources.base)}")
    for one, adapter in zip(plan.adapters, sources.adapters, strict=True):
        lines.append(f"- adapter at strength {one.strength:g}: {_named(adapter.checkpoint)}")
        lines += [f"  - {name}: {value}" for name, value in _licence(adapter.checkpoint).items()]
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _named(checkpoint: Checkpoint) -> str:
    name, repository = checkpoint.path.absolute().name, _repository(checkpoint)
    shown = json.dumps(name, ensure_ascii=False)
    return f"{shown} of {repository}" if repository else shown


def _repository(checkpoint: Checkpoint) -> str | None:
    found = _SNAPSHOT.search(str(checkpoint.path.absolute()))
    return f"{found['org']}/{found['repo']}" if found else None


def _licence(checkpoint: Checkpoint) -> Mapping[str, str]:
    """What a checkpoint's card states, else its metadata."""
    for card in _cards(checkpoint):
        if card.is_file() and card.stat().st_size <= _LARGEST:
            front = _FRONT.match(card.read_text(encoding="utf-8", errors="replace"))
            stated = dict(_LICENCE.findall(front[1])) if front else {}
            if stated:
                return stated
    stated_in_file = checkpoint.metadata.get("license") or checkpoint.metadata.get("modelspec.license")
    return {"license": json.dumps(stated_in_file)} if stated_in_file else {}


def _cards(checkpoint: Checkpoint) -> Iterator[Path]:
    """Where a card may lie: at the top of a snapshot; else in the folder that was given, or the file's; of no URL."""
    path = checkpoint.path.absolute()
    if isinstance(path, Url):
        return
    found = _SNAPSHOT.search(str(path))
    if found:
        yield Path(str(path)[: found.start("rest")]) / CARD_NAME
    yield (path if path.is_dir() else path.parent) / CARD_NAME
