"""Fuse LoRA adapters into large diffusion transformers: bit-exact, at the CPU's full speed."""

from ltx2c import reference
from ltx2c.adapters import Adapter
from ltx2c.api import fuse_checkpoint, verify_checkpoint
from ltx2c.engines.resident import ResidentCheckpoint
from ltx2c.errors import Ltx2cError, RefusedError
from ltx2c.files import Checkpoint
from ltx2c.fusion import fuse_tensor, fuse_tensors
from ltx2c.kernels import get_include
from ltx2c.plan import Plan, plan_fuse
from ltx2c.recipes import Recipe
from ltx2c.rendering import plan_render
from ltx2c.version import __version__

__all__ = [
    "Adapter",
    "Checkpoint",
    "Ltx2cError",
    "Plan",
    "Recipe",
    "RefusedError",
    "ResidentCheckpoint",
    "__version__",
    "fuse_checkpoint",
    "fuse_tensor",
    "fuse_tensors",
    "get_include",
    "plan_fuse",
    "plan_render",
    "reference",
    "verify_checkpoint",
]
