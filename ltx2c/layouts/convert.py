"""Storing a fused weight in another layout than the base has it in: quantised, or as plain values.

``source`` is how the base stores a weight and ``target`` how the output will; both are values, and the same one where
nothing is converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.layouts.fp8_block import BLOCK, FP8_BLOCK
from ltx2c.layouts.fp8_cast import BFLOAT16, FLOAT32, FP8
from ltx2c.layouts.fp8_row import FP8_ROW
from ltx2c.layouts.fp8_scaled import FP8_SCALED, SCALE
from ltx2c.layouts.layout import Array, Companions, Encoded, Layout, StoredWeight, TensorSpec, Working
from ltx2c.layouts.nvfp4 import SCALE_2, Nvfp4
from ltx2c.layouts.plain import PLAIN, Plain

OUT_DTYPES: Mapping[str, Layout] = {
    "bf16": PLAIN["BF16"],
    "f16": PLAIN["F16"],
    "f32": PLAIN["F32"],
    "fp8": FP8,
    "fp8-scaled": FP8_SCALED,
}

# A weight with one of these in its name is never quantised: norms, and what embeds or modulates (adaln).
_STAYING = ("norm", "embed", "adaln")


def check_out_dtype(given: str | None) -> None:
    """Refuse an output dtype that is none."""
    if given is not None and given not in OUT_DTYPES:
        raise RefusedError(f"out_dtype is one of {', '.join(OUT_DTYPES)}, not {printable(given)}", code="bad-out-dtype")


def is_quantisable(key: str, dtype: str, shape: Sequence[int]) -> bool:
    """Whether quantising takes a tensor: a linear layer's weight. Norms, biases, embeddings and 1-D tensors stay."""
    name = key.lower()
    return (
        dtype in PLAIN
        and key.endswith(".weight")
        and len(shape) == 2
        and not any(staying in name for staying in _STAYING)
    )


def converted(source: StoredWeight, out_dtype: str | None, keep: Sequence[str] = ()) -> StoredWeight:
    """How the output stores a weight.

    Args:
        out_dtype: a name of ``OUT_DTYPES``; None to store every weight as the base does. ``"bf16"``, ``"f16"`` and
            ``"f32"`` change weights that the base has quantised, and drop their scales; ``"fp8"`` and ``"fp8-scaled"``
            change plain weights that ``is_quantisable`` names.
        keep: globs over keys; weights that one matches stay as the base has them.

    Raises:
        RefusedError: ``bad-out-dtype``; ``already-quantised``: ``"fp8"`` or ``"fp8-scaled"`` of a weight that the base
            has quantised in another layout.
    """
    check_out_dtype(out_dtype)
    if out_dtype is None or any(fnmatchcase(source.key, pattern) for pattern in keep):
        return source
    layout = OUT_DTYPES[out_dtype]
    if isinstance(layout, Plain):
        return source if source.layout.in_place else StoredWeight(layout, _as(source, layout.dtype), {}, source.shape)
    if not source.layout.in_place:
        if source.layout == layout:
            return source
        raise RefusedError(
            f"weight {printable(source.key)} is stored as {source.layout.name}, and --out-dtype {out_dtype} quantises "
            "only weights that are not quantised; fuse with --out-dtype bf16, then quantise",
            code="already-quantised",
        )
    if not is_quantisable(source.key, source.codes.dtype, source.shape):
        return source
    return stored_as(layout, source.key, source.shape)


def stored_as(layout: Layout, key: str, shape: tuple[int, ...]) -> StoredWeight:
    """A weight of values ``shape``, ``[out, in]``, as ``layout`` stores it: codes, and scales by ComfyUI's names."""
    scale, scale_2 = (f"{key.removesuffix('.weight')}.{name}" for name in ("weight_scale", "weight_scale_2"))
    out, into = shape
    codes, companions = TensorSpec(key, "F8_E4M3", shape), {}
    if isinstance(layout, Nvfp4):
        codes = TensorSpec(key, "U8", (out, into // 2))
        companions = {
            SCALE: TensorSpec(scale, "F8_E4M3", layout.padded(shape)),
            SCALE_2: TensorSpec(scale_2, "F32", ()),
        }
    elif layout is not FP8:
        extents: dict[Layout, tuple[int, ...]] = {
            FP8_SCALED: (),
            FP8_ROW: (out, 1),
            FP8_BLOCK: (-(-out // BLOCK), -(-into // BLOCK)),
        }
        companions = {SCALE: TensorSpec(scale, "F32", extents[layout])}
    return StoredWeight(layout, codes, companions, shape)


def _as(source: StoredWeight, dtype: str) -> TensorSpec:
    return TensorSpec(source.key, dtype, source.shape)


def working(source: StoredWeight, target: StoredWeight, arithmetic: str) -> Working:
    """What a weight is decoded to and fused as, on its way from ``source`` to ``target``.

    Converted weights are rounded to bfloat16 under ``ltx`` whatever they come from and become.
    """
    own = source.layout.working(arithmetic)
    if source.layout == target.layout:
        return own
    if arithmetic == "ltx":
        return Working(BFLOAT16 if own.dtype == BFLOAT16 else FLOAT32, "ltx")
    return Working(FLOAT32, "f32")


def new_arrays(target: StoredWeight, rows: int) -> tuple[Array, dict[str, Array]]:
    """Room for ``rows`` rows of codes and for the companions of a weight that the base stores in another layout."""
    codes, *dtypes = (np.dtype(DTYPES[spec.dtype].numpy) for spec in target.outputs)
    companions = {
        role: np.ones(spec.shape, dtype) if dtype == FLOAT32 else np.zeros(spec.shape, dtype)  # of padding too
        for (role, spec), dtype in zip(target.companions.items(), dtypes, strict=True)
    }
    return np.zeros((rows, target.codes.shape[1]), codes), companions


def convert(layout: Layout, values: Array, codes: Array, companions: Companions, rows: slice, threads: int) -> Encoded:
    """Encode values into arrays of ``new_arrays``. Args are as for ``Layout.encode``.

    Returns:
        ``changed`` is all; ``nonfinite`` counts results that are infinite where the value was finite, which comes on
        top of what the kernels counted.
    """
    found = layout.encode(values, codes, companions, rows, threads)
    overflowed = found.nonfinite if layout.in_place else 0  # e4m3fn saturates: its NaN come of NaN
    return Encoded(found.elements, found.elements, overflowed, found.unencodable)
