"""A table of the adapters in tests/data/clients: each fused, beside what the tool that saved it makes of it.

Differences are of the result's largest value: under ``f32`` in its own right, under ``ltx`` in steps of bf16 (2^-8).
``tests/adapters/test_clients.py`` holds the bounds; this prints what they are held with, in Markdown.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).parents[1] / "tests")
from clients import cases, tensors, write_adapters  # noqa: E402
from tensor_files import write  # noqa: E402

from ltx2c import Checkpoint, RefusedError, execute, plan_fuse  # noqa: E402


def main() -> int:
    print("| case | result | dtype of the base | f32: largest difference | ltx: steps of bf16 |\n|---|---|---|---|---|")
    for name, case in sorted(cases().items()):
        for run in case["runs"]:
            print(f"| {name} | {' | '.join(row(case, run))} |")
    return 0


def row(case: dict[str, Any], run: dict[str, Any]) -> tuple[str, str, str, str]:
    base, expected = tensors(run["base"]), tensors(run["expected"])
    dtypes = ", ".join(sorted({str(base[key].dtype) for key in expected})) or "-"
    try:
        f32, ltx = (largest_difference(case, base, expected, arithmetic) for arithmetic in ("f32", "ltx"))
    except RefusedError as error:
        return f"refused: `{error.code}`", dtypes, "-", "-"
    return "fused", dtypes, f"{f32:.1e}", f"{ltx * 2**8:.2f}"


def largest_difference(case: dict[str, Any], base: Any, expected: Any, arithmetic: str) -> float:
    """Over all tensors, of each one's largest value."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write(folder / "base.safetensors", base)
        adapters = list(zip(write_adapters(folder, case), case["strengths"], strict=True))
        execute(plan_fuse(path, adapters, arithmetic=arithmetic), folder / "out.safetensors", threads=1)
        with Checkpoint.open(folder / "out.safetensors") as out:
            fused = {key: out.tensors[key].read().astype(np.float64) for key in expected}
    differences = (np.abs(fused[key] - expected[key].astype(np.float64)).max() for key in expected)
    return float(
        max(d / np.abs(expected[key].astype(np.float64)).max() for d, key in zip(differences, expected, strict=True))
    )


if __name__ == "__main__":
    raise SystemExit(main())
