"""Times the asv benchmarks that the gate compares, with whatever ltx2c is on the path.

Run by gate.py in a process of its own: ``gate_times.py PATTERN...``. Prints one JSON object, benchmark -> the shortest
time in seconds. What this ltx2c lacks is left out.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1] / "asv_bench"

AT_LEAST = 0.25  # seconds in all per benchmark
FEWEST = 3  # runs, unless they take long
ENOUGH = 2.0  # seconds


def benchmarks() -> Iterator[tuple[str, type, str, tuple[Any, ...]]]:
    """Every ``time_*`` method with each of its parameters: (name, class, method, parameters), as asv reads them."""
    sys.path.insert(0, str(BENCHMARKS))
    for path in sorted((BENCHMARKS / "benchmarks").glob("[!_]*.py")):
        module = importlib.import_module(f"benchmarks.{path.stem}")
        for class_name, cls in inspect.getmembers(module, inspect.isclass):
            if class_name.startswith("_") or cls.__module__ != module.__name__:
                continue
            for method in (name for name in dir(cls) if name.startswith("time_")):
                for parameters in itertools.product(*getattr(cls, "params", ())):
                    shown = ", ".join(map(str, parameters))
                    yield f"{path.stem}.{class_name}.{method}({shown})", cls, method, parameters


def shortest(cls: type, method: str, parameters: tuple[Any, ...]) -> float | None:
    """Seconds; None where the benchmark says that this ltx2c cannot run it."""
    instance = cls()
    try:
        getattr(instance, "setup", lambda *_: None)(*parameters)
    except NotImplementedError:
        return None
    try:
        work = getattr(instance, method)
        work(*parameters)
        times: list[float] = []
        while sum(times) < AT_LEAST or (len(times) < FEWEST and sum(times) < ENOUGH):
            started = time.perf_counter()
            work(*parameters)
            times.append(time.perf_counter() - started)
        return min(times)
    finally:
        getattr(instance, "teardown", lambda *_: None)(*parameters)


def main(patterns: list[str]) -> None:
    found = {}
    for name, cls, method, parameters in benchmarks():
        if any(re.search(pattern, name) for pattern in patterns):
            seconds = shortest(cls, method, parameters)
            if seconds is not None:
                found[name] = seconds
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
