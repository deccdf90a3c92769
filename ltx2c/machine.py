"""What Linux tells of the processor."""

from __future__ import annotations

from pathlib import Path


def cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, or nothing where there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def cpu_name() -> str:
    """The processor's model name, or "unknown"."""
    return cpuinfo().get("model name", "unknown")
