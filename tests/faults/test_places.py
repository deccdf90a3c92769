"""Mounts and folders as people have them: what works there, what is refused, and that it is found out first."""

from __future__ import annotations

import copy
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fusing import assert_same, load, small_model
from mounts import mounted_ext4, mounted_fuse, mounted_tmpfs
from refusals import refused
from users import NOBODY, SOMEBODY, as_user, shared_folder  # noqa: F401

import ltx2c
from ltx2c.api import outline_fuse
from ltx2c.engines import stream as engine
from ltx2c.engines.report import FuseOutline

FORM = {"file": {}, "folder": {"max_shard_bytes": 20_000}}


class Job:
    """A small fuse, tried by a dry run before each run."""

    def __init__(self, folder: Path) -> None:
        self.base, self.adapters, self.wanted = small_model(folder)

    def in_reach(self, folder: Path) -> Job:
        """The same with copies of the inputs in a folder that other users reach."""
        job = copy.copy(self)
        job.base = Path(shutil.copy(self.base, folder))
        job.adapters = [(Path(shutil.copy(path, folder)), strength) for path, strength in self.adapters]
        return job

    def dry(self, out: Path, **options: object) -> FuseOutline:
        before = sorted(out.parent.iterdir())
        known = outline_fuse(self.base, self.adapters, out, **options)
        assert sorted(out.parent.iterdir()) == before
        return known

    def run(self, out: Path, **options: object) -> tuple[str, ...]:
        """The notes of a fuse that ends well and leaves nothing else."""
        planned = self.dry(out, **options)
        beside = {*out.parent.iterdir()}
        done = ltx2c.fuse_checkpoint(self.base, self.adapters, out, **options)
        assert_same(load(out), self.wanted)
        assert {*out.parent.iterdir()} == beside | {out}
        assert done.notes[: len(planned.notes)] == planned.notes
        return done.notes

    def refused(self, code: str, out: Path, **options: object) -> None:
        """By both, before a weight is read; nothing is left."""
        beside = sorted(out.parent.iterdir())
        for fuse in (outline_fuse, ltx2c.fuse_checkpoint):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine, "run_pipeline", None)
                with refused(code, out.name):
                    fuse(self.base, self.adapters, out, **options)
            assert sorted(out.parent.iterdir()) == beside


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("inputs"))


RENAME, STEPS = "no rename that keeps what stands there", "three steps"

# What a file system lacks -> a note of a new file, a new folder, a forced file, a forced folder; "" where there is none
WORKING = [
    ((), ("", "", "", "")),
    (("rename2",), ("", RENAME, "", STEPS)),
    (("rename2", "link"), (RENAME, RENAME, "", STEPS)),
    (("flagless",), ("", "", "", STEPS)),  # that a name is taken the kernel itself sees
    (("flagless", "rename2"), ("", RENAME, "", STEPS)),
    (("nospace",), ("", "", "", "")),
    (("statfs",), ("", "", "", "")),
    (("truncate",), ("", "", "", "")),
    (("truncate=EOPNOTSUPP", "fallocate", "indirect"), ("", "", "", "")),
    (("fallocate=EOPNOTSUPP",), ("", "", "", "")),
    (("indirect",), ("", "", "", "")),
    (("renumbered",), ("", "", "", "")),
    (("renumbered", "rename2", "stale"), ("", RENAME, "", STEPS)),
    (("fsyncdir=EINVAL",), ("", "", "", "")),
    *[((f"flock={code}",), ("no locks", "", "no locks", "")) for code in (9, 22, 13, 5, "ENOLCK", "EOPNOTSUPP")],
]  # of files: the kernel locks folders itself. 524 no file system in user space can answer: see test_staging


@pytest.mark.parametrize(("lacks", "notes"), WORKING, ids=[" ".join(map(str, lacks)) or "all" for lacks, _ in WORKING])
def test_file_systems_that_lack_something(
    lacks: tuple[str, ...], notes: tuple[str, ...], job: Job, tmp_path: Path
) -> None:
    with mounted_fuse(tmp_path / "mount", *lacks) as mount:
        told = []
        for force in (False, True):
            for name, form in FORM.items():
                told.append(job.run(mount / name, force=force, **form))
        for found, wanted in zip(told, notes, strict=True):
            assert any(wanted in note for note in found) if wanted else not _about_the_place(found), found


def test_a_folder_that_cannot_be_synced(job: Job, tmp_path: Path) -> None:
    """The result is in place; but of a folder whose own entries are not durable there is none."""
    with mounted_fuse(tmp_path / "mount", "fsyncdir=EIO") as mount:
        assert "the result is in place" in job.run(mount / "out")[-1]
        with pytest.raises(OSError, match="Input/output error"):
            job.run(mount / "folder", **FORM["folder"])
        assert [*mount.iterdir()] == [mount / "out"]


