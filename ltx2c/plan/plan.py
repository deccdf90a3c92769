"""A plan: for each weight of a base, what is fused into it. A value, which holds no file and no array."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ltx2c.arithmetic import Arithmetic, arithmetic_named
from ltx2c.errors import RefusedError, printable
from ltx2c.files.paths import remembered_place
from ltx2c.layouts import StoredWeight, TensorSpec, converted, layout_named
from ltx2c.plan.match import UnmatchedKey
from ltx2c.plan.sources import DeltaRef, Source

VERSION_KEY = "ltx2c_plan"
VERSION = 1


@dataclass(frozen=True)
class AppliedDelta:
    """One delta as it enters one weight.

    Attributes:
        delta: which.
        effective_strength: a float32 number.
        rows: ``(begin, end)`` of the delta's rows, where a fused projection's are shared out; None for all.
        at: the weight's row that the first of them enters.
        step: where DoRA's whole step is scaled (LyCORIS'), by how much.
        whole: whether all rows of the weight are needed at once: DoRA by columns.
    """

    delta: DeltaRef
    effective_strength: float
    rows: tuple[int, int] | None = None
    at: int = 0
    step: float | None = None
    whole: bool = False

    def as_json(self, adapter: int) -> dict[str, Any]:
        """In JSON's own types; ``adapter`` is its number."""
        placed = {"rows": self.rows, "at": self.at, "step": self.step, "whole": self.whole}
        plain = {name: value for name, value in placed.items() if value not in (None, False) or name == "step"}
        return {**vars(self.delta), "adapter": adapter, "strength": self.effective_strength, **plain}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], source: Source) -> AppliedDelta:
        """What ``as_json`` gave."""
        rows, step = entry.get("rows"), entry.get("step")
        return cls(
            DeltaRef(source, entry["key"], entry["macs"], entry["nbytes"]),
            float(entry["strength"]),
            None if rows is None else (int(rows[0]), int(rows[1])),
            int(entry.get("at", 0)),
            None if step is None else float(step),
            bool(entry.get("whole", False)),
        )


Deltas = tuple[AppliedDelta, ...]
"""What is fused into one weight, in fusion order. Two weights of one base with equal deltas hold the same bytes."""

Fusions = Mapping[str, Deltas]
"""Weight key -> its deltas. A key that is absent has none, and holds the base's bytes."""


@dataclass(frozen=True)
class PlannedAdapter:
    """One adapter of a state: ``deltas`` that it holds, of which ``deltas_fused`` take part."""

    source: Source
    strength: float
    deltas: int
    deltas_fused: int


