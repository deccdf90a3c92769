"""How weights are stored: a module per layout, and which one a checkpoint's weight is in."""

from ltx2c.layouts.detect import LAYOUTS, NVFP4_ORDERS, check_companions, check_nvfp4_scales, detect, layout_named
from ltx2c.layouts.foreign import foreign_modules
from ltx2c.layouts.layout import Encoded, Layout, StoredWeight, TensorSpec, Working
from ltx2c.layouts.plain import PLAIN

__all__ = [
    "LAYOUTS",
    "NVFP4_ORDERS",
    "PLAIN",
    "Encoded",
    "Layout",
    "StoredWeight",
    "TensorSpec",
    "Working",
    "check_companions",
    "check_nvfp4_scales",
    "detect",
    "foreign_modules",
    "layout_named",
]
