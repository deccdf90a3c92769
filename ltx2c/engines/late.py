"""Bytes of an output that are known late: companions, which lie anywhere, and are known once their weight is fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ltx2c.engines.weights import WeightInWork
from ltx2c.files.layout import FileLayout, OutputLayout
from ltx2c.layouts import StoredWeight

Patch = Callable[[str, int, memoryview], None]


class Late:
    """Takes companions as they become known, and puts them where the output has passed already or will come to.

    What lies in front, in this file or another, is patched. What is still to come waits and goes into its block.
    """

    def __init__(self, layout: OutputLayout, weights: Iterable[StoredWeight], patch: Patch) -> None:
        """``patch``: overwrites bytes of the file of that name from an offset on."""
        late = {spec.key for stored in weights for spec in stored.companions.values()}
        self._places = {
            placed.tensor.key: (file.name, placed.begin)
            for file in layout.files
            for placed in file.tensors
            if placed.tensor.key in late
        }
        self._unknown: dict[str, dict[int, int]] = {file.name: {} for file in layout.files}  # begin -> end
        for file in layout.files:
            for placed in file.tensors:
                if placed.tensor.key in late:
                    self._unknown[file.name][placed.begin] = placed.begin + placed.tensor.nbytes
        self._passed: dict[str, int] = {}
        self._waiting: dict[str, dict[int, memoryview]] = {}
        self._patch = patch

    def is_settled(self, file: FileLayout) -> bool:
        """Whether everything in a file that has been passed is known."""
        return not self._unknown[file.name]

    def owes(self, name: str, begin: int, end: int) -> bool:
        """Whether anything between two offsets of the file of that name is not known yet."""
        return any(low < end and begin < high for low, high in self._unknown[name].items())

    def put(self, weight: WeightInWork) -> None:
        """Take the companions of a weight that has been fused."""
        for role, spec in weight.written.companions.items():
            name, begin = self._places[spec.key]
            data = np.ascontiguousarray(weight.results[role]).reshape(-1).view(np.uint8).data
            passed = min(len(data), max(0, self._passed.get(name, 0) - begin))
            if passed:
                self._patch(name, begin, data[:passed])
            if passed < len(data):
                self._waiting.setdefault(name, {})[begin + passed] = data[passed:]
            del self._unknown[name][begin]

    def fill(self, file: FileLayout, begin: int, data: memoryview) -> None:
        """Put what is known into bytes that are about to be written from offset ``begin`` of a file on."""
        end = begin + len(data)
        waiting = self._waiting.get(file.name, {})
        for offset in [offset for offset in waiting if offset < end]:
            known = waiting.pop(offset)
            here = known[: end - offset]
            data[offset - begin : offset - begin + len(here)] = here
            if len(here) < len(known):
                waiting[end] = known[len(here) :]
        self._passed[file.name] = end