@dataclass(frozen=True)
class Plan:
    """What it takes to bring a base to a state. Equal plans give the same bytes, in whatever process.

    Attributes:
        base: what is fused into.
        adapters: the state: adapters with their strengths, in fusion order.
        fusions: in the base's key order. Only weights that are fused; empty when every strength is 0, which is the
            base state.
        weights: how each of them is stored, and each that the result stores in another layout.
        arithmetic: what is computed.
        options: that change bytes and were given, in JSON's own types.
        unmatched: adapter keys that no tensor of the base fits, in adapter order.
        notes: what a user should be told.
        tensors: how many the result holds; of a pipeline, in the components that are written.
        bytes_written: tensor bytes of the result.
        base_bytes: tensor bytes of the base that it is made from.
    """

    base: Source
    adapters: tuple[PlannedAdapter, ...]
    fusions: Fusions
    weights: Mapping[str, StoredWeight]
    arithmetic: Arithmetic
    options: Mapping[str, Any]
    unmatched: tuple[UnmatchedKey, ...]
    notes: tuple[str, ...]
    tensors: int
    bytes_written: int
    base_bytes: int

    @cached_property
    def written(self) -> Mapping[str, StoredWeight]:
        """How the result stores each of ``weights``."""
        out_dtype, keep = self.options.get("out_dtype"), self.options.get("keep", ())
        return MappingProxyType({key: converted(stored, out_dtype, keep) for key, stored in self.weights.items()})

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of the whole plan."""
        return sum(one.delta.macs for deltas in self.fusions.values() for one in deltas)

    @cached_property
    def bytes_read(self) -> int:
        """Tensor bytes of the whole base, and of what adds to it, each once."""
        return self.base_bytes + sum(one.delta.nbytes for deltas in self.fusions.values() for one in deltas)

    def to_json(self) -> str:
        """The plan as a JSON text, for another process. Floats are written so that they are read back to the bit."""
        number = {adapter.source: at for at, adapter in enumerate(self.adapters)}
        return json.dumps(
            {
                VERSION_KEY: VERSION,
                "base": self.base.as_json(),
                "adapters": [{**vars(one), "source": one.source.as_json()} for one in self.adapters],
                "fusions": {
                    key: [one.as_json(number[one.delta.adapter]) for one in deltas]
                    for key, deltas in self.fusions.items()
                },
                "weights": {key: _stored_as_json(stored) for key, stored in self.weights.items()},
                "arithmetic": self.arithmetic.name,
                "options": dict(self.options),
                "unmatched": [{"adapter": str(left.adapter), "key": left.key} for left in self.unmatched],
                "notes": list(self.notes),
                "tensors": self.tensors,
                "bytes_written": self.bytes_written,
                "base_bytes": self.base_bytes,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote: an equal one.

        Raises:
            RefusedError: ``bad-plan``: the text is no plan, or one of another version.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"not a plan: {printable(error)}", code="bad-plan") from None
        version = document.get(VERSION_KEY) if isinstance(document, dict) else None
        if version != VERSION:
            raise RefusedError(
                f"not a plan of this version: {VERSION_KEY} is {printable(version)}, not {VERSION}", code="bad-plan"
            )
        try:
            return cls._from(document)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:  # a RefusedError is one
            raise RefusedError(f"a damaged plan: {printable(repr(error))}", code="bad-plan") from None

    @classmethod
    def _from(cls, document: Mapping[str, Any]) -> Plan:
        adapters = [
            PlannedAdapter(**{**entry, "source": Source.from_json(entry["source"])}) for entry in document["adapters"]
        ]
        fusions = {
            key: tuple(AppliedDelta.from_json(one, adapters[one["adapter"]].source) for one in deltas)
            for key, deltas in document["fusions"].items()
        }
        plan = cls(
            base=Source.from_json(document["base"]),
            adapters=tuple(adapters),
            fusions=MappingProxyType(fusions),
            weights=MappingProxyType({key: _stored_from_json(one) for key, one in document["weights"].items()}),
            arithmetic=arithmetic_named(document["arithmetic"]),
            options=MappingProxyType(dict(document["options"])),
            unmatched=tuple(
                UnmatchedKey(remembered_place(left["adapter"]), left["key"]) for left in document["unmatched"]
            ),
            notes=tuple(document["notes"]),
            tensors=int(document["tensors"]),
            bytes_written=int(document["bytes_written"]),
            base_bytes=int(document["base_bytes"]),
        )
        plan.written.keys()  # its options are looked at
        return plan


def _stored_as_json(stored: StoredWeight) -> dict[str, Any]:
    return {
        "layout": stored.layout.name,
        "codes": stored.codes,
        "companions": dict(stored.companions),
        "shape": stored.shape,
    }


def _stored_from_json(entry: Mapping[str, Any]) -> StoredWeight:
    companions = {role: _spec(*spec) for role, spec in entry["companions"].items()}
    return StoredWeight(layout_named(entry["layout"]), _spec(*entry["codes"]), companions, tuple(entry["shape"]))


def _spec(key: str, dtype: str, shape: Iterable[int]) -> TensorSpec:
    return TensorSpec(key, dtype, tuple(shape))
