"""Storing a fused weight in another layout than the base has it in: quantised, or as plain values.

``source`` is how the base stores a weight and ``target`` how the output will; both are values, and the same one where
nothing is converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from ltx2c.arithmetic import Arithmetic
from ltx2c.dtypes import DTYPES
from ltx2c.errors import RefusedError, printable
from ltx2c.files import StoredTensor
from ltx2c.layouts.detect import in_codes
from ltx2c.layouts.foreign import ADVICE, foreign_modules
from ltx2c.layouts.fp8_block import BLOCK, FP8_BLOCK
from ltx2c.layouts.fp8_cast import FP8
from ltx2c.layouts.fp8_row import FP8_ROW
from ltx2c.layouts.fp8_scaled import FP8_SCALED, SCALE
from ltx2c.layouts.layout import (
    BFLOAT16,
    FLOAT32,
    Array,
    Companions,
    Encoded,
    Layout,
    StoredWeight,
    TensorSpec,
    Working,
)
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


def check_keep(keep: Sequence[str], out_dtype: str | None) -> None:
    """Refuse what is no sequence of globs, and globs where nothing is stored in another layout than the base's."""
    if isinstance(keep, str) or not all(isinstance(pattern, str) and pattern for pattern in keep):
        raise RefusedError(f"keep is a sequence of globs over keys, not {printable(repr(keep))}", code="bad-keep")
    if keep and out_dtype is None:
        raise RefusedError(
            f"keep {printable(keep[0])} has a meaning with out_dtype alone (--out-dtype): all is kept without",
            code="keep-unconverted",
        )


def check_none_foreign(tensors: Mapping[str, StoredTensor], out_dtype: str | None) -> None:
    """Refuse (``no-fuse-rule``) to dequantise a base in which a layer is quantised in a way that is not read."""
    check_out_dtype(out_dtype)
    if out_dtype is None or not OUT_DTYPES[out_dtype].in_place:
        return
    for module, kind in foreign_modules(tensors).items():
        raise RefusedError(
            f"{printable(module)} is {kind}, and there is no rule to make {out_dtype} of that: {ADVICE}",
            code="no-fuse-rule",
        )


def to_convert(tensors: Mapping[str, StoredTensor], out_dtype: str | None, keep: Sequence[str] = ()) -> list[str]:
    """The keys of a base's tensors that may be stored in another layout: those in codes, and what quantising takes.

    Raises:
        RefusedError: ``bad-out-dtype``, ``bad-keep``, ``keep-unconverted``; ``keep-unused``: a glob that fits none of
            them.
    """
    check_out_dtype(out_dtype)
    check_keep(keep, out_dtype)
    if out_dtype is None:
        return []
    keys = in_codes(tensors)
    if OUT_DTYPES[out_dtype] not in PLAIN.values():
        keys += [key for key, tensor in tensors.items() if is_quantisable(key, tensor.dtype, tensor.shape)]
    for pattern in keep:
        if not any(fnmatchcase(key, pattern) for key in keys):
            raise RefusedError(
                f"keep {printable(pattern)} fits none of the {len(keys)} weights that --out-dtype {out_dtype} changes",
                code="keep-unused",
            )
    return [key for key in keys if not is_kept(key, keep)]


def is_kept(key: str, keep: Sequence[str]) -> bool:
    """Whether a glob of ``keep`` fits the key."""
    return any(fnmatchcase(key, pattern) for pattern in keep)


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
    if out_dtype is None or is_kept(source.key, keep):
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


def working(source: StoredWeight, target: StoredWeight, arithmetic: Arithmetic) -> Working:
    """What a weight is decoded to and fused as, on its way from ``source`` to ``target``.

    The sums of converted weights are rounded as the arithmetic has it, whatever they come from and become.
    """
    own = source.layout.working(arithmetic)
    if source.layout == target.layout:
        return own
    return Working(BFLOAT16 if arithmetic.rounds_sum and own.dtype == BFLOAT16 else FLOAT32, arithmetic)


def new_arrays(target: StoredWeight, rows: int) -> tuple[Array, dict[str, Array]]:
    """Room for ``rows`` rows of codes and for the companions of a weight that the base stores in another layout."""
    return np.zeros((rows, target.codes.shape[1]), DTYPES[target.codes.dtype].numpy), new_companions(target)


def new_companions(target: StoredWeight) -> dict[str, Array]:
    """The companions of such a weight, before anything is encoded: scales 1, but in codes 0, as padding is."""
    return {
        role: (np.ones if spec.dtype == "F32" else np.zeros)(spec.shape, DTYPES[spec.dtype].numpy)
        for role, spec in target.companions.items()
    }


def convert(
    layout: Layout,
    values: Array,
    codes: Array,
    companions: Companions,
    rows: slice,
    threads: int,
    largest: int | None = None,
) -> Encoded:
    """Encode values into arrays of ``new_arrays``. Args are as for ``Layout.encode``.

    Returns:
        ``changed`` is all; ``nonfinite`` counts results that are infinite where the value was finite, which comes on
        top of what the kernels counted.
    """
    found = layout.encode(values, codes, companions, rows, threads, largest)
    overflowed = found.nonfinite if layout.in_place else 0  # e4m3fn saturates: its NaN come of NaN
    return Encoded(found.elements, found.elements, overflowed, found.unencodable)


def round_to_bf16(values: Array, threads: int) -> None:
    """Round float32 values to bfloat16 where they lie."""
    narrow = np.empty(values.shape, BFLOAT16)
    PLAIN["BF16"].encode(values, narrow, {}, slice(0, len(values)), threads)
    PLAIN["BF16"].decode(narrow, {}, slice(0, len(values)), values, threads)
