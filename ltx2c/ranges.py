"""Ranges of a result's bytes, each as one call, without the rest of it."""

from __future__ import annotations

from ltx2c.engines.outputs import lay_out
from ltx2c.engines.units import UnitFuser, check_range
from ltx2c.plan import Plan
from ltx2c.plan.opened import reopened
from ltx2c.threads import resolve_threads


def fused_bytes(
    plan: Plan,
    begin: int,
    end: int,
    *,
    file: str | None = None,
    max_shard_bytes: int | None = None,
    threads: int | None = None,
) -> bytes:
    """Bytes ``begin`` to ``end`` of what ``execute`` would write, header included; no more is made than they take.

    Rows that the range cuts are fused whole, as are a layout's granules, and a weight of which all rows are needed at
    once. Every range is made on its own: in any order, any number of times, by any process.

    Args:
        plan: from ``plan_fuse`` or ``Plan.from_json``. Its files are opened again where they were.
        begin, end: offsets in the file, ``0 <= begin <= end <= size``.
        file: a name in a sharded output, its index's too; None where the output is one file.
        max_shard_bytes, threads: as for ``fuse_checkpoint``.

    Raises:
        OSError: as the system raised it.
        RefusedError: ``bad-range``, ``no-such-file``; ``file-changed``, where an input is not the one that the plan was
            made from; ``bad-plan``, ``threads``. Results that are infinite or NaN are not refused.
    """
    with reopened(plan) as opened:
        layout = lay_out(opened, max_shard_bytes=max_shard_bytes)
        unit = check_range(layout, begin, end, file)
        if unit.file in layout.texts:
            return layout.texts[unit.file][begin:end]
        found = UnitFuser(opened, layout, resolve_threads(threads)).read(unit)
        opened.sources.check_unchanged()
        return bytes(found)
