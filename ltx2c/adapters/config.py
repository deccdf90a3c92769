"""PEFT's configuration of an adapter: ``adapter_config.json`` beside it, or as JSON in diffusers' metadata."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ltx2c.adapters.scaling import Scaling
from ltx2c.errors import RefusedError, printable
from ltx2c.files.packed import parse_packed
from ltx2c.files.url import AnyPath

CONFIG_NAME = "adapter_config.json"
ADAPTER_NAME = "adapter_model.safetensors"

# diffusers puts PEFT's configuration there, as a JSON object whose names begin with a component's.
PACKED = "lora_adapter_metadata"

# PEFT's name of a kind -> whether its deltas are read here. Others are refused by that name.
KINDS = ("LORA", "LOHA", "LOKR")


# Patterns come from files that anyone can write. One that repeats a group, or repeats often, can take for ever.
_REPEATS = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_MOST_REPEATS, _MOST_LETTERS = 4, 300

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]*")


@dataclass(frozen=True)
class PeftConfig:
    """What decides the strength and the direction of an adapter's deltas.

    Attributes:
        rank, alpha: of modules that no pattern names.
        rank_pattern, alpha_pattern: PEFT's patterns of module names, each with its value.
        rooted: rsLoRA.
        transposed: fan_in_fan_out: weights are stored [in, out].
        source: what states it, for a person.
    """

    rank: int | None = None
    alpha: float | None = None
    rank_pattern: Mapping[str, float] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    rooted: bool = False
    transposed: bool = False
    source: str = ""

    def scaling(self, module: str, rank: int) -> Scaling:
        """Of one module, whose factors are of ``rank``."""
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return Scaling() if alpha is None else Scaling(alpha, rank, self.rooted, self.source)

    def rank_of(self, module: str, otherwise: int) -> int:
        """The rank that is stated for one module; ``otherwise`` where none is."""
        rank = _by_pattern(self.rank_pattern, module, self.rank)
        return otherwise if rank is None else int(rank)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str, source: str) -> PeftConfig:
        """Read a configuration's values.

        Raises:
            RefusedError: ``unsupported-delta``: of a kind that is not fused; ``bad-adapter-config``: a value that is
                none.
        """
        kind = values.get("peft_type") or "LORA"
        if kind not in KINDS:
            raise RefusedError(
                f"{where}: a {printable(kind)} adapter, which ltx2c does not fuse; it fuses {', '.join(KINDS)}",
                code="unsupported-delta",
            )
        alpha = "lora_alpha" if kind == "LORA" else "alpha"
        number = _Numbers(where, values)
        rank = number.one("r")
        return cls(
            rank=None if rank is None else int(rank),
            alpha=number.one(alpha),
            rank_pattern=number.pattern("rank_pattern"),
            alpha_pattern=number.pattern("alpha_pattern"),
            rooted=values.get("use_rslora") is True,
            transposed=values.get("fan_in_fan_out") is True,
            source=source,
        )


class _Numbers:
    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._values = values

    def one(self, name: str) -> float | None:
        value = self._values.get(name)
        return None if value is None else self._checked(name, value)

    def pattern(self, name: str) -> dict[str, float]:
        given = self._values.get(name) or {}
        if not isinstance(given, dict):
            self._refuse(name, given)
        for pattern in given:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError):
                self._refuse(name, pattern)
            often = len(_REPEATS.findall(pattern)) > _MOST_REPEATS or len(pattern) > _MOST_LETTERS
            if often or _REPEATED_GROUP.search(pattern):
                self._refuse(name, pattern)
        return {pattern: self._checked(f"{name} {pattern}", value) for pattern, value in given.items()}

    def _checked(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(name, value)
        assert isinstance(value, (int, float))
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or (name.split(" ")[0] in ("r", "rank_pattern") and number < 1):
            self._refuse(name, value)
        return number

    def _refuse(self, name: str, value: object) -> None:
        raise RefusedError(
            f"{self._where}: {printable(name)} of the adapter's configuration is {printable(value)}",
            code="bad-adapter-config",
        )


def _by_pattern(patterns: Mapping[str, float], module: str, otherwise: float | None) -> float | None:
    """The value of the first pattern that fits a module's name, or the end of it after a dot: PEFT's own rule."""
    for pattern, value in patterns.items():
        if _PLAIN_NAME.fullmatch(pattern) and (module == pattern or module.endswith(f".{pattern}")):
            return value
        if len(module) <= _MOST_LETTERS and re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise


def config_beside(path: AnyPath) -> AnyPath | None:
    """Where PEFT's configuration of an adapter lies: in its folder; beside a file that is called as PEFT calls it."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name == ADAPTER_NAME:
        config = folder / CONFIG_NAME
        return config if config.is_file() else None
    return None


def read_config(path: AnyPath) -> PeftConfig:
    """Read an ``adapter_config.json``. Raises RefusedError as ``PeftConfig.parse`` does, OSError as the system does."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{printable(path)}: no JSON: {printable(error)}", code="bad-adapter-config") from None
    if not isinstance(values, dict):
        raise RefusedError(f"{printable(path)}: no JSON object", code="bad-adapter-config")
    return PeftConfig.parse(values, printable(path), CONFIG_NAME)


def unpacked(text: str) -> dict[str, Any] | None:
    """The JSON object in diffusers' metadata; None where it is none, or one of megabytes."""
    try:
        packed = parse_packed(text)
    except ValueError:
        return None
    return packed if isinstance(packed, dict) else None


def packed_configs(metadata: Mapping[str, str], where: str) -> dict[str, PeftConfig]:
    """Component (``"transformer"``, or ``""``) -> its configuration in diffusers' metadata."""
    values = unpacked(metadata.get(PACKED, "{}")) or {}
    by_component: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        component, _, last = name.rpartition(".")
        by_component.setdefault(component, {})[last] = value
    return {
        component: PeftConfig.parse(fields, where, f"metadata {PACKED}")
        for component, fields in by_component.items()
        if "r" in fields or "lora_alpha" in fields or "alpha_pattern" in fields
    }
