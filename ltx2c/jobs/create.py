"""Creating a job: its folder, with the order and room for the result."""

from __future__ import annotations

import shutil

from ltx2c.engines.units import UnitFuser
from ltx2c.errors import RefusedError, printable
from ltx2c.files.destination import Destination
from ltx2c.files.layout import OutputLayout
from ltx2c.files.staging import stage
from ltx2c.jobs.folder import JobFolder
from ltx2c.jobs.marks import write_durably
from ltx2c.jobs.order import Order, headers_digest
from ltx2c.plan.opened import OpenedPlan
from ltx2c.prepare import OutputForm


def make_order(
    opened: OpenedPlan,
    layout: OutputLayout,
    destination: Destination,
    form: OutputForm,
    *,
    checksums: bool,
    units: int,
    force: bool,
    allow_nonfinite: bool,
) -> Order:
    """What to make, cut into about so many units.

    Raises:
        RefusedError: ``bad-units``.
    """
    if units < 1:
        raise RefusedError(f"a job has 1 unit or more, not {units}", code="bad-units")
    cut = tuple(UnitFuser(opened, layout, 1).cut(units))
    return Order(opened.plan, destination.path, force, allow_nonfinite, form, checksums, cut, headers_digest(layout))


def fill_folder(folder: JobFolder, order: Order, layout: OutputLayout, destination: Destination) -> None:
    """Put into a job's new folder what it needs; the order, without which it is no job, goes last.

    Raises:
        OSError: as the system says; nothing is left.
        RefusedError: ``job-elsewhere``; as ``stage`` does.
    """
    try:
        folder.make_parts(layout)
        _try_adopting(folder, destination, layout.files[0].name)
        write_durably(folder.order, order.to_json())
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _try_adopting(folder: JobFolder, destination: Destination, first: str) -> None:
    """Make sure that a part can be put in place in the end."""
    with stage(destination) as staged:
        try:
            staged.adopt(first, folder.parts / first)
        except OSError as error:
            raise RefusedError(
                f"{printable(folder.path)}: a job's folder must be on the file system of its result, which knows "
                f"hard links: {error.strerror}",
                code="job-elsewhere",
            ) from None
