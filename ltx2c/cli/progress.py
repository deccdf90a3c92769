"""The progress bar: on a terminal only, and on stderr, so that a pipe and ``--json`` stay clean."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO, cast

from ltx2c.cli.text import operations, size
from ltx2c.progress import OnProgress, Progress


@contextlib.contextmanager
def bar(title: str, args: argparse.Namespace) -> Iterator[OnProgress | None]:
    """Show a bar while the block runs, fed by the callback it yields; None where nobody is watching."""
    if args.quiet or args.json or not sys.stderr.isatty():
        yield None
        return
    from rich import progress  # 60 ms that only a watched run pays
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[rates]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
    )
    started = time.perf_counter()
    with progress.Progress(
        *columns, console=Console(file=cast(TextIO, _Terminal(sys.stderr))), transient=True
    ) as display:
        task = display.add_task(title, total=None, rates="")

        def show(now: Progress) -> None:
            rates = _rates(now, time.perf_counter() - started)
            display.update(task, completed=now.bytes_done, total=now.bytes_total, rates=rates)

        yield show


class _Terminal:
    """A terminal that may go at any time, as the work goes on: what nobody can see any more is not written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _rates(now: Progress, seconds: float) -> str:
    bandwidth = f"{size(now.bytes_done / seconds)}/s"
    return f"{bandwidth} {operations(2 * now.macs_done / seconds)}/s" if now.macs_total else bandwidth
