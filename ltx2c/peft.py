"""Merge the LoRA adapters of a PEFT model into its base, in memory: ``merge_and_unload`` by this library's kernels.

Neither PEFT nor torch is imported here: whoever has a model to merge has done that.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ltx2c.arithmetic import F32
from ltx2c.arrays import mark_written
from ltx2c.errors import RefusedError, printable
from ltx2c.fusion import Job, checked_job, fuse_jobs, race_among
from ltx2c.terms import FullTerm


def merge(model: Any, *, threads: int | None = None) -> Any:
    """Merge the active LoRA adapters of a PEFT model into its base weights, and return the base model without them.

    What ``model.merge_and_unload()`` does, under the ``f32`` arithmetic (see ``ltx2c.reference``): per adapter, in the
    order in which they are active, each weight in its place becomes ``f32(W + f32(scaling * (B @ A)))``, rounded once
    to the weight's dtype. All weights of an adapter are fused in one parallel region. PEFT leaves the order of the
    sum to torch, and rounds the delta of bfloat16 and float16 adapters to their dtype before it is added; so results
    are equal where every order of summation is exact, and otherwise differ by a rounding in some elements.

    Adapters that are merged already stay as they are, and whether adapters are disabled makes no difference, as in
    PEFT. ``modules_to_save`` take their modules' places.

    Args:
        model: a ``peft.PeftModel`` with LoRA adapters, or its ``base_model``, in memory on the CPU: ``lora.Linear``
            (``fan_in_fan_out`` and ``lora_bias`` too), ``lora.Embedding`` and ``lora.Conv1d`` to ``Conv3d`` without
            groups, of bfloat16, float32 or float16. It must not be used any more: its base model is the result.
        threads: how many to use; by default what this process may use.

    Returns:
        The base model.

    Raises:
        RefusedError: not such a model (``peft-model``, ``peft-version``); a module of another kind, quantised, with
            DoRA or another variant (``peft-kind``), of a dtype, shape or device that cannot be fused, or whose weight
            overlaps another's, named in the message. All are found before the first weight changes.
    """
    lora = _lora_of(model)
    tuner = model if isinstance(model, lora.LoraModel) else model.base_model
    merges = _merges(tuner, lora)
    rounds = [_checked(merges_at_once) for merges_at_once in _rounds(merges)]
    nonfinite = sum(_run(*merges_at_once, threads=threads) for merges_at_once in rounds)
    base = tuner.merge_and_unload(adapter_names=[])  # no adapter is left to merge: PEFT's own way to take them off
    for merged in merges:
        merged.mark()
    if nonfinite:
        warnings.warn(f"{nonfinite} weights are infinite or NaN after the merge and were not before", stacklevel=2)
    return base


class _Merge(NamedTuple):
    """One adapter of one module, onto one tensor: ``target`` is a matrix over the memory of ``parameter``."""

    module_name: str
    module: Any
    adapter: str
    parameter: Any
    target: Any
    term: tuple[Any, Any, float] | FullTerm

    def mark(self) -> None:
        """Tell the module, which may still be referred to from elsewhere, that its base has this adapter."""
        if self.adapter not in self.module.merged_adapters:
            self.module.merged_adapters.append(self.adapter)


def _run(merges: list[_Merge], jobs: list[Job], *, threads: int | None) -> int:
    """Fuse what can be fused at the same time; how many values became infinite or NaN."""
    for merged in merges:
        mark_written(merged.parameter)
    return sum(fuse_jobs(jobs, threads=threads))


# ---- Order ----------------------------------------------------------------------------------------------------------


def _rounds(merges: list[_Merge]) -> Iterator[list[_Merge]]:
    """The n-th merge of every tensor together, each tensor's in PEFT's order: a round per adapter.

    Modules with one tensor in common, such as tied embeddings, take turns: PEFT merges into it as often.
    """
    of_tensor: dict[int, list[_Merge]] = defaultdict(list)
    for merged in merges:
        of_tensor[merged.parameter.data_ptr()].append(merged)
    for number in range(max(map(len, of_tensor.values()), default=0)):
        yield [queue[number] for queue in of_tensor.values() if number < len(queue)]


def _checked(merges: list[_Merge]) -> tuple[list[_Merge], list[Job]]:
    """The jobs of a round, or a refusal that names the module."""
    jobs = []
    for merged in merges:
        try:
            jobs.append(checked_job(merged.target, [merged.term], merged.target, F32))
        except RefusedError as refused:
            raise RefusedError(
                f"{printable(merged.module_name)}, adapter '{printable(merged.adapter)}': {refused}", code=refused.code
            ) from None
    race = race_among(jobs)
    if race:
        one, other = (printable(merges[use.job].module_name) for use in race)
        raise RefusedError(f"{one}: its weight overlaps a tensor of {other} without being it", code="overlap")
    return merges, jobs


# ---- What is in the model -------------------------------------------------------------------------------------------


def _lora_of(model: Any) -> Any:
    """``peft.tuners.lora``, if this is a model with LoRA adapters."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, (peft.PeftModel, peft.tuners.lora.LoraModel)):
        raise RefusedError(f"the model is a {type(model).__name__}, not a PeftModel", code="peft-model")
    lora = peft.tuners.lora
    if not hasattr(lora.layer.LoraLayer, "resolve_lora_variant"):
        raise RefusedError(
            f"PEFT {printable(peft.__version__)} does not tell DoRA and other variants apart; 0.21 does",
            code="peft-version",
        )
    tuner = model if isinstance(model, lora.LoraModel) else model.base_model
    if not isinstance(tuner, lora.LoraModel):
        raise RefusedError(f"the model's adapters are of {type(tuner).__name__}, not of LoraModel", code="peft-kind")
    return lora


