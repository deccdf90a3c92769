"""What is in a PEFT model: each adapter of each module, onto each tensor, in PEFT's order; or a refusal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ltx2c.errors import RefusedError, printable
from ltx2c.peft.kinds import KINDS, Change, other_kind

_TUNERS = {"lora": "LoraModel", "loha": "LoHaModel", "lokr": "LoKrModel"}


class Merge(NamedTuple):
    """One adapter of one module, onto one of its tensors."""

    module_name: str
    module: Any
    adapter: str
    change: Change

    @property
    def parameter(self) -> Any:
        return self.change.parameter

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Refusals within say which module and adapter."""
        return _named(self.module_name, self.adapter)

    def mark(self) -> None:
        """Tell the module, which may still be referred to from elsewhere, that its base has this adapter."""
        if self.adapter not in self.module.merged_adapters:
            self.module.merged_adapters.append(self.adapter)


@contextlib.contextmanager
def _named(module_name: str, adapter: str) -> Iterator[None]:
    try:
        yield
    except RefusedError as refused:
        where = f"{printable(module_name)}, adapter '{printable(adapter)}'"
        raise RefusedError(f"{where}: {refused}", code=refused.code) from None


def tuner_of(model: Any) -> Any:
    """The LoRA, LoHa or LoKr model itself, perhaps out of a ``PeftModel``."""
    peft = sys.modules.get("peft")
    tuners = {} if peft is None else {getattr(getattr(peft.tuners, kind), name): kind for kind, name in _TUNERS.items()}
    if peft is None or not isinstance(model, (peft.PeftModel, *tuners)):
        raise RefusedError(f"the model is a {type(model).__name__}, not a PeftModel", code="peft-model")
    if not hasattr(peft.tuners.lora.layer.LoraLayer, "resolve_lora_variant"):
        raise RefusedError(
            f"PEFT {printable(peft.__version__)} does not tell DoRA and other variants apart; 0.21 does",
            code="peft-version",
        )
    tuner = model.base_model if isinstance(model, peft.PeftModel) else model
    if not isinstance(tuner, tuple(tuners)):
        names = ", ".join(_TUNERS.values())
        raise RefusedError(f"the model's adapters are of {type(tuner).__name__}, not of {names}", code="peft-kind")
    return tuner


def merges_of(tuner: Any) -> list[Merge]:
    """Everything to merge, in PEFT's order; or a refusal of the first module of a kind that is not read here."""
    for adapter, config in tuner.peft_config.items():
        if getattr(config, "layer_replication", None):  # the copies share their base's weights, each with a delta
            with _named("the model", adapter):
                raise other_kind("layer_replication")
    other = sys.modules["peft.utils.other"]
    tuner_layer = sys.modules["peft.tuners.tuners_utils"].BaseTunerLayer
    inside = ""
    merges: list[Merge] = []
    for name, module in tuner.model.named_modules():
        if isinstance(module, other.ModulesToSaveWrapper):
            inside = f"{name}."
        elif isinstance(module, other.AuxiliaryTrainingWrapper):
            with _named(name, ", ".join(module.active_adapters)):
                raise other_kind(type(module).__name__)
        elif isinstance(module, tuner_layer):
            if inside and name.startswith(inside):
                with _named(name, ", ".join(module.active_adapters)):
                    raise other_kind("an adapter inside modules_to_save")
            merges += _of_module(name, module)
    return merges


def _of_module(name: str, module: Any) -> Iterator[Merge]:
    changes = _reader(module)
    if changes is None or hasattr(module.base_layer, "base_layer") or getattr(module, "quantization_backend", None):
        with _named(name, ", ".join(module.active_adapters)):
            raise other_kind(f"{type(module).__module__}.{type(module).__name__}")
    for adapter in module.active_adapters:
        if adapter in module.merged_adapters or adapter not in module.scaling:
            continue
        with _named(name, adapter):
            for change in changes(module, adapter):
                yield Merge(name, module, adapter, change)


def _reader(module: Any) -> Any:
    """The function that reads modules of exactly this class, or None."""
    tuners = sys.modules["peft"].tuners
    return next(
        (
            read
            for (kind, class_name), read in KINDS.items()
            if type(module) is getattr(getattr(tuners, kind).layer, class_name, None)
        ),
        None,
    )
