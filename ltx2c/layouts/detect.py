"""Which layout a weight of a checkpoint is stored in, by the dtypes and shapes of it and of what lies beside it.

A layout that stands in no row is refused by name before a byte is written, never fused by a rule made for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.layouts.foreign import ADVICE, foreign_kind
from ltx2c.layouts.fp8_block import BLOCK, FP8_BLOCK
from ltx2c.layouts.fp8_cast import FP8, FP8_E5M2
from ltx2c.layouts.fp8_row import FP8_ROW
from ltx2c.layouts.fp8_scaled import FP8_SCALED, SCALE
from ltx2c.layouts.layout import Layout, StoredWeight, TensorSpec
from ltx2c.layouts.markers import SCALED_FP8, declared_format
from ltx2c.layouts.modelopt import modelopt_proof
from ltx2c.layouts.nvfp4 import NVFP4_LINEAR, NVFP4_SWIZZLED, SCALE_2, Nvfp4
from ltx2c.layouts.plain import PLAIN

_ALL: tuple[Layout, ...] = (
    *PLAIN.values(),
    FP8,
    FP8_E5M2,
    FP8_SCALED,
    FP8_ROW,
    FP8_BLOCK,
    NVFP4_SWIZZLED,
    NVFP4_LINEAR,
)
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _ALL}

# In the place of ``.weight``, the ending of a tensor by which codes are multiplied (``_inv`` too) -> its role.
SCALE_ENDINGS = {
    ".weight_scale": SCALE,
    ".weight_scale_inv": SCALE,
    ".scale_weight": SCALE,
    ".weight_scale_2": SCALE_2,
}

NVFP4_ORDERS: Mapping[str, Nvfp4] = {"swizzled": NVFP4_SWIZZLED, "linear": NVFP4_LINEAR}

_UNSCALED: Mapping[str, Layout] = {**PLAIN, "F8_E4M3": FP8, "F8_E5M2": FP8_E5M2}
_ONE = ((), (1,))

_FP8 = ("F8_E4M3", "F8_E5M2")
_PACKED = ("U8", "I8")
_NO_CODES = (*SCALE_ENDINGS, SCALED_FP8)

# What ComfyUI calls the formats. One that it declares for a layer must be the one that is found.
_DECLARED: Mapping[str, tuple[Layout, ...]] = {
    "float8_e4m3fn": (FP8, FP8_SCALED),
    "float8_e5m2": (FP8_E5M2,),
    "float8_e4m3fn_rowwise": (FP8_ROW,),
    "float8_e4m3fn_blockwise": (FP8_BLOCK,),
    "nvfp4": (NVFP4_SWIZZLED,),
}


def layout_named(name: str) -> Layout:
    """The layout of that name.

    Raises:
        RefusedError: there is none.
    """
    if name not in LAYOUTS:
        raise RefusedError(f"no layout {printable(name)}; there are {', '.join(LAYOUTS)}", code="no-layout")
    return LAYOUTS[name]


def check_nvfp4_scales(given: str | None) -> None:
    """Refuse a choice of the order of NVFP4's scales that is none."""
    if given is not None and given not in NVFP4_ORDERS:
        raise RefusedError(
            f"nvfp4_scales is one of {', '.join(NVFP4_ORDERS)}, not {printable(given)}", code="bad-nvfp4-scales"
        )


def detect(
    tensors: Mapping[str, StoredTensor],
    key: str,
    *,
    metadata: Mapping[str, str] | None = None,
    nvfp4_scales: str | None = None,
) -> StoredWeight:
    """How the weight ``key`` of a checkpoint's ``tensors`` is stored. No weight is read.

    ComfyUI's marks are, and for NVFP4 the small files beside the weight that say what wrote it.

    Args:
        metadata: of the checkpoint.
        nvfp4_scales: the order of NVFP4's block scales, ``"swizzled"`` or ``"linear"``: no shape tells them apart.

    Raises:
        RefusedError: ``no-fuse-rule`` (there is no layout of its dtype with these companions, or another is declared),
            ``nvfp4-scales`` (their order is not given, or is another than is declared), ``nvfp4-codes`` (two to a
            byte in ModelOpt's order), ``bad-nvfp4-scales``, ``bad-quantization-metadata``.
    """
    check_nvfp4_scales(nvfp4_scales)
    weight = tensors[key]
    module = key.removesuffix(".weight") if key.endswith(".weight") else None
    if module is None:
        beside, declared = {}, None
    else:
        beside = _beside(tensors, module)
        declared = declared_format(tensors, metadata or {}, module)
    found = _found(weight, beside, declared, nvfp4_scales)
    if found is None:
        foreign = foreign_kind(tensors, module, weight.dtype, declared) if module else ""
        raise _no_rule(weight, beside, foreign)
    if declared is not None and found not in _DECLARED.get(declared, ()):
        raise _no_rule(weight, beside, f"declared to be {printable(declared)}")
    if isinstance(found, Nvfp4) and declared is None:
        _check_codes_order(weight, metadata or {})
    specs = {SCALE_ENDINGS[ending]: _spec(tensor) for ending, tensor in beside.items()}
    return StoredWeight(found, _spec(weight), specs, _shape(weight))


def in_codes(tensors: Mapping[str, StoredTensor]) -> list[str]:
    """The keys of tensors whose values are in codes: weights that are quantised, and other tensors in FP8."""
    return [
        key
        for key, tensor in tensors.items()
        if (tensor.dtype in _FP8 and not key.endswith(_NO_CODES))
        or (tensor.dtype in _PACKED and key.endswith(".weight"))
    ]


