"""Which of a pipeline's components a plan writes: the main one, and those it fuses anything into."""

from __future__ import annotations

from collections.abc import Container

from ltx2c.files import Checkpoint
from ltx2c.files.checkpoint import Component


def written_components(base: Checkpoint, fused: Container[str]) -> tuple[Component, ...]:
    """Those of ``base`` that a plan writes which fuses the weights ``fused``; the others are copied as they are."""
    main, *others = base.components
    return (main, *(one for one in others if any(key in fused for key in one.tensors)))
