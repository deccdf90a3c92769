"""The performance history as a small table and a picture, from the results that asv left in the repository.

    python ci/history.py                     the table on stdout, the picture into asv_bench/history.svg
    python ci/history.py --readme README.md  and the table between README.md's history marks
    python ci/history.py --machine NAME      of another machine than zen4-2cores

Only recorded results are drawn: nothing is measured here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "asv_bench" / "results"
PICTURE = ROOT / "asv_bench" / "history.svg"

BENCHMARK = "kernels.Shapes.track_gflops"
# What is shown, and in which colour (told apart also where colours are not seen: each line bears its name).
SHAPES = {
    "4096x16x4096": "#b35900",
    "4096x32x4096": "#8c3a8c",
    "4096x128x4096": "#00705c",
    "4096x450x4096": "#1f5fa8",
}

MARKS = ("<!-- history: written by ci/history.py -->", "<!-- end of history -->")


class Point(NamedTuple):
    """One commit's GFLOP/s by shape; a shape that was not measured is missing."""

    commit: str
    gflops: dict[str, float]


def recorded(machine: str) -> list[Point]:
    """Every result of ``machine``, in the order of the commits' dates."""
    points = []
    for path in (RESULTS / machine).glob("*-*.json"):
        result = json.loads(path.read_text("utf-8"))
        gflops = by_shape(result)
        if gflops:
            points.append((result["date"], Point(result["commit_hash"][:8], gflops)))
    return [point for _, point in sorted(points)]


def by_shape(result: dict) -> dict[str, float]:
    """asv keeps the values of all parameters in one list, in the order of their product."""
    columns = dict(zip(result["result_columns"], result["results"].get(BENCHMARK, []), strict=False))
    names = itertools.product(*columns.get("params", []))
    values = dict(zip((name[0].strip("'") for name in names), columns.get("result") or [], strict=False))
    return {shape: values[shape] for shape in SHAPES if values.get(shape)}


def table(points: Sequence[Point]) -> str:
    """Markdown: a row per commit, GFLOP/s by shape."""
    rows = [["commit", *SHAPES], ["---", *["---:"] * len(SHAPES)]]
    for point in points:
        rows.append([f"`{point.commit}`", *(f"{point.gflops[s]:.0f}" if s in point.gflops else "-" for s in SHAPES)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ---- The picture -----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 48, 130, 42, 48
STEP = 100  # GFLOP/s between grid lines


def picture(points: Sequence[Point], machine: str) -> str:
    """An SVG that needs nothing but itself: a line per shape over the commits."""
    top = STEP * -(-max(value for point in points for value in point.gflops.values()) // STEP)
    xs = [LEFT + (WIDTH - LEFT - RIGHT) * index / max(len(points) - 1, 1) for index in range(len(points))]

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [text(LEFT, 22, f"GFLOP/s by commit, out x rank x in, on {machine}", size=14)]
    for value in range(0, int(top) + 1, STEP):
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y(value) + 4, str(value), anchor="end"))
    for x, point in zip(xs, points, strict=True):
        parts.append(text(x, HEIGHT - BOTTOM + 20, point.commit[:7], anchor="middle", size=10))
    ends = {}
    for shape, colour in SHAPES.items():
        line = [(x, y(p.gflops[shape])) for x, p in zip(xs, points, strict=True) if shape in p.gflops]
        if line:
            parts += drawn(line, colour)
            ends[shape] = line[-1]
    parts += labels(ends)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def drawn(line: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in line]
    return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def labels(ends: dict[str, tuple[float, float]]) -> list[str]:
    """Each line's name at its end, moved down where it would stand on another."""
    parts = []
    lowest = 0.0
    for shape, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        lowest = max(y + 4, lowest + 14)
        parts.append(text(x + 10, lowest, shape, colour=SHAPES[shape]))
    return parts


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#333") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def put_between_marks(document: str, content: str) -> str:
    """``document`` with what stands between the marks replaced."""
    begin, end = map(re.escape, MARKS)
    found, count = re.subn(
        f"({begin}\n).*?({end})", lambda match: f"{match[1]}{content}\n{match[2]}", document, flags=re.S
    )
    if count != 1:
        raise SystemExit(f"history: the document needs one pair of marks: {' '.join(MARKS)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="zen4-2cores")
    parser.add_argument("--last", type=int, default=12, help="how many commits (default: 12)")
    parser.add_argument("--readme", type=Path, help="a document with history marks to put the table into")
    args = parser.parse_args()
    points = recorded(args.machine)[-args.last :]
    if not points:
        print(f"history: no results of {args.machine} in {RESULTS}", file=sys.stderr)
        return 1
    PICTURE.write_text(picture(points, args.machine), "utf-8")
    print(table(points))
    if args.readme:
        args.readme.write_text(put_between_marks(args.readme.read_text("utf-8"), table(points)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