def check_companions(tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse a checkpoint in which a scale lies beside no weight, or NVFP4 codes lack one of their two scales.

    This goes for weights as well that no adapter touches: the file is damaged, or was split by its layers.

    Raises:
        RefusedError: ``companion-missing``.
    """
    endings = tuple(SCALE_ENDINGS)
    for key in [key for key in tensors if key.endswith(endings)]:
        for ending in endings:
            if key.endswith(ending):
                _check_companion(tensors, tensors[key], key.removesuffix(ending))


def _check_companion(tensors: Mapping[str, StoredTensor], scale: StoredTensor, module: str) -> None:
    weight = tensors.get(f"{module}.weight")
    if weight is None:
        if f"{module}.weight_packed" not in tensors:  # compressed-tensors' name
            raise _missing(scale, f"{module}.weight")
    elif weight.dtype == "U8":
        for needed in (".weight_scale", ".weight_scale_2"):
            if module + needed not in tensors:
                raise _missing(scale, module + needed)
    elif scale.key.endswith(".weight_scale_2") and f"{module}.weight_scale" not in tensors:
        raise _missing(scale, f"{module}.weight_scale")


def _missing(there: StoredTensor, key: str) -> RefusedError:
    return RefusedError(
        f"{printable(there.file.path)}: {printable(there.key)} is there, and {printable(key)} is missing",
        code="companion-missing",
    )


def _beside(tensors: Mapping[str, StoredTensor], module: str) -> dict[str, StoredTensor]:
    return {ending: tensors[module + ending] for ending in SCALE_ENDINGS if module + ending in tensors}


def _found(
    weight: StoredTensor, beside: Mapping[str, StoredTensor], declared: str | None, nvfp4_scales: str | None
) -> Layout | None:
    if not beside:
        return _UNSCALED.get(weight.dtype)
    if len(weight.shape) != 2:
        return None
    if weight.dtype == "U8" and set(beside) == {".weight_scale", ".weight_scale_2"}:
        return _nvfp4(weight, beside[".weight_scale"], beside[".weight_scale_2"], declared, nvfp4_scales)
    if weight.dtype == "F8_E4M3" and len(beside) == 1 and ".weight_scale_2" not in beside:
        (scale,) = beside.values()
        return next(_by_scale(weight.shape, scale), None)
    return None


def _by_scale(shape: tuple[int, ...], scale: StoredTensor) -> Iterator[Layout]:
    """The layouts that a scale's shape fits; the first is meant."""
    out, into = shape
    if scale.dtype != "F32":
        return
    if scale.shape in (*_ONE, (1, 1)):
        yield FP8_SCALED
    if scale.shape == (out, 1):
        yield FP8_ROW
    if scale.shape == (-(-out // BLOCK), -(-into // BLOCK)):
        yield FP8_BLOCK


def _nvfp4(
    weight: StoredTensor, scale: StoredTensor, scale_2: StoredTensor, declared: str | None, given: str | None
) -> Layout | None:
    if (scale.dtype, scale_2.dtype) != ("F8_E4M3", "F32") or scale_2.shape not in _ONE:
        return None
    if not any(layout.fits(_shape(weight), scale.shape) for layout in NVFP4_ORDERS.values()):
        return None
    where = f"{printable(weight.file.path)}: {printable(scale.key)} {list(scale.shape)}"
    if declared == "nvfp4" and given == "linear":
        raise RefusedError(
            f"{where} is in swizzled order, as ComfyUI writes it and the file declares; nvfp4_scales is linear",
            code="nvfp4-scales-differ",
        )
    order = "swizzled" if declared == "nvfp4" else given
    if order is None:
        raise RefusedError(
            f"{where} may be in swizzled or linear order, and no shape tells them apart: say which "
            "(--nvfp4-scales swizzled|linear)",
            code="nvfp4-scales",
        )
    if not NVFP4_ORDERS[order].fits(_shape(weight), scale.shape):
        raise RefusedError(
            f"{where} cannot be in {order} order: that would be padded to whole tiles of 128 x 4",
            code="nvfp4-scales-shape",
        )
    return NVFP4_ORDERS[order]


def _check_codes_order(weight: StoredTensor, metadata: Mapping[str, str]) -> None:
    proof = modelopt_proof(weight.file.path.parent, metadata)
    if proof is not None:
        raise RefusedError(
            f"{printable(weight.file.path)}: {printable(weight.key)} is NVFP4 by ModelOpt, as {printable(proof)} says, "
            "which packs the first of two codes into the low half of a byte; ltx2c reads files that have it in the "
            f"high half: {ADVICE}",
            code="nvfp4-codes",
        )


def _shape(weight: StoredTensor) -> tuple[int, ...]:
    """Of the values: U8 holds two to a byte."""
    return (*weight.shape[:-1], 2 * weight.shape[-1]) if weight.dtype == "U8" else weight.shape


def _spec(tensor: StoredTensor) -> TensorSpec:
    return TensorSpec(tensor.key, tensor.dtype, tensor.shape)


def _no_rule(weight: StoredTensor, beside: Mapping[str, StoredTensor], foreign: str) -> RefusedError:
    described = [f"{printable(tensor.key)} {tensor.dtype} {list(tensor.shape)}" for tensor in beside.values()]
    with_these = f" with {' and '.join(described)} beside it" if beside else ""
    known = f"; it is {foreign}: {ADVICE}" if foreign else f"; ltx2c fuses {', '.join(LAYOUTS)}"
    return RefusedError(
        f"{printable(weight.file.path)}: weight {printable(weight.key)} is {weight.dtype} {list(weight.shape)}"
        f"{with_these}, and there is no rule to fuse that{known}",
        code="no-fuse-rule",
    )
