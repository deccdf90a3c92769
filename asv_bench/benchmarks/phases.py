"""Phases of a two-stage render: load, bind, restore and switch, beside the naive order.

Everything is measured once, in ``setup_cache``, in one process and on the same files, so that ratios mean something.
What is kept is in seconds, which asv compares as it should (larger is worse), and in ratios for people to read.
asv measures one block of the model; for another number: ``python -m benchmarks.phases 6`` in ``asv_bench``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .measuring import read_into_cache

_BLOCKS = 1
_LOADS, _ALTERNATIONS, _RESTORES = 4, 2, 3


def _synth(folder: str, blocks: int) -> tuple[Path, Path]:
    subprocess.run([sys.executable, "-m", "ltx2c", "synth", folder, "--blocks", str(blocks), "--quiet"], check=True)
    return Path(folder) / "base.safetensors", Path(folder) / "distilled-lora.safetensors"


def _private_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError("this system does not say what memory is private")


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _naive_pass(tensors: dict[str, Any], terms: dict[str, Sequence[Any]], sign: float) -> None:
    """Fuse every term into the resident tensors, or un-fuse it by subtraction; factors are read one tensor ahead."""
    from ltx2c.fusion import Job, fuse_jobs

    with ThreadPoolExecutor(1) as reader:
        reads = ((key, reader.submit(delta.load), strength) for key, ((delta, strength),) in terms.items())
        for key, read, strength in _one_ahead(reads):
            fuse_jobs([Job(tensors[key], read.result().terms(sign * strength), tensors[key])])


def _one_ahead(items: Iterator[Any]) -> Iterator[Any]:
    held = next(items)
    for item in items:
        yield held
        held = item
    yield held


def _load_seconds(base: Path, recipe: Any) -> float:
    from ltx2c import ResidentCheckpoint

    began = time.perf_counter()
    with ResidentCheckpoint.open(base, recipe):
        return time.perf_counter() - began


def _measure_renders(base: Path, adapter: Path) -> dict[str, float]:
    from ltx2c import Adapter, Checkpoint, Recipe, ResidentCheckpoint, plan_fuse
    from ltx2c.plan.opened import Sources

    recipe = Recipe.named("a2vid_two_stage", distilled_lora=adapter)
    read_into_cache(base, adapter)
    private = _private_bytes()
    # Memory that nobody touched yet costs seconds per GB on some hosts: the first loads pay for that.
    load = min(_load_seconds(base, recipe) for _ in range(_LOADS))
    with (
        ResidentCheckpoint.open(base, recipe) as resident,
        Checkpoint.open(base) as checkpoint,
        Adapter.open(adapter) as opened,
    ):
        private = _private_bytes() - private
        plan = plan_fuse(checkpoint, [(opened, 1.0)])
        sources = Sources(checkpoint, [opened])
        terms = {
            key: [(sources.delta(one.delta), one.effective_strength) for one in deltas]
            for key, deltas in plan.fusions.items()
        }
        tensors = {key: slot.values for key, slot in resident._residency.slots.items()}
        unfused, there, fuse, unfuse, back = [], [], [], [], []
        for _ in range(_ALTERNATIONS):
            unfused.append(resident.bind(0).seconds)
            there.append(resident.bind(1))
            # The naive order does its passes on the same memory; what they leave there is then called nobody's.
            unfuse.append(_seconds(lambda: _naive_pass(tensors, terms, -1)))
            fuse.append(_seconds(lambda: _naive_pass(tensors, terms, 1)))
            for _ in range(_RESTORES):
                resident._residency.live.update(dict.fromkeys(terms))
                back.append(resident.bind(0))
    fused, restored = (min(reports, key=lambda report: report.seconds) for reports in (there, back))
    return {
        "bytes": base.stat().st_size,
        "load": load,
        "private": private / base.stat().st_size,
        "there": fused.seconds,
        "gflops": 2e-9 * fused.macs / fused.seconds,
        "back": restored.seconds,
        "restored_bytes": restored.bytes_read,
        # Ours loads the base and fuses once. The naive order fuses as it loads, un-fuses, and fuses again.
        "first_render": min(unfused) + fused.seconds,
        "naive_first_render": 2 * min(fuse) + min(unfuse),
        # Each further render: ours restores and fuses, the naive order un-fuses and fuses.
        "three_renders": min(unfused) + 3 * fused.seconds + 2 * restored.seconds,
        "naive_three_renders": 4 * min(fuse) + 3 * min(unfuse),
    }


def _measure_switch(base: Path, adapter: Path) -> float:
    from ltx2c import Recipe, ResidentCheckpoint

    recipe = Recipe.named("a2vid_two_stage", distilled_lora=adapter)
    with ResidentCheckpoint.open(base, recipe, memory_budget=base.stat().st_size * 2) as resident:
        resident.bind(1)
        return max(resident.bind(phase).seconds for phase in (0, 1, 0, 1))


def measure(blocks: int) -> dict[str, float]:
    """Seconds, bytes and ratios by name; the second copy is of two blocks, for two of six would be 12 GB."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        files = _synth(folder, blocks)
        facts = _measure_renders(*files)
        if blocks <= 2:
            return {**facts, "switch": _measure_switch(*files)}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        return {**facts, "switch": _measure_switch(*_synth(folder, 2))}


class Render:
    """a2vid_two_stage with the distilled adapter alone: phase 0 is the base, phase 1 fuses every target."""

    timeout = 400

    def setup_cache(self) -> dict[str, float]:
        try:
            from ltx2c import ResidentCheckpoint  # noqa: F401
        except ImportError as error:
            raise NotImplementedError from error
        return measure(_BLOCKS)

    setup_cache.timeout = 400

    def track_load(self, facts: dict[str, float]) -> float:
        return facts["load"]

    track_load.unit = "s"

    def track_load_rate(self, facts: dict[str, float]) -> float:
        return facts["bytes"] / facts["load"] / 1e9

    track_load_rate.unit = "GB/s"

    def track_bind_fused(self, facts: dict[str, float]) -> float:
        return facts["there"]

    track_bind_fused.unit = "s"

    def track_bind_fused_rate(self, facts: dict[str, float]) -> float:
        return facts["gflops"]

    track_bind_fused_rate.unit = "GFLOP/s"

    def track_restore(self, facts: dict[str, float]) -> float:
        return facts["back"]

    track_restore.unit = "s"

    def track_restore_rate(self, facts: dict[str, float]) -> float:
        return facts["restored_bytes"] / facts["back"] / 1e9

    track_restore_rate.unit = "GB/s"

    def track_switch(self, facts: dict[str, float]) -> float:
        return facts["switch"]

    track_switch.unit = "s"

    def track_private_memory(self, facts: dict[str, float]) -> float:
        return facts["private"]

    track_private_memory.unit = "bases"

    def track_first_render_of_naive(self, facts: dict[str, float]) -> float:
        return facts["first_render"] / facts["naive_first_render"]

    track_first_render_of_naive.unit = "times the naive order's seconds"

    def track_three_renders_of_naive(self, facts: dict[str, float]) -> float:
        return facts["three_renders"] / facts["naive_three_renders"]

    track_three_renders_of_naive.unit = "times the naive order's seconds"


if __name__ == "__main__":
    for name, value in measure(int(sys.argv[1]) if len(sys.argv) > 1 else _BLOCKS).items():
        print(f"{name:24s} {value:12.4f}")
