"""The deltas that one module's tensors make: which kinds they are, complete and of shapes that multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ltx2c.adapters.config import PeftConfig
from ltx2c.adapters.deltas import Delta, Full, LoHa, LoKr, LowRank, Magnitude, Whole
from ltx2c.adapters.deltas.delta import check_factor
from ltx2c.adapters.deltas.factored import Factored
from ltx2c.adapters.deltas.lokr import Side
from ltx2c.adapters.deltas.lowrank import check_pair
from ltx2c.adapters.formats import TARGETS, Role
from ltx2c.adapters.scaling import AlphaMode, Scaling, read_alpha
from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.files.url import AnyPath

Tensors = dict[Role, StoredTensor]

_LORA: tuple[Role, ...] = ("A", "B", "mid", "B.bias")
_LOHA: tuple[Role, ...] = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")
_LOKR: tuple[Role, ...] = ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2")
_FULL: tuple[Role, ...] = ("diff", "diff_b", "diff_m", "w_norm", "b_norm")
_DORA: tuple[Role, ...] = ("dora_scale", "magnitude")
_WHOLE: tuple[Role, ...] = ("whole_weight", "whole_bias")


@dataclass
class Module:
    """What an adapter file holds for one module.

    Attributes:
        name: namespace removed.
        underscored: whether the name's dots are written as underscores.
        config: PEFT's configuration, where there is one for it.
        tensors: by role.
    """

    name: str
    underscored: bool
    config: PeftConfig | None = None
    tensors: Tensors = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all its tensors."""
        return tuple(tensor.key for tensor in self.tensors.values())


def module_deltas(
    module: Module, adapter: AnyPath, alpha: AlphaMode, stated: Callable[[int], Scaling]
) -> tuple[Delta, ...]:
    """The deltas of one module, in the order in which they are fused: of its weight first.

    Args:
        alpha: what counts as one.
        stated: for a rank, what the rest of the file says of a module that holds no alpha.

    Raises:
        RefusedError: ``missing-factor``, ``bad-factor``, ``rank-mismatch``, ``bad-alpha``.
    """
    builder = _Builder(module, adapter, alpha, stated)
    deltas = tuple(builder.deltas())
    if not any(delta.target == "weight" for delta in deltas):
        builder.refuse_leftovers(deltas)
    return deltas


