"""One fuse by ltx2c, with ComfyUI's progress bar and its way to cancel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import comfy.model_management
import comfy.utils

import ltx2c

_OPTIONS = {
    "--force": "the input 'replace'",
    "--unmatched warn": "'warn' as the input 'unmatched'",
    "--allow-nonfinite": "ltx2c fuse --allow-nonfinite",
}


def fuse(
    base: Path,
    adapters: Sequence[tuple[Path, float]],
    out: Path,
    *,
    arithmetic: str,
    unmatched: str,
    replace: bool,
) -> None:
    """Make the fused file, unless the same request has made it.

    Raises:
        InterruptProcessingException: as ComfyUI has it, when the run is cancelled; nothing of the file is left.
        ltx2c.RefusedError: what does not fit, in one line.
        OSError: as the system says.
    """
    bar = comfy.utils.ProgressBar(1)

    def tell(now: ltx2c.progress.Progress) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        bar.update_absolute(now.bytes_done, now.bytes_total)

    with _folders(out.parent), _in_words_of_the_node():
        report = ltx2c.fuse_checkpoint(
            base,
            adapters,
            out,
            arithmetic=arithmetic,
            unmatched=unmatched,
            force=replace,
            reuse=True,
            progress=tell,
        )
    _log(report)


@contextlib.contextmanager
def _folders(path: Path) -> Iterator[None]:
    """Make the folder for the block; take away again what was made if the block fails."""
    made = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in made:
            with contextlib.suppress(OSError):  # somebody else has put something there
                one.rmdir()
        raise


@contextlib.contextmanager
def _in_words_of_the_node() -> Iterator[None]:
    """What the command has as an option is an input of the node."""
    try:
        yield
    except ltx2c.RefusedError as error:
        told = str(error)
        for option, here in _OPTIONS.items():
            told = told.replace(option, here)
        raise ltx2c.RefusedError(told, code=error.code, keys=error.keys) from None


def _log(report: ltx2c.FuseReport) -> None:
    done = "reused" if report.reused else f"{report.tensors_fused} of {report.tensors} tensors fused"
    logging.info("ltx2c: %s: %s in %.1f s", report.out, done, report.seconds)
    for note in report.notes:
        logging.warning("ltx2c: %s", note)
    if report.unmatched:
        logging.warning("ltx2c: keys without a weight in the base, left out: %s", ", ".join(report.unmatched))
