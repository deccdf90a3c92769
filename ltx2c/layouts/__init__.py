"""How weights are stored: a module per layout, and which one a checkpoint's weight is in."""

from ltx2c.layouts.detect import LAYOUTS, detect, layout_named
from ltx2c.layouts.layout import Encoded, Layout, StoredWeight, TensorSpec, Working
from ltx2c.layouts.plain import PLAIN

__all__ = ["LAYOUTS", "PLAIN", "Encoded", "Layout", "StoredWeight", "TensorSpec", "Working", "detect", "layout_named"]
