"""Small file systems for tests: only root may mount them, so a test that cannot says so instead of passing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).parent / "fuse_server.py"


@contextlib.contextmanager
def _mounted(place: Path, *arguments: str | Path) -> Iterator[None]:
    """What ``mount`` is told, at ``place``."""
    done = subprocess.run(["mount", *arguments, place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"NOT TESTED: cannot mount {arguments[1]} here (needs root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs with these mount options at ``folder``, which is made."""
    folder.mkdir()
    with _mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield folder


@contextlib.contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    """``source`` mounted at ``place``, which stands there, as containers mount single files."""
    with _mounted(place, "--bind", source):
        yield


def remount_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


@contextlib.contextmanager
def mounted_overlay(folder: Path, files: dict[str, bytes]) -> Iterator[Path]:
    """An overlay, as of a container's image, through which ``files`` of the file system below are seen."""
    below, above, work, seen = (folder / name for name in ("below", "above", "work", "seen"))
    for part in (below, above, work, seen):
        part.mkdir()
    for name, content in files.items():
        (below / name).write_bytes(content)
    options = f"lowerdir={below},upperdir={above},workdir={work}"
    with _mounted(seen, "-t", "overlay", "-o", options, "overlay"):
        yield seen


@contextlib.contextmanager
def mounted_fuse(folder: Path, *faults: str) -> Iterator[Path]:
    """A file system in memory at ``folder``, which is made, with the faults that ``fuse_server`` knows."""
    folder.mkdir()
    with subprocess.Popen([sys.executable, SERVER, folder, *faults], stderr=subprocess.PIPE, text=True) as server:
        while not folder.is_mount():
            if server.poll() is not None:
                assert server.stderr is not None
                pytest.skip(f"NOT TESTED: no FUSE here (needs root and /dev/fuse): {server.stderr.read().strip()}")
            time.sleep(0.005)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def mounted_ext4(folder: Path, *, megabytes: int = 64) -> Iterator[Path]:
    """An ext4 in a file beside ``folder``, which is made."""
    folder.mkdir()
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, folder]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"NOT TESTED: cannot mount an ext4 here (needs root and loop devices): {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        image.unlink()
