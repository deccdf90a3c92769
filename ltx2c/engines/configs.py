"""What a model's folder says of its weights' quantisation, where the result has them dequantised.

A loader that believes it would look for scales that are there no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ltx2c.errors import printable
from ltx2c.files.packed import parse_packed
from ltx2c.files.siblings import Sibling
from ltx2c.layouts.modelopt import CONFIG, ENTRY, QUANT_CONFIG
from ltx2c.plan.opened import OpenedPlan
from ltx2c.plan.written import left_in_codes, written_components


class Siblings(NamedTuple):
    """What comes along: files that are copied, those that are written anew, and what a person should know."""

    files: tuple[Sibling, ...]
    texts: Mapping[str, bytes]
    notes: tuple[str, ...]


def without_quantisation(opened: OpenedPlan, siblings: Iterable[Sibling]) -> Siblings:
    """Take out of ``siblings`` what is untrue of components of which no weight is in codes any more.

    That is ``quantization_config`` in a component's ``config.json``, and ``hf_quant_config.json``. Where some weights
    are left in codes (``keep``), both stay, and a note says so.

    Raises:
        OSError: as the system says.
    """
    files = {sibling.name: sibling for sibling in siblings}
    texts: dict[str, bytes] = {}
    notes: list[str] = []
    for component in written_components(opened.sources.base, opened.plan.weights):
        left = left_in_codes(opened.plan, component.tensors)
        if left is None:
            continue
        within = f"{component.name}/" if component.name else ""
        config, other = files.get(within + CONFIG), files.get(within + QUANT_CONFIG)
        text = None if config is None else _without_entry(config)
        told = [one.name for one, stale in ((config, text is not None), (other, other is not None)) if one and stale]
        if told and left:
            notes.append(
                f"{printable(' and '.join(told))} still describes the base's quantisation: {left} weights are left in "
                "codes, and others are not"
            )
        elif told:
            if text is not None:
                texts[within + CONFIG] = text
            for name in told:
                del files[name]
            notes.append(f"left out what {printable(' and '.join(told))} says of quantisation")
    return Siblings(tuple(files.values()), texts, tuple(notes))


def _without_entry(sibling: Sibling) -> bytes | None:
    """The same JSON without the entry; None where there is none, or no JSON."""
    try:
        config = parse_packed(sibling.path.read_bytes())
    except ValueError:
        return None
    if not isinstance(config, dict) or ENTRY not in config:
        return None
    return (json.dumps({key: value for key, value in config.items() if key != ENTRY}, indent=2) + "\n").encode()
