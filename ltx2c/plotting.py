"""The picture of ``inspect --plot``: how much an adapter changes, blocks by modules. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ltx2c.adapters.keys import without_prefix
from ltx2c.errors import RefusedError, printable
from ltx2c.inspection import block_of, family
from ltx2c.norms import DeltaNorm, together

_COLOURS = "magma"

_BLOCKS = re.compile(r"^.*?blocks\.\*\.")


def check_plot(path: Path) -> None:
    """Refuse (``no-matplotlib``, ``picture-format``) before anything is read what could not be drawn."""
    if not path.suffix:
        raise RefusedError(
            f"{printable(path)}: the picture's name must end in .png, .svg or .pdf", code="picture-format"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RefusedError(
            "drawing needs matplotlib, which is not installed: pip install 'ltx2c[plot]'", code="no-matplotlib"
        ) from None


def plot_norms(norms: Sequence[DeltaNorm], path: Path, *, adapter: str, base: str) -> None:
    """Draw the norm of each delta over its weight's: a heat map of the blocks, bars for what is outside them.

    Args:
        norms: of at least one weight.
        path: the picture; its ending is its format.
        adapter, base: names for the title.

    Raises:
        OSError: the picture cannot be written.
        RefusedError: ``picture-format``: a format that cannot be drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inside = [norm for norm in norms if block_of(norm.key) is not None]
    outside = [norm for norm in norms if block_of(norm.key) is None]
    rows = list(dict.fromkeys(family(norm.key) for norm in inside))
    columns = sorted({block_of(norm.key) for norm in inside} - {None}, key=lambda number: number or 0)
    heights = [0.24 * len(rows), 0.19 * len(outside)]
    figure = Figure(figsize=(max(7.5, 4.2 + 0.2 * len(columns)), 2.1 + sum(heights)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    parts = [height for height in heights if height]
    axes = figure.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": parts})[:, 0]
    top = max(norm.relative or 0.0 for norm in norms) or 1.0
    if inside:
        _heat_map(figure, axes[0], inside, rows, columns, top)
    if outside:
        _bars(axes[-1], outside, top)
    whole = 100 * (together(norms).relative or 0.0)
    figure.suptitle(
        f"{printable(adapter)}\nchanges {printable(base)} by {whole:.2g}% at strength 1", fontsize=11, x=0.01, ha="left"
    )
    try:
        figure.savefig(path)
    except ValueError as error:
        raise RefusedError(f"{printable(path)}: {printable(error)}", code="picture-format") from None


def _heat_map(
    figure: Any, axes: Any, norms: Sequence[DeltaNorm], rows: Sequence[str], columns: Sequence[int | None], top: float
) -> None:
    import numpy as np

    values = np.full((len(rows), len(columns)), np.nan)
    for norm in norms:
        place = rows.index(family(norm.key)), columns.index(block_of(norm.key))
        values[place] = 100 * (norm.relative or 0.0)
    image = axes.imshow(values, aspect="auto", cmap=_COLOURS, vmin=0, vmax=100 * top, interpolation="nearest")
    axes.set_facecolor("0.85")
    axes.set_yticks(range(len(rows)), [_short(row) for row in rows], fontsize=7, family="monospace")
    step = max(1, len(columns) // 12)
    axes.set_xticks(range(0, len(columns), step), columns[::step], fontsize=7)
    axes.set_xlabel("block; grey: not touched" if np.isnan(values).any() else "block", fontsize=8)
    axes.tick_params(length=0)
    groups = [_short(row).partition(".")[0] for row in rows]
    for at in range(1, len(rows)):
        if groups[at] != groups[at - 1]:
            axes.axhline(at - 0.5, color="white", linewidth=1.2)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.05)
    bar.set_label("norm of the delta / norm of the weight, %", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _bars(axes: Any, norms: Sequence[DeltaNorm], top: float) -> None:
    from matplotlib import colormaps

    shares = [100 * (norm.relative or 0.0) for norm in norms]
    colours = colormaps[_COLOURS]
    axes.barh(range(len(norms)), shares, color=[colours(share / (100 * top)) for share in shares], height=0.7)
    for at, share in enumerate(shares):
        axes.text(share + 0.5 * top, at, f"{share:.1f}" if share >= 1 else f"{share:.2g}", va="center", fontsize=6)
    axes.set_yticks(range(len(norms)), [_short(norm.key) for norm in norms], fontsize=7, family="monospace")
    axes.invert_yaxis()
    axes.set_xlabel("outside the blocks, %", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 108 * top)  # as far as the heat map's colours go, and a number behind the longest
    axes.margins(y=0.01)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _short(key: str) -> str:
    return _BLOCKS.sub("", without_prefix(key)).removesuffix(".weight")
