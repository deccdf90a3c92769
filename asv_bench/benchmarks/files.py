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

BASE, FUSED = "base.safetensors", "fused.safetensors"
RANKS = (16, 450)


def make_model(folder: Path, blocks: int) -> None:
    """``base.safetensors`` and ``lora-RANK.safetensors`` for each rank in ``folder``."""
    from ltx2c.synth import synth

    for rank in RANKS:
        synth(folder / str(rank), blocks=blocks, rank=rank)
        made = {path.name: path for path in (folder / str(rank)).iterdir()}
        made[BASE].replace(folder / BASE)
        made["distilled-lora.safetensors"].replace(folder / f"lora-{rank}.safetensors")
        (folder / str(rank)).rmdir()


def read_into_cache(*paths: Path) -> None:
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


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
    """The arithmetic of the same fuse on arrays in memory; weights and factors of one shape share theirs."""
    from ltx2c import Adapter, Checkpoint, fuse_tensors, plan_fuse

    with (
        Checkpoint.open(folder / BASE) as base,
        Adapter.open(folder / f"lora-{rank}.safetensors") as adapter,
    ):
        weights, factors = {}, {}
        keys = []
        for key, (term,) in plan_fuse(base, [(adapter, 0.8)]).terms.items():
            weight = base.tensors[key]
            kind = (weight.dtype, weight.shape)
            keys.append(kind)
            if kind not in weights:
                weights[kind], factors[kind] = weight.read(), term.pair.read()
    began = time.perf_counter()
    for kind in keys:
        fuse_tensors([(weights[kind], [(*factors[kind], 0.8)], weights[kind])])
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


def model_for_asv(needed: str) -> str:
    """The folder of a model of one block, made in the folder that asv keeps for a commit's benchmarks.

    ``needed`` is the public function that is to be measured: older commits lack it.
    """
    import ltx2c

    if not hasattr(ltx2c, needed):
        raise NotImplementedError
    folder = Path.cwd() / "model"
    make_model(folder, blocks=1)
    return str(folder)


class _OneBlock:
    """How whole files are measured: they take seconds."""

    params = RANKS
    param_names = ("rank",)
    timeout = 300
    rounds = 1
    repeat = (2, 5, 10.0)
    number = 1
    warmup_time = 0


class File(_OneBlock):
    """One block of LTX-2.5, all that is outside the blocks included: from page cache to disk."""

    def setup_cache(self) -> str:
        return model_for_asv("fuse_checkpoint")

    def setup(self, folder: str, rank: int) -> None:
        self.folder = Path(folder)
        read_into_cache(self.folder / BASE, self.folder / f"lora-{rank}.safetensors")

    def time_fuse(self, folder: str, rank: int) -> None:
        fuse_seconds(self.folder, rank)

    def peakmem_fuse(self, folder: str, rank: int) -> None:
        fuse_seconds(self.folder, rank)

    def track_fuse(self, folder: str, rank: int) -> float:
        """GB/s of output."""
        return (self.folder / BASE).stat().st_size / 1e9 / min(fuse_seconds(self.folder, rank) for _ in range(3))

    def track_share_of_floor(self, folder: str, rank: int) -> float:
        """How many times longer than the slower of a synced copy and the arithmetic alone."""
        floor = max(copy_seconds(self.folder), compute_seconds(self.folder, rank))
        return fuse_seconds(self.folder, rank) / floor

    track_fuse.unit = "GB/s"  # type: ignore[attr-defined]
    track_share_of_floor.unit = "times"  # type: ignore[attr-defined]


class Verify(_OneBlock):
    """A fused file of one block, recomputed and compared from page cache."""

    def setup_cache(self) -> str:
        return model_for_asv("verify_checkpoint")

    def setup(self, folder: str, rank: int) -> None:
        from ltx2c import fuse_checkpoint

        self.base = Path(folder, BASE)
        self.loras = [(Path(folder, f"lora-{rank}.safetensors"), 0.8)]
        self.fused = Path(folder, FUSED)
        fuse_checkpoint(self.base, self.loras, self.fused, force=True)
        read_into_cache(self.base, self.fused, self.loras[0][0])

    def teardown(self, folder: str, rank: int) -> None:
        self.fused.unlink()

    def time_verify(self, folder: str, rank: int) -> None:
        from ltx2c import verify_checkpoint

        assert verify_checkpoint(self.fused, self.base, self.loras).equal
