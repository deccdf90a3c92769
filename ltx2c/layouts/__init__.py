"""How weights are stored: a module per layout, and which one a checkpoint's weight is in."""

from ltx2c.layouts.convert import (
    OUT_DTYPES,
    check_none_foreign,
    check_out_dtype,
    convert,
    converted,
    is_quantisable,
    new_arrays,
    new_companions,
    round_to_bf16,
    stored_as,
    to_convert,
    working,
)
from ltx2c.layouts.detect import (
    LAYOUTS,
    NVFP4_ORDERS,
    check_companions,
    check_nvfp4_scales,
    detect,
    in_codes,
    layout_named,
)
from ltx2c.layouts.foreign import ADVICE, foreign_modules
from ltx2c.layouts.fp8_cast import largest_magnitude
from ltx2c.layouts.layout import Encoded, Layout, StoredWeight, TensorSpec, Working
from ltx2c.layouts.loss import DeltaSize, Loss, measure_delta
from ltx2c.layouts.markers import declared_anew, quantisation_entry, unneeded
from ltx2c.layouts.plain import PLAIN

__all__ = [
    "ADVICE",
    "LAYOUTS",
    "NVFP4_ORDERS",
    "OUT_DTYPES",
    "PLAIN",
    "DeltaSize",
    "Encoded",
    "Layout",
    "Loss",
    "StoredWeight",
    "TensorSpec",
    "Working",
    "check_companions",
    "check_none_foreign",
    "check_nvfp4_scales",
    "check_out_dtype",
    "convert",
    "converted",
    "declared_anew",
    "detect",
    "foreign_modules",
    "in_codes",
    "is_quantisable",
    "largest_magnitude",
    "layout_named",
    "measure_delta",
    "new_arrays",
    "new_companions",
    "quantisation_entry",
    "round_to_bf16",
    "stored_as",
    "to_convert",
    "unneeded",
    "working",
]