class _Builder:
    def __init__(self, module: Module, adapter: AnyPath, alpha: AlphaMode, stated: Callable[[int], Scaling]) -> None:
        self._module = module
        self._tensors: Mapping[Role, StoredTensor] = module.tensors
        self._adapter = adapter
        self._where = printable(adapter)
        self._stated = stated
        self._alpha = None
        if "alpha" in module.tensors:
            value = read_alpha(module.tensors["alpha"], self._where)
            self._alpha = None if alpha == "ignore" else value
        self._config = None if alpha == "ignore" else module.config

    def deltas(self) -> Iterator[Delta]:
        held = self._tensors.keys()
        if held & set(_LORA):
            yield from self._lora()
        if held & set(_LOHA):
            yield self._loha()
        if held & set(_LOKR):
            yield self._lokr()
        for role in _FULL:
            if role in held:
                yield Full(tensor=self._full(role), **self._common(TARGETS.get(role, "weight"), Scaling()))
        for role in _WHOLE:
            if role in held:
                yield Whole(tensor=self._full(role), **self._common(TARGETS.get(role, "weight"), Scaling()))

    def refuse_leftovers(self, deltas: tuple[Delta, ...]) -> None:
        """Refuse an alpha or a magnitude that belongs to nothing."""
        held = self._tensors.keys()
        if held & set(_DORA) or not deltas:
            self._refuse_missing("A", "B")

    def _lora(self) -> Iterator[Delta]:
        self._need("A", "B")
        a, b, mid = self._tensors["A"], self._tensors["B"], self._tensors.get("mid")
        check_pair(a, b, mid, self._where)
        config = self._module.config
        transposed = config is not None and config.transposed and len(a.shape) == len(b.shape) == 2
        scaling = self._scaling(b.shape[1])
        yield LowRank(a=a, b=b, mid=mid, transposed=transposed, **self._common("weight", scaling))
        if "B.bias" in self._tensors:
            yield Full(tensor=self._full("B.bias"), **self._common("bias", scaling))

    def _loha(self) -> Delta:
        self._need("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
        if "hada_t1" in self._tensors or "hada_t2" in self._tensors:
            self._need("hada_t1", "hada_t2")
        get = self._tensors.get
        one = Factored(self._tensors["hada_w1_a"], self._tensors["hada_w1_b"], get("hada_t1"))
        two = Factored(self._tensors["hada_w2_a"], self._tensors["hada_w2_b"], get("hada_t2"))
        one.check(self._where)
        two.check(self._where)
        if one.shape != two.shape:
            raise RefusedError(
                f"{self._where}: the halves of LoHa differ: {printable(one.a.key)} gives {list(one.shape)}, "
                f"{printable(two.a.key)} {list(two.shape)}",
                code="halves-mismatch",
            )
        return LoHa(one=one, two=two, **self._common("weight", self._scaling(one.rank)))

    def _lokr(self) -> Delta:
        one, two = self._side("lokr_w1", "lokr_w1_a", "lokr_w1_b"), self._side("lokr_w2", "lokr_w2_a", "lokr_w2_b")
        one.check(self._where)
        two.check(self._where)
        rank = two.rank or one.rank
        if rank is not None:
            scaling = self._scaling(rank)
        elif self._config is not None and self._alpha is None:  # PEFT's: alpha over the configured rank in any case
            scaling = self._config.scaling(self._module.name, self._config.rank_of(self._module.name, 1))
        else:
            scaling = Scaling()
        return LoKr(one=one, two=two, **self._common("weight", scaling))

    def _side(self, whole: Role, a: Role, b: Role) -> Side:
        get = self._tensors.get
        core = get("lokr_t2") if whole == "lokr_w2" else None
        if whole in self._tensors:
            if a in self._tensors or b in self._tensors or core is not None:
                self._refuse_duplicate(whole, a if a in self._tensors else b if b in self._tensors else "lokr_t2")
            return Side(get(whole), None)
        if a not in self._tensors and b not in self._tensors:
            self._refuse_missing(whole)
        self._need(a, b)
        return Side(None, Factored(self._tensors[a], self._tensors[b], core))

    def _full(self, role: Role) -> StoredTensor:
        tensor = self._tensors[role]
        check_factor(tensor, role, self._where, least=0)
        return tensor

    def _common(self, target: str, scaling: Scaling) -> dict[str, Any]:
        return {
            "module": self._module.name,
            "target": target,
            "scaling": scaling,
            "adapter": self._adapter,
            "underscored": self._module.underscored,
            "magnitude": self._magnitude() if target == "weight" else None,
        }

    def _magnitude(self) -> Magnitude | None:
        held = [role for role in _DORA if role in self._tensors]
        if len(held) == 2:
            self._refuse_duplicate("dora_scale", "magnitude")
        for role in held:
            tensor = self._tensors[role]
            check_factor(tensor, "of DoRA's magnitude", self._where, least=1)
            if sum(extent != 1 for extent in tensor.shape) > 1:
                raise RefusedError(
                    f"{self._where}: {printable(tensor.key)} {list(tensor.shape)} cannot be DoRA's magnitude: it has "
                    "one length for each output, or for each input",
                    code="bad-factor",
                )
            return Magnitude(tensor, scales_the_step=role == "dora_scale")
        return None

    def _scaling(self, rank: int) -> Scaling:
        if self._alpha is not None:
            rooted = self._config is not None and self._config.rooted
            return Scaling(self._alpha, rank, rooted, ".alpha")
        if self._config is not None:
            return self._config.scaling(self._module.name, rank)
        return self._stated(rank)

    def _need(self, *roles: Role) -> None:
        missing = [role for role in roles if role not in self._tensors]
        if missing:
            self._refuse_missing(*missing)

    def _refuse_missing(self, *roles: Role) -> None:
        held = ", ".join(printable(key) for key in self._module.keys)
        raise RefusedError(
            f"{self._where}: module {printable(self._module.name)} has no {' and no '.join(roles)}, only {held}",
            code="missing-factor",
        )

    def _refuse_duplicate(self, one: Role, other: Role) -> None:
        raise RefusedError(
            f"{self._where}: module {printable(self._module.name)} has two of one kind: "
            f"{printable(self._tensors[one].key)} and {printable(self._tensors[other].key)}",
            code="duplicate-factor",
        )