def _merges(tuner: Any, lora: Any) -> list[_Merge]:
    """Everything to merge, in PEFT's order; or a refusal of the first module of a kind that is not read here."""
    for adapter, config in tuner.peft_config.items():
        if getattr(config, "layer_replication", None):  # the copies share their base's weights, each with a delta
            raise _other_kind("the model", adapter, "layer_replication")
    other = sys.modules["peft.utils.other"]
    tuner_layer = sys.modules["peft.tuners.tuners_utils"].BaseTunerLayer
    inside = ""
    merges: list[_Merge] = []
    for name, module in tuner.model.named_modules():
        if isinstance(module, other.ModulesToSaveWrapper):
            inside = f"{name}."
        elif isinstance(module, other.AuxiliaryTrainingWrapper):
            raise _other_kind(name, module.active_adapters, type(module).__name__)
        elif isinstance(module, tuner_layer):
            if inside and name.startswith(inside):
                raise _other_kind(name, module.active_adapters, "an adapter inside modules_to_save")
            merges += _merges_of(name, module, lora)
    return merges


def _merges_of(name: str, module: Any, lora: Any) -> Iterator[_Merge]:
    targets = next((read for kind, read in _KINDS.items() if type(module) is getattr(lora.layer, kind, None)), None)
    if targets is None or hasattr(module.base_layer, "base_layer") or getattr(module, "quantization_backend", None):
        raise _other_kind(name, module.active_adapters, f"{type(module).__module__}.{type(module).__name__}")
    for adapter in module.active_adapters:
        if adapter in module.merged_adapters or adapter not in module.scaling:
            continue
        if adapter in module.lora_variant:
            raise _other_kind(name, adapter, type(module.lora_variant[adapter]).__name__)
        for parameter, target, term in targets(name, module, adapter):
            yield _Merge(name, module, adapter, parameter, target, term)


def _other_kind(name: str, adapters: Any, kind: str) -> RefusedError:
    return RefusedError(
        f"{printable(name)}, adapter '{printable(adapters if isinstance(adapters, str) else ', '.join(adapters))}': "
        f"{printable(kind)} is not read here; merge_and_unload() can merge it",
        code="peft-kind",
    )


# ---- The kinds of module: (parameter, its matrix, the term) of one adapter ------------------------------------------

_Targets = Iterator[tuple[Any, Any, "tuple[Any, Any, float] | FullTerm"]]


def _linear(name: str, module: Any, adapter: str) -> _Targets:
    a, b, scaling = module.lora_A[adapter].weight, module.lora_B[adapter].weight, module.scaling[adapter]
    weight = module.base_layer.weight
    if module.fan_in_fan_out:  # stored [in, out]: the delta's transpose is A' times B'
        yield weight, weight, (b.T, a.T, scaling)
    else:
        yield weight, weight, (a, b, scaling)
    yield from _bias(name, module, adapter)


def _embedding(name: str, module: Any, adapter: str) -> _Targets:
    weight = module.base_layer.weight  # [embeddings, dimensions]
    a, b = module.lora_embedding_A[adapter], module.lora_embedding_B[adapter]
    yield weight, weight, (b.T, a.T, module.scaling[adapter])


def _conv(name: str, module: Any, adapter: str) -> _Targets:
    """The kernel of B is a point, so the delta is a product of matrices over [in, kernel...] laid in a row."""
    weight = module.base_layer.weight
    if module.base_layer.groups > 1:
        raise _other_kind(name, adapter, f"a convolution of {module.base_layer.groups} groups")
    if not weight.is_contiguous():
        raise RefusedError(
            f"{printable(name)}: the weight's memory format is not contiguous: strides {weight.stride()}",
            code="layout",
        )
    a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    yield weight, weight.flatten(1), (a.flatten(1), b.flatten(1), module.scaling[adapter])
    yield from _bias(name, module, adapter)


def _bias(name: str, module: Any, adapter: str) -> _Targets:
    if not module.lora_bias.get(adapter):
        return
    bias = getattr(module.base_layer, "bias", None)
    if bias is None:
        raise RefusedError(
            f"{printable(name)}, adapter '{printable(adapter)}': lora_bias, but the base layer has no bias",
            code="peft-kind",
        )
    yield bias, bias[None], FullTerm(module.lora_B[adapter].bias[None], module.scaling[adapter])


_KINDS: Mapping[str, Callable[[str, Any, str], _Targets]] = MappingProxyType(
    {"Linear": _linear, "Embedding": _embedding, "Conv1d": _conv, "Conv2d": _conv, "Conv3d": _conv}
)
