"""Putting a job's result in place, when all of its units are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.units import Unit
from ltx2c.engines.writing import write_beside
from ltx2c.errors import RefusedError, printable
from ltx2c.files.folder import Folder
from ltx2c.files.layout import OutputLayout
from ltx2c.files.leftovers import leftovers
from ltx2c.files.places import on_disk
from ltx2c.files.positional import PositionalFile
from ltx2c.files.staging import Staged, publish, stage
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.marks import Mark
from ltx2c.jobs.order import Order
from ltx2c.plan.opened import reopened
from ltx2c.prepare import check_destination, lay_out_whole


def put_in_place(folder: JobFolder, order: Order) -> tuple[Nonfinite, tuple[str, ...]]:
    """Check all marks, against the bytes if they have checksums, and publish the result.

    Returns:
        What fusing came to, and what a person should know.

    Raises:
        OSError: as the system says.
        RefusedError: ``job-unfinished``, ``job-damaged``, ``nonfinite``, ``file-changed``; as ``publish`` does.
    """
    if missing := folder.missing(len(order.units)):
        raise RefusedError(
            f"{printable(folder.path)}: {len(missing)} of {len(order.units)} units are not done, such as {missing[0]}",
            code="job-unfinished",
        )
    with reopened(order.plan) as opened:
        layout, notes, *_ = lay_out_whole(opened, order.out, order.form)
        order.check_layout(layout)
        nonfinite = _check_marks(folder, order, layout)
        checked = check_destination(opened, order.out, replace(layout, files=()), force=order.force)
        destination = on_disk(checked, "the result of a job")
        _clear_links(folder, order.out)
        with stage(destination) as staged:
            _take_parts(folder, layout, staged)
            write_beside(layout, staged)
            opened.sources.check_unchanged()
            publish(staged)
    return nonfinite, (*notes, *staged.notes)


def _take_parts(folder: JobFolder, layout: OutputLayout, staged: Staged) -> None:
    for file in layout.files:
        part = folder.parts / file.name
        with PositionalFile(part) as opened:
            opened.write(0, memoryview(file.header))
            opened.sync()
        staged.adopt(file.name, part)


def _clear_links(folder: JobFolder, out: Path) -> None:
    """Remove the second names that a killed run gave to parts; what else it left, ``stage`` clears."""
    parts = {_inode(path) for path in folder.parts.rglob("*")}
    with Folder.open(out.parent) as beside:
        names = [name for name, _ in leftovers(beside, out.name)]
    for left in (out.parent / name for name in names):
        for path in [left, *left.rglob("*")]:
            if path.is_file() and _inode(path) in parts:
                path.unlink()


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _check_marks(folder: JobFolder, order: Order, layout: OutputLayout) -> Nonfinite:
    nonfinite = Nonfinite(order.plan.base.path, allowed=order.allow_nonfinite)
    ranges = [Unit(file.name, 0, len(file.header)) for file in layout.files]
    for number in range(len(order.units)):
        mark = Mark.read(folder.mark(number))
        if order.checksums:
            mark.check(folder.parts)
        nonfinite.add(mark.fused)
        ranges += mark.ranges
    nonfinite.refuse()
    _check_whole(ranges, layout)
    return nonfinite


def _check_whole(ranges: Sequence[Unit], layout: OutputLayout) -> None:
    """Make sure that all bytes of all files were written."""
    for file in layout.files:
        reached = 0
        for _, begin, end in sorted(one for one in ranges if one.file == file.name):
            if begin > reached:
                break
            reached = max(reached, end)
        if reached != file.size:
            raise RefusedError(
                f"{printable(file.name)}: by the units' marks nothing was written at byte {reached} of {file.size}",
                code="job-damaged",
            )
