"""Fuse LoRA adapters into large diffusion transformers: bit-exact, at the CPU's full speed."""

from ltx2c import reference
from ltx2c.errors import Ltx2cError, RefusedError
from ltx2c.files import Checkpoint
from ltx2c.version import __version__

__all__ = ["Checkpoint", "Ltx2cError", "RefusedError", "__version__", "reference"]
