"""Fuse LoRA adapters into large diffusion transformers: bit-exact, at the CPU's full speed.

What is public is imported when it is first used, so that ``ltx2c --help`` does not wait for NumPy.
"""

from __future__ import annotations

from ltx2c.version import __version__

TYPE_CHECKING = False  # nothing is imported here: until the command line has its handlers, Ctrl-C shows a traceback
if TYPE_CHECKING:
    from typing import Any

    from ltx2c import peft, reference
    from ltx2c.adapters import Adapter
    from ltx2c.api import execute, fuse_checkpoint, verify_checkpoint
    from ltx2c.config import get_include
    from ltx2c.engines.report import FuseOutline, FuseReport
    from ltx2c.engines.resident import BindReport, ResidentCheckpoint
    from ltx2c.engines.verify import VerifyReport
    from ltx2c.errors import Ltx2cError, RefusedError
    from ltx2c.files import Checkpoint
    from ltx2c.fusion import Job, fuse_tensor, fuse_tensors
    from ltx2c.inspection import inspect
    from ltx2c.many import fuse_many
    from ltx2c.phases import write_phases
    from ltx2c.plan import Plan, plan_fuse
    from ltx2c.ranges import fused_bytes
    from ltx2c.recipes import Recipe
    from ltx2c.rendering import RenderPlan, plan_render
    from ltx2c.terms import FullTerm

__all__ = [
    "Adapter",
    "BindReport",
    "Checkpoint",
    "FullTerm",
    "FuseOutline",
    "FuseReport",
    "Job",
    "Ltx2cError",
    "Plan",
    "Recipe",
    "RefusedError",
    "RenderPlan",
    "ResidentCheckpoint",
    "VerifyReport",
    "__version__",
    "execute",
    "fuse_checkpoint",
    "fuse_many",
    "fuse_tensor",
    "fuse_tensors",
    "fused_bytes",
    "get_include",
    "inspect",
    "peft",
    "plan_fuse",
    "plan_render",
    "reference",
    "verify_checkpoint",
    "write_phases",
]

_MODULES = {
    "Adapter": "adapters",
    "BindReport": "engines.resident",
    "Checkpoint": "files",
    "FullTerm": "terms",
    "FuseOutline": "engines.report",
    "FuseReport": "engines.report",
    "Job": "fusion",
    "Ltx2cError": "errors",
    "Plan": "plan",
    "Recipe": "recipes",
    "RefusedError": "errors",
    "RenderPlan": "rendering",
    "ResidentCheckpoint": "engines.resident",
    "VerifyReport": "engines.verify",
    "execute": "api",
    "fuse_checkpoint": "api",
    "fuse_many": "many",
    "fuse_tensor": "fusion",
    "fuse_tensors": "fusion",
    "fused_bytes": "ranges",
    "get_include": "config",
    "inspect": "inspection",
    "plan_fuse": "plan",
    "plan_render": "rendering",
    "verify_checkpoint": "api",
    "write_phases": "phases",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("peft", "reference"):
        return importlib.import_module(f"ltx2c.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'ltx2c' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"ltx2c.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
