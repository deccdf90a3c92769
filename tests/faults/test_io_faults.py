"""The disk fails, lies, fills up or changes under a running fuse: inputs stay, and OUT is absent or complete."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusing import adapter, assert_same, expected, load, save, values
from mounts import mounted_tmpfs, remount_read_only
from refusals import refused

import ltx2c
from ltx2c import cli
from ltx2c.engines import file as engine
from ltx2c.files import destination, direct

BLOCK = 100_000


class Job:
    """A fuse of about 25 blocks into ``out``, and what must still hold after it has failed."""

    def __init__(self, folder: Path) -> None:
        self.base_tensors = {f"m{at}.weight": values(at, 256, 512) for at in range(8)}
        self.factors = adapter({f"m{at}": (256, 4, 512) for at in (0, 3, 7)}, 50)
        self.folder = folder
        self.base = save(folder / "base.safetensors", {**self.base_tensors, "pad": values(9, 10, dtype=np.dtype("u1"))})
        self.lora = save(folder / "lora.safetensors", self.factors)
        self.out = folder / "out" / "fused.safetensors"
        self.out.parent.mkdir()
        self._inputs = self._digests()

    def run(self, **options: Any) -> ltx2c.api.FuseReport:
        return ltx2c.fuse_checkpoint(self.base, [(self.lora, 0.5)], self.out, **options)

    def command(self) -> int:
        return cli.main(["fuse", str(self.base), "--lora", str(self.lora), "0.5", "-o", str(self.out)])

    def _digests(self) -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.base, self.lora)]

    def assert_nothing_happened(self) -> None:
        assert list(self.out.parent.iterdir()) == []
        assert self._digests() == self._inputs

    def assert_complete(self) -> None:
        assert list(self.out.parent.iterdir()) == [self.out]
        fused = load(self.out)
        fused.pop("pad")
        assert_same(fused, expected(self.base_tensors, [(self.factors, 0.5)]))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(engine, "BLOCK_BYTES", BLOCK)
    return Job(tmp_path)


def from_call(number: int, whole: Callable[..., int], fault: Callable[[], None]) -> Callable[..., int]:
    """``whole``, except that its call of this number (from 1) and all later ones run ``fault`` first."""
    calls = iter(range(1, 1_000_000))

    def call(*arguments: Any) -> int:
        if next(calls) >= number:
            fault()
        return whole(*arguments)

    return call


def failing(code: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


# preadv: the headers of base and adapter are read in the first four calls, the rest is data and factors.
@pytest.mark.parametrize(
    ("function", "number"),
    [("preadv", n) for n in (1, 2, 3, 4, 5, 6, 12, 20, 26)]
    + [("pwritev", n) for n in (1, 2, 11, 20)]
    + [("fsync", 1), ("ftruncate", 1), ("ftruncate", 2)],
)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_system_call_that_fails(
    function: str, number: int, code: int, job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, function, from_call(number, getattr(os, function), failing(code)))
        assert job.command() == 3
    error = capsys.readouterr().err
    assert os.strerror(code) in error and "Traceback" not in error and error.count("\n") == 1
    assert str(job.folder) in error  # names the file
    job.assert_nothing_happened()


def test_a_folder_that_cannot_be_synced_holds_the_result_all_the_same(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fsync", from_call(2, os.fsync, failing(errno.EIO)))
    assert job.command() == 0
    assert "the result is in place" in capsys.readouterr().out
    monkeypatch.undo()
    job.assert_complete()


@pytest.mark.parametrize("share", [1000, 4096, 65_536])
def test_reads_and_writes_that_come_back_short(share: int, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("preadv", "pwritev"):
        whole = getattr(os, function)
        monkeypatch.setattr(
            os,
            function,
            lambda fd, buffers, *rest, whole=whole: whole(fd, [memoryview(buffers[0])[:share]], *rest),
        )
    job.run()
    monkeypatch.undo()
    job.assert_complete()


def truncate(job: Job) -> None:
    os.truncate(job.base, job.base.stat().st_size // 2)


def overwrite(job: Job) -> None:
    with job.base.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    os.utime(job.base, ns=(0, 0))


def replace(job: Job) -> None:
    other = job.base.with_suffix(".other")
    other.write_bytes(job.base.read_bytes())
    other.replace(job.base)


def touch_adapter(job: Job) -> None:
    os.utime(job.lora, ns=(0, 0))


@pytest.mark.parametrize("when", [1, 8, 20])
@pytest.mark.parametrize("change", [truncate, overwrite, replace, touch_adapter, lambda job: job.base.unlink()])
def test_an_input_that_changes_while_it_is_read(change: Callable[[Job], None], when: int, job: Job) -> None:
    calls = iter(range(1, 1000))
    with refused("file-changed"):
        job.run(progress=lambda _: change(job) if next(calls) == when else None)
    assert list(job.out.parent.iterdir()) == []


def test_a_destination_that_appears_meanwhile_is_kept(job: Job) -> None:
    with refused("output-exists", "appeared"):
        job.run(progress=lambda _: job.out.write_bytes(b"theirs"))
    assert list(job.out.parent.iterdir()) == [job.out] and job.out.read_bytes() == b"theirs"


def test_a_destination_folder_that_vanishes_meanwhile(job: Job) -> None:
    def vanish(_: object) -> None:
        for path in job.out.parent.iterdir():
            path.unlink()
        job.out.parent.rmdir()

    calls = iter(range(1, 1000))
    with refused("output-lost", job.out):
        job.run(progress=lambda now: vanish(now) if next(calls) == 3 else None)
    assert not job.out.parent.exists()


@pytest.fixture
def small_disk(job: Job, request: pytest.FixtureRequest) -> Iterator[Path]:
    """``job.out``'s folder on a file system of so many bytes."""
    job.out.parent.rmdir()
    with mounted_tmpfs(job.out.parent, f"size={request.param}") as folder:
        yield folder


