"""The main job, from file to file: what it costs beside copying the file, and beside the arithmetic alone.

On two cores the floor of a fuse is the larger of both. ``ci/file_targets.py`` prints the ratios for a larger model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .measuring import read_into_cache

BASE, FUSED = "base.safetensors", "fused.safetensors"
REAL_RANK = 450  # of LTX-2.5's distilled adapter
RANKS = (16, REAL_RANK)


def make_model(folder: Path, blocks: int) -> None:
    """``base.safetensors`` and ``lora-RANK.safetensors`` for each rank in ``folder``."""
    from ltx2c.synth import synth

    for rank in RANKS:
        synth(folder / str(rank), blocks=blocks, rank=rank)
        made = {path.name: path for path in (folder / str(rank)).iterdir()}
        made[BASE].replace(folder / BASE)
        made["distilled-lora.safetensors"].replace(folder / f"lora-{rank}.safetensors")
        (folder / str(rank)).rmdir()


def drop_from_cache(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fuse_seconds(folder: Path, rank: int) -> float:
    """A fuse, its result durable and then removed."""
    from ltx2c import fuse_checkpoint

    out = folder / FUSED
    began = time.perf_counter()
    fuse_checkpoint(folder / BASE, [(folder / f"lora-{rank}.safetensors", 0.8)], out)
    seconds = time.perf_counter() - began
    out.unlink()
    return seconds


def copy_seconds(folder: Path) -> float:
    """``cp`` of the base and a sync of the copy, which is then removed."""
    out = folder / "copy.safetensors"
    began = time.perf_counter()
    subprocess.run(["cp", folder / BASE, out], check=True)
    subprocess.run(["sync", out], check=True)
    seconds = time.perf_counter() - began
    out.unlink()
    return seconds


def compute_seconds(folder: Path, rank: int) -> float:
    """The arithmetic of the same fuse in one call on arrays in memory."""
    from ltx2c import Adapter, Checkpoint, fuse_tensors, plan_fuse
    from ltx2c.plan.opened import Sources

    with (
        Checkpoint.open(folder / BASE) as base,
        Adapter.open(folder / f"lora-{rank}.safetensors") as adapter,
    ):
        sources = Sources(base, [adapter])
        jobs = []
        for key, (one,) in plan_fuse(base, [(adapter, 0.8)]).fusions.items():
            weight = base.tensors[key].read()
            jobs.append((weight, sources.load(one.delta).terms(one.effective_strength), weight))
    began = time.perf_counter()
    fuse_tensors(jobs)
    return time.perf_counter() - began


@contextlib.contextmanager
def temporary_model(blocks: int) -> Iterator[Path]:
    """A folder with a model as ``make_model`` makes it, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ltx2c-bench-"))
    try:
        make_model(folder, blocks)
        yield folder
    finally:
        shutil.rmtree(folder)


class _OneBlock:
    """How whole files are measured: on one block of LTX-2.5 and all that is outside the blocks. They take seconds."""

    params = RANKS
    param_names = ("rank",)
    timeout = 300
    rounds = 1
    repeat = (2, 5, 10.0)
    number = 1
    warmup_time = 0

    def setup_cache(self) -> str:
        """The model's folder, in the folder that asv keeps for a commit's benchmarks."""
        import ltx2c

        if not hasattr(ltx2c, "fuse_checkpoint"):
            raise NotImplementedError
        folder = Path.cwd() / "model"
        make_model(folder, blocks=1)
        return str(folder)


class _Fuse(_OneBlock):
    """From page cache to disk."""

    def setup(self, folder: str, rank: int) -> None:
        self.folder = Path(folder)
        read_into_cache(self.folder / BASE, self.folder / f"lora-{rank}.safetensors")


class File(_Fuse):
    """By rank: little arithmetic, and that of the real adapter."""

    def time_fuse(self, folder: str, rank: int) -> None:
        fuse_seconds(self.folder, rank)

    def track_fuse(self, folder: str, rank: int) -> float:
        """GB/s of output."""
        return (self.folder / BASE).stat().st_size / 1e9 / fuse_seconds(self.folder, rank)

    track_fuse.unit = "GB/s"  # type: ignore[attr-defined]


class Budget(_Fuse):
    """What a fuse takes at the real adapter's rank: memory, and time beside its floor."""

    params = (REAL_RANK,)

    def peakmem_fuse(self, folder: str, rank: int) -> None:
        fuse_seconds(self.folder, rank)

    def track_share_of_floor(self, folder: str, rank: int) -> float:
        """How many times longer than the slower of a synced copy and the arithmetic alone."""
        floor = max(copy_seconds(self.folder), compute_seconds(self.folder, rank))
        return fuse_seconds(self.folder, rank) / floor

    track_share_of_floor.unit = "times"  # type: ignore[attr-defined]


class Verify(_OneBlock):
    """A fused file, recomputed and compared from page cache."""

    params = (REAL_RANK,)

    def setup(self, folder: str, rank: int) -> None:
        try:
            from ltx2c import fuse_checkpoint, verify_checkpoint
        except ImportError as error:
            raise NotImplementedError from error
        base, loras = Path(folder, BASE), [(Path(folder, f"lora-{rank}.safetensors"), 0.8)]
        self.fused = Path(folder, f"fused-{rank}.safetensors")
        if not self.fused.exists():  # asv sets up again before every sample
            fuse_checkpoint(base, loras, self.fused)
        read_into_cache(base, self.fused, loras[0][0])
        self.verify = lambda: verify_checkpoint(self.fused, base, loras)

    def time_verify(self, folder: str, rank: int) -> None:
        assert self.verify().equal

    def track_verify(self, folder: str, rank: int) -> float:
        """GB/s of the fused file."""
        began = time.perf_counter()
        self.verify()
        return self.fused.stat().st_size / 1e9 / (time.perf_counter() - began)

    track_verify.unit = "GB/s"  # type: ignore[attr-defined]
