"""Destinations for a test to write to, and what may stand there before."""

from __future__ import annotations

import os
from pathlib import Path

from ltx2c.files.destination import Destination
from ltx2c.files.direct import EmptyFile
from ltx2c.files.folder import Folder
from ltx2c.files.leftovers import leftovers
from ltx2c.files.staging import Staged


def check(path: Path, **options: object) -> Destination:
    return Destination.check(path, **{"inputs": [], "needed_bytes": 10, **options})


def old_result(path: Path) -> Path:
    path.mkdir()
    (path / "old.safetensors").write_bytes(b"old")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "old.safetensors"}}')
    return path


def fill(staged: Staged, name: str, content: bytes = b"new") -> None:
    file = staged.file(name)
    os.write(file.descriptor, content)
    os.close(file.descriptor)


def empty_file(path: Path) -> EmptyFile:
    return EmptyFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), path)


def temporaries(out: Path) -> list[Path]:
    """Those of a result that stand there now."""
    with Folder.open(out.parent) as folder:
        return [out.with_name(name) for name, _ in leftovers(folder, out.name)]


def left_by_a_killed_run(out: Path, *, folder: bool = False, content: bytes = b"12345") -> Path:
    """What a run to ``out`` leaves that is killed in the middle."""
    child = os.fork()
    if child == 0:
        from ltx2c.files.staging import stage

        with stage(check(out, folder=folder, force=True)) as staged:
            fill(staged, "half.safetensors", content)
            os._exit(0)
    os.waitpid(child, 0)
    return temporaries(out)[-1]
