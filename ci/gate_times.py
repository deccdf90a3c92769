"""Times the asv benchmarks that the gate compares, with whatever ltx2c is on the path.

Run by gate.py in processes of their own, all in one working folder::

    gate_times.py --prepare PATTERN...   what the benchmarks' setup_cache makes, once for all that follow
    gate_times.py PATTERN...             prints one JSON object, benchmark -> the shortest time in seconds

What this ltx2c lacks is left out.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import pickle
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

BENCHMARKS = Path(__file__).parents[1] / "asv_bench"
PREPARED = Path("prepared.pickle")

AT_LEAST = 0.25  # seconds in all per benchmark
FEWEST = 3  # runs, unless they take long
ENOUGH = 2.0  # seconds


class Benchmark(NamedTuple):
    """One ``time_*`` method with one choice of parameters."""

    name: str
    cls: type
    method: str
    parameters: tuple[Any, ...]


def benchmarks(patterns: list[str]) -> Iterator[Benchmark]:
    """Those whose name fits a pattern, found and told apart as asv does it."""
    sys.path.insert(0, str(BENCHMARKS))
    for path in sorted((BENCHMARKS / "benchmarks").glob("[!_]*.py")):
        module = importlib.import_module(f"benchmarks.{path.stem}")
        for class_name, cls in inspect.getmembers(module, inspect.isclass):
            if class_name.startswith("_") or cls.__module__ != module.__name__:
                continue
            params = getattr(cls, "params", ())
            if params and not isinstance(params[0], (list, tuple)):
                params = (params,)
            methods = (name for name in dir(cls) if name.startswith("time_"))
            for method, parameters in itertools.product(methods, itertools.product(*params)):
                name = f"{path.stem}.{class_name}.{method}({', '.join(map(str, parameters))})"
                if any(re.search(pattern, name) for pattern in patterns):
                    yield Benchmark(name, cls, method, parameters)


def prepare(patterns: list[str]) -> None:
    """Run ``setup_cache`` of each class once, and keep what it returns."""
    classes = {benchmark.cls.__qualname__: benchmark.cls for benchmark in benchmarks(patterns)}
    made = {name: cls().setup_cache() for name, cls in classes.items() if hasattr(cls, "setup_cache")}
    PREPARED.write_bytes(pickle.dumps(made))


def shortest(benchmark: Benchmark, prepared: dict[str, Any]) -> float:
    """Seconds. Raises NotImplementedError where this ltx2c cannot run it."""
    name = benchmark.cls.__qualname__
    arguments = (prepared[name], *benchmark.parameters) if name in prepared else benchmark.parameters
    instance = benchmark.cls()
    getattr(instance, "setup", do_nothing)(*arguments)
    try:
        work: Callable[..., object] = getattr(instance, benchmark.method)
        work(*arguments)
        times: list[float] = []
        while sum(times) < AT_LEAST or (len(times) < FEWEST and sum(times) < ENOUGH):
            started = time.perf_counter()
            work(*arguments)
            times.append(time.perf_counter() - started)
        return min(times)
    finally:
        getattr(instance, "teardown", do_nothing)(*arguments)


def do_nothing(*arguments: object) -> None:
    """What a benchmark without a setup does."""


def measure(patterns: list[str]) -> dict[str, float]:
    prepared = pickle.loads(PREPARED.read_bytes())
    found = {}
    for benchmark in benchmarks(patterns):
        try:
            found[benchmark.name] = shortest(benchmark, prepared)
        except NotImplementedError:
            continue
        except Exception:  # of a commit that is broken there: as if it were not there
            traceback.print_exc()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--prepare":
        prepare(sys.argv[2:])
        print("{}")
    else:
        print(json.dumps(measure(sys.argv[1:])))