def _about_the_place(notes: tuple[str, ...]) -> bool:
    return any("file system" in note or "in place" in note for note in notes)


@pytest.mark.parametrize("form", FORM)
def test_file_systems_that_cannot_hold_a_result(form: str, job: Job, tmp_path: Path) -> None:
    for lacks, code in (
        (("rename", "rename2", "link"), "output-no-rename"),
        (("rename=EPERM", "rename2=EPERM", "link=EPERM"), "output-no-rename"),
        (("sequential", "indirect"), "output-only-sequential"),
        (("sequential",), "output-only-sequential"),
    ):
        with mounted_fuse(tmp_path / "mount", *lacks) as mount:
            job.refused(code, mount / "out", **FORM[form])
        (tmp_path / "mount").rmdir()


@pytest.mark.parametrize("form", FORM)
@pytest.mark.parametrize(
    "mounted", [mounted_ext4, lambda folder: mounted_tmpfs(folder, "size=8M")], ids=["ext4", "tmpfs"]
)
def test_usual_file_systems(mounted: Callable[..., object], form: str, job: Job, tmp_path: Path) -> None:
    with mounted(tmp_path / "mount") as mount:
        for force in (False, True):
            assert not _about_the_place(job.run(mount / "out", force=force, **FORM[form]))


def test_a_file_system_that_knows_no_size(job: Job, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", mount], capture_output=True).returncode:
        pytest.skip("NOT TESTED: cannot mount a ramfs here (needs root)")
    try:
        job.run(mount / "out")
    finally:
        subprocess.run(["umount", mount], check=True)


def attribute(flag: str, path: Path) -> None:
    if shutil.which("chattr") is None or subprocess.run(["chattr", flag, path], capture_output=True).returncode:
        pytest.skip("NOT TESTED: cannot change attributes here (needs root, chattr and a file system that has them)")


@pytest.mark.parametrize("flag", ["i", "a"])
def test_what_may_not_change_is_not_replaced(flag: str, job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    attribute(f"+{flag}", out)
    try:
        job.refused("output-not-replaceable", out, force=True)
    finally:
        attribute(f"-{flag}", out)
    folder = tmp_path / "folder"
    job.run(folder, **FORM["folder"])
    attribute(f"+{flag}", folder)
    try:
        job.refused("output-not-replaceable", folder, force=True, **FORM["folder"])
    finally:
        attribute(f"-{flag}", folder)


def test_a_folder_that_only_takes_names(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    attribute("+a", folder)
    try:
        job.refused("output-no-rename", folder / "out")
    finally:
        attribute("-a", folder)


def test_anothers_result_in_a_sticky_folder(job: Job, shared_folder: Path) -> None:  # noqa: F811
    out, folder = shared_folder / "out", shared_folder / "folder"
    job.run(out)
    job.run(folder, **FORM["folder"])
    shared_folder.chmod(0o1777)
    os.chown(shared_folder, SOMEBODY, -1)
    before = out.read_bytes(), sorted(folder.iterdir())
    job = job.in_reach(shared_folder)
    for path, form in ((out, "file"), (folder, "folder")):
        assert as_user(NOBODY, lambda: job.refused("output-not-replaceable", path, force=True, **FORM[form])) == "None"  # noqa: B023
    assert (out.read_bytes(), sorted(folder.iterdir())) == before
    assert "bad" not in as_user(NOBODY, lambda: job.run(shared_folder / "mine"))
    assert (shared_folder / "mine").stat().st_uid == NOBODY


@pytest.mark.parametrize("form", FORM)
def test_a_folder_that_may_be_written_and_not_read(form: str, job: Job, shared_folder: Path) -> None:  # noqa: F811
    blind = shared_folder / "blind"
    blind.mkdir()
    os.chown(blind, NOBODY, NOBODY)
    blind.chmod(0o333)
    job = job.in_reach(shared_folder)

    def run() -> object:
        return ltx2c.fuse_checkpoint(job.base, job.adapters, blind / "out", **FORM[form]).notes

    assert "the result is in place" in as_user(NOBODY, run)
    assert_same(load(blind / "out"), job.wanted)
    assert [*blind.iterdir()] == [blind / "out"]


def test_a_folder_that_may_not_be_written(job: Job, shared_folder: Path) -> None:  # noqa: F811
    closed = shared_folder / "closed"
    closed.mkdir()
    job = job.in_reach(shared_folder)
    for fuse in (ltx2c.fuse_checkpoint, outline_fuse):
        said = as_user(NOBODY, lambda: fuse(job.base, job.adapters, closed / "out"))  # noqa: B023
        assert said == f"PermissionError: [Errno 13] Permission denied: '{closed / 'out'}'"
    assert stat.S_IMODE(closed.stat().st_mode) == 0o755 and not [*closed.iterdir()]
