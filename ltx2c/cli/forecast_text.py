"""A forecast as a person reads it."""

from __future__ import annotations

from ltx2c.cli.text import count, operations, size
from ltx2c.forecasting import Forecast


def forecast_lines(told: Forecast, outputs: int) -> list[str]:
    """What it is for, and a line for each number of workers."""
    worker = f"{count(told.threads, 'thread')}, {operations(told.flops)}/s, {size(told.bytes)}/s in memory"
    return [
        f"{count(outputs, 'output')}, each a job, {count(told.units, 'unit')} in all: {size(told.read)} to read, "
        f"{size(told.written)} to write",
        f"workers like this machine ({worker}), {told.start:.1f} s to begin a unit, network {size(told.network)}/s "
        f"each, storage {size(told.storage)}/s; simulated",
        "  workers   seconds  of which checking  speedup  GB read, written by one  bottleneck",
        *(
            f"  {row.workers:7,}  {row.seconds:8.1f}  {row.checking:17.1f}  {row.speedup:7.1f}  "
            f"{row.most_read / 1e9:12.1f}, {row.most_written / 1e9:9.1f}  {row.bottleneck}"
            for row in told.rows
        ),
        "nothing was written (--dry-run)",
    ]