@pytest.mark.parametrize("small_disk", [100_000], indirect=True)
def test_a_disk_that_is_too_small_is_refused_before_a_weight_is_read(
    small_disk: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.command() == 2
    assert "free" in capsys.readouterr().err
    job.assert_nothing_happened()


@pytest.mark.parametrize("small_disk", [4096, 100_000, 1_000_000, 2_000_000], indirect=True)
def test_a_disk_that_fills_up_after_the_check(
    small_disk: Path, job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """First where space can be reserved, then where it cannot and a write in the middle fails."""
    monkeypatch.setattr(destination.Destination, "_check_room", lambda self, needed: None)
    for _ in ("reserved", "written"):
        assert job.command() == 3
        error = capsys.readouterr().err
        assert "No space left" in error and "Traceback" not in error and error.count("\n") == 1
        job.assert_nothing_happened()
        monkeypatch.setattr(direct, "reserve", lambda descriptor, size: None)


@pytest.mark.parametrize("small_disk", [8_000_000], indirect=True)
def test_a_read_only_folder(small_disk: Path, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    remount_read_only(small_disk)
    assert job.command() == 3
    error = capsys.readouterr().err
    assert "Read-only" in error and "Traceback" not in error and error.count("\n") == 1
    job.assert_nothing_happened()


@pytest.mark.parametrize("small_disk", [8_000_000], indirect=True)
def test_inputs_in_a_read_only_folder(small_disk: Path, job: Job) -> None:
    for path in (job.base, job.lora):
        (small_disk / path.name).write_bytes(path.read_bytes())
    remount_read_only(small_disk)
    job.base, job.lora = small_disk / job.base.name, small_disk / job.lora.name
    job.out = job.folder / "fused" / "out.safetensors"
    job.out.parent.mkdir()
    job.run()
    job.assert_complete()
