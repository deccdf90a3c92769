"""Which layout a weight of a checkpoint is stored in, by the dtypes and shapes of it and of what lies beside it.

A layout that stands in no row is refused by name before a byte is written, never fused by a rule made for another.
"""

from __future__ import annotations

from collections.abc import Mapping

from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.layouts.fp8_cast import FP8, FP8_E5M2
from ltx2c.layouts.fp8_scaled import FP8_SCALED, SCALE
from ltx2c.layouts.layout import Layout, StoredWeight, TensorSpec
from ltx2c.layouts.plain import PLAIN

_ALL: tuple[Layout, ...] = (*PLAIN.values(), FP8, FP8_E5M2, FP8_SCALED)
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _ALL}

# Endings, in the place of ``.weight``, of a tensor by which stored codes are multiplied. DeepSeek's ``_inv`` as well.
SCALE_ENDINGS = (".weight_scale", ".weight_scale_inv", ".scale_weight")
# Endings of tensors that belong to codes of other layouts.
OTHER_ENDINGS = (".weight_scale_2",)

_UNSCALED: Mapping[str, Layout] = {**PLAIN, "F8_E4M3": FP8, "F8_E5M2": FP8_E5M2}
_ONE_SCALE = ((), (1,), (1, 1))


def layout_named(name: str) -> Layout:
    """The layout of that name.

    Raises:
        RefusedError: there is none.
    """
    if name not in LAYOUTS:
        raise RefusedError(f"no layout {printable(name)}; there are {', '.join(LAYOUTS)}", code="no-layout")
    return LAYOUTS[name]


def detect(tensors: Mapping[str, StoredTensor], key: str) -> StoredWeight:
    """How the weight ``key`` of a checkpoint's ``tensors`` is stored. Nothing is read.

    Raises:
        RefusedError: ``no-fuse-rule``: there is no layout of its dtype with these companions.
    """
    weight = tensors[key]
    beside = _beside(tensors, key)
    if not beside and weight.dtype in _UNSCALED:
        return StoredWeight(_UNSCALED[weight.dtype], _spec(weight), {}, weight.shape)
    scale = _only_scale(beside)
    if scale and (weight.dtype, scale.dtype) == ("F8_E4M3", "F32") and scale.shape in _ONE_SCALE:
        return StoredWeight(FP8_SCALED, _spec(weight), {SCALE: _spec(scale)}, weight.shape)
    raise _no_rule(weight, beside)


def _beside(tensors: Mapping[str, StoredTensor], key: str) -> list[StoredTensor]:
    if not key.endswith(".weight"):
        return []
    module = key.removesuffix(".weight")
    return [tensors[found] for ending in (*SCALE_ENDINGS, *OTHER_ENDINGS) if (found := module + ending) in tensors]


def _only_scale(beside: list[StoredTensor]) -> StoredTensor | None:
    return beside[0] if len(beside) == 1 and beside[0].key.endswith(SCALE_ENDINGS) else None


def _spec(tensor: StoredTensor) -> TensorSpec:
    return TensorSpec(tensor.key, tensor.dtype, tensor.shape)


def _no_rule(weight: StoredTensor, beside: list[StoredTensor]) -> RefusedError:
    described = [f"{printable(tensor.key)} {tensor.dtype} {list(tensor.shape)}" for tensor in beside]
    with_these = f" with {' and '.join(described)} beside it" if beside else ""
    return RefusedError(
        f"{printable(weight.file.path)}: weight {printable(weight.key)} is {weight.dtype} {list(weight.shape)}"
        f"{with_these}, and there is no rule to fuse that; ltx2c fuses {', '.join(LAYOUTS)}",
        code="no-fuse-rule",
    )
