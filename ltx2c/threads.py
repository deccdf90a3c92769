"""How many threads to use: what the caller asks for, else what this process may use of the machine."""

from __future__ import annotations

import math
import operator
import os
import time
from pathlib import Path
from typing import NamedTuple

from ltx2c import kernels
from ltx2c.errors import RefusedError, printable

# More than any machine has, and far below what OpenMP's runtimes end the process for.
MOST_THREADS = 4096

_MANY_DIGITS = 10

# What makes OpenMP bind each thread to a CPU.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")

# Seconds for which a quota is believed: reading it takes longer than fusing a small weight.
_QUOTA_SECONDS = 1.0

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def resolve_threads(threads: int | None) -> int:
    """``threads`` itself, or the machine's share of this process when None.

    The share is the smallest of ``OMP_NUM_THREADS`` (if set), the CPUs of the affinity mask and the cgroup's CPU quota
    rounded up, and never less than 1.

    Raises:
        RefusedError: ``threads`` is not a whole number, or not from 1 to 4096.
    """
    if threads is None:
        return min(limits().values())
    try:
        count = operator.index(threads)
    except TypeError:
        raise RefusedError(f"threads must be a whole number, not '{printable(threads)}'", code="threads") from None
    if not 1 <= count <= MOST_THREADS:
        raise RefusedError(f"threads must be from 1 to {MOST_THREADS}, not {printable(count)}", code="threads")
    return count


def limits() -> dict[str, int]:
    """What bounds the threads of this process by default, each at least 1: name of the limit -> its count."""
    found = {
        "OMP_NUM_THREADS": _from_openmp(),
        "affinity mask": _from_affinity(),
        "cgroup CPU quota": _recent_quota(),
    }
    return {name: count for name, count in found.items() if count}


def _from_affinity() -> int:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if any(name in os.environ for name in _BINDING):  # the calling thread may be bound to one CPU of the process's
        return max(own, kernels.processors())
    return own


def _from_openmp() -> int | None:
    """``OMP_NUM_THREADS`` as OpenMP reads it: the first of a comma-separated list; anything else is ignored."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not (first.isascii() and first.isdecimal()):
        return None
    return int(first) if len(first) < _MANY_DIGITS else MOST_THREADS


def _recent_quota() -> int | None:
    """As ``_from_cgroup``, asked at most once a second in each process."""
    global _known
    now = time.monotonic()
    if _known is None or _known.process != os.getpid() or now >= _known.until:
        _known = _Known(os.getpid(), now + _QUOTA_SECONDS, _from_cgroup())
    return _known.quota


class _Known(NamedTuple):
    process: int
    until: float
    quota: int | None


_known: _Known | None = None


def _from_cgroup() -> int | None:
    """The tightest CPU quota among this process's cgroups and their parents, version 1 or 2, rounded up."""
    quotas = []
    for line in _read(_MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [_quota(_read(folder / "cpu.max")) for folder in _upwards(_CGROUPS, path)]
        elif "cpu" in controllers.split(","):
            quotas += [
                _quota(f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}")
                for root in (_CGROUPS / "cpu", _CGROUPS / controllers)
                for folder in _upwards(root, path)
            ]
    return min((quota for quota in quotas if quota), default=None)


def _upwards(root: Path, path: str) -> list[Path]:
    """The cgroup's folder and its parents up to ``root`` (in a container the path may not exist below it)."""
    parts = Path(path.lstrip("/")).parts
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota(text: str) -> int | None:
    """CPUs that ``"<quota> <period>"`` in microseconds allows; None where there is no limit (``max``, -1, no file)."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return max(1, math.ceil(int(words[0]) / int(words[1])))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
