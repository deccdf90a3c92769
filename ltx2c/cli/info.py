"""``ltx2c info``: what this machine is to ltx2c."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version

from ltx2c import kernels, machine, threads
from ltx2c.cli.result import Result
from ltx2c.version import __version__

EXAMPLE = """
    ltx2c info
    LTX2C_KERNEL=haswell ltx2c info --json
"""

# What the kernels look for, as Linux names it on x86-64 and on aarch64.
_FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"),
    *("asimd", "fphp", "bf16"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace) -> Result:
    """Collect the facts; a kernel forced by ``LTX2C_KERNEL`` that this machine lacks is refused."""
    cpu = machine.cpuinfo()
    facts = {
        "ltx2c": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "ml_dtypes": version("ml_dtypes"),
        "machine": platform.machine(),
        "cpu": machine.cpu_name(),
        "cpu_features": [name for name in _FEATURES if name in _flags(cpu)],
        "kernel": kernels.selected(),
        "kernels_available": list(kernels.available()),
        "kernel_why": kernels.why(),
        "threads": threads.resolve_threads(None),
        "threads_why": ", ".join(f"{name} {count}" for name, count in threads.limits().items()),
    }
    return Result(facts, _text(facts))


def _text(facts: dict[str, object]) -> str:
    shown = {
        key.replace("_", " "): " ".join(value) if isinstance(value, list) else value for key, value in facts.items()
    }
    width = max(map(len, shown))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in shown.items())


def _flags(cpu: dict[str, str]) -> list[str]:
    return (cpu.get("flags") or cpu.get("Features") or "").split()
