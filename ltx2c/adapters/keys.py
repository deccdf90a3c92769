"""Key formats as data: which tensor of an adapter file plays which role for which module.

A new way of spelling a factor is a row in ``ROLES``; a new namespace is a row in ``ADAPTER_PREFIXES`` or
``BASE_PREFIXES``. ``LOOKALIKES`` names what is recognised and not read, for the sake of a refusal that helps.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

Role = Literal["A", "B", "alpha"]

# Key ending -> the role of that tensor.
ROLES: dict[str, Role] = {".lora_A.weight": "A", ".lora_B.weight": "B", ".alpha": "alpha"}

# Namespaces that adapter writers put before a module's name; the first that fits is removed.
ADAPTER_PREFIXES = ("model.diffusion_model.", "diffusion_model.")

# Namespaces under which a base may hold the module: monolith files have one, split files none.
BASE_PREFIXES = ("model.diffusion_model.", "")

_MOST_PARTS = 8  # of a key, separated by dots, behind its module's name; known kinds have one or two

WHOLE_WEIGHT = "a whole weight"

# Part of a key, closed with a dot -> what a reader should be told it is. The first that fits speaks.
LOOKALIKES = {
    ".dora_scale.": "a DoRA magnitude",
    ".lora_magnitude_vector.": "a DoRA magnitude",
    ".hada_": "a LoHa factor",
    ".lokr_": "a LoKr factor",
    ".lora_mid": "a LoCon middle factor",
    ".lora_down.": "a factor in kohya's spelling",
    ".lora_up.": "a factor in kohya's spelling",
    "_lora.": "a factor in an older spelling",
    ".lora.": "a factor in an older spelling",
    ".lora_linear_layer.": "a factor in an older spelling",
    ".lora_A": "a factor in another spelling",
    ".lora_B": "a factor or bias in another spelling",
    ".diff.": "a full difference, not a pair",
    ".diff_b.": "a full difference of a bias",
    ".diff_m.": "a full difference, not a pair",
    ".weight.": WHOLE_WEIGHT,
    ".bias.": "a whole bias",
}


class FactorKey(NamedTuple):
    """An understood key: ``module`` with its namespace removed, and the tensor's ``role`` for it."""

    module: str
    role: Role


def parse(key: str) -> FactorKey | None:
    """What ``key`` is in an adapter file, or None where it is of no kind that ltx2c reads."""
    for ending, role in ROLES.items():
        if key.endswith(ending):
            return FactorKey(_without_prefix(key[: -len(ending)]), role)
    return None


def _without_prefix(name: str) -> str:
    for prefix in ADAPTER_PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def belongs_to(key: str, modules: Container[str]) -> bool:
    """Whether ``key`` names a part of one of ``modules``."""
    name = _without_prefix(key)
    for _ in range(_MOST_PARTS):
        name, dot, _ = name.rpartition(".")
        if dot and name in modules:
            return True
    return False


def looks_like(key: str) -> str:
    """What a key that ``parse`` does not understand looks like, for a person."""
    return next((what for part, what in LOOKALIKES.items() if part in f"{key}."), "nothing an adapter holds")


def weight_keys(module: str, base: Container[str]) -> list[str]:
    """Every key under which ``base`` holds ``module``'s weight: none, one, or more where it is ambiguous."""
    return [key for prefix in BASE_PREFIXES if (key := f"{prefix}{module}.weight") in base]
