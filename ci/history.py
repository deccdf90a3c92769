"""The performance history as a small table and a picture, from the results that asv left in the repository.

    python ci/history.py                     the tables on stdout, the picture into asv_bench/history.svg
    python ci/history.py --readme README.md  and the tables between README.md's history marks
    python ci/history.py --reports FILE...   what `ltx2c bench --json` printed on several machines, side by side

Every machine of asv_bench/results/ has a part, named by its CPU. Only recorded results are drawn: nothing is measured
here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterable, Sequence
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

# What ltx2c is compared with, at 4096x450x4096; drawn dashed.
RIVALS = {"torch in f32": "#222", "torch": "#555", "scalar loop": "#999"}
RIVALS_BENCHMARK = "rivals.Rates.track_gflops"

MARKS = ("<!-- history: written by ci/history.py -->", "<!-- end of history -->")


class Point(NamedTuple):
    """One commit's GFLOP/s by shape or rival; what was not measured is missing."""

    commit: str
    gflops: dict[str, float]


def machines() -> dict[str, str]:
    """The CPU of every machine that has results."""
    return {
        path.parent.name: json.loads(path.read_text("utf-8"))["cpu"] for path in sorted(RESULTS.glob("*/machine.json"))
    }


def recorded(machine: str) -> list[Point]:
    """Every result of ``machine``, in the order of the commits' dates."""
    points = []
    for path in (RESULTS / machine).glob("*-*.json"):
        result = json.loads(path.read_text("utf-8"))
        gflops = by_name(result, BENCHMARK, SHAPES)
        if gflops:
            gflops |= by_name(result, RIVALS_BENCHMARK, RIVALS)
            points.append((result["date"], Point(result["commit_hash"][:8], gflops)))
    return [point for _, point in sorted(points)]


def by_name(result: dict, benchmark: str, wanted: Iterable[str]) -> dict[str, float]:
    """asv keeps the values of all parameters in one list, in the order of their product."""
    if benchmark not in result["results"]:
        return {}
    columns = dict(zip(result["result_columns"], result["results"][benchmark], strict=False))
    names = itertools.product(*columns.get("params", []))
    values = dict(zip((name[0].strip("'") for name in names), columns.get("result") or [], strict=False))
    return {name: values[name] for name in wanted if values.get(name)}


def table(points: Sequence[Point]) -> str:
    """Markdown: a row per commit, GFLOP/s by shape, and by rival where one was measured."""
    names = [*SHAPES, *(name for name in RIVALS if any(name in point.gflops for point in points))]
    rows = [["commit", *names], ["---", *["---:"] * len(names)]]
    for point in points:
        rows.append([f"`{point.commit}`", *(f"{point.gflops[n]:.3g}" if n in point.gflops else "-" for n in names)])
    return markdown(rows)


def markdown(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def comparison(reports: Sequence[dict]) -> str:
    """Markdown of reports of ``ltx2c bench --json``: GFLOP/s, share of that machine's peak, and times torch."""
    heads = [f"{report['cpu']}, {report['kernel']}, {report['threads']} threads" for report in reports]
    names = dict.fromkeys(row["name"] for report in reports for row in report["rows"])
    rows = [["out x rank x in", *heads], ["---", *["---"] * len(heads)]]
    for name in names:
        found = [next((row for row in report["rows"] if row["name"] == name), None) for report in reports]
        rows.append([name, *(told(row) if row else "-" for row in found)])
    return markdown(rows)


def told(row: dict) -> str:
    over = f", {row['gflops'] / row['torch_gflops']:.2f} x torch" if row["torch_gflops"] else ""
    return f"{row['gflops']:.0f}, {row['peak_share']:.0%} of peak{over}"


# ---- The picture -----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 48, 130, 42, 48
STEP = 100  # GFLOP/s between grid lines


def picture(history: dict[str, Sequence[Point]]) -> str:
    """An SVG that needs nothing but itself: for each CPU a line per shape and rival over the commits."""
    panels = [
        f'<g transform="translate(0 {HEIGHT * at})">\n{panel(points, cpu)}\n</g>'
        for at, (cpu, points) in enumerate(history.items())
    ]
    height, body = HEIGHT * len(panels), "\n".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def panel(points: Sequence[Point], cpu: str) -> str:
    top = STEP * -(-max(value for point in points for value in point.gflops.values()) // STEP)
    xs = [LEFT + (WIDTH - LEFT - RIGHT) * index / max(len(points) - 1, 1) for index in range(len(points))]

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [text(LEFT, 22, f"GFLOP/s by commit, out x rank x in, on {cpu}", size=14)]
    for value in range(0, int(top) + 1, STEP):
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y(value) + 4, str(value), anchor="end"))
    for x, point in zip(xs, points, strict=True):
        parts.append(text(x, HEIGHT - BOTTOM + 20, point.commit[:7], anchor="middle", size=10))
    ends = {}
    for name, colour in (SHAPES | RIVALS).items():
        line = [(x, y(p.gflops[name])) for x, p in zip(xs, points, strict=True) if name in p.gflops]
        if line:
            parts += drawn(line, colour, dashed=name in RIVALS)
            ends[name] = line[-1]
    return "\n".join(parts + labels(ends))


def drawn(line: Sequence[tuple[float, float]], colour: str, *, dashed: bool) -> list[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in line]
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>', *dots]


def labels(ends: dict[str, tuple[float, float]]) -> list[str]:
    """Each line's name at its end, moved down where it would stand on another."""
    parts = []
    lowest = 0.0
    for name, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        lowest = max(y + 4, lowest + 14)
        parts.append(text(x + 10, lowest, name, colour=(SHAPES | RIVALS)[name]))
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
    parser.add_argument("--last", type=int, default=12, help="how many commits (default: 12)")
    parser.add_argument("--readme", type=Path, help="a document with history marks to put the tables into")
    parser.add_argument("--reports", type=Path, nargs="+", help="files of `ltx2c bench --json` to compare instead")
    args = parser.parse_args()
    if args.reports:
        print(comparison([json.loads(path.read_text("utf-8")) for path in args.reports]))
        return 0
    history = shown(args.last)
    if not history:
        print(f"history: no results in {RESULTS}", file=sys.stderr)
        return 1
    PICTURE.write_text(picture(history), "utf-8")
    tables = "\n\n".join(f"{cpu}:\n\n{table(points)}" for cpu, points in history.items())
    print(tables)
    if args.readme:
        args.readme.write_text(put_between_marks(args.readme.read_text("utf-8"), tables), "utf-8")
    return 0


def shown(last: int) -> dict[str, Sequence[Point]]:
    """The last commits of every machine that has any, by its CPU."""
    history = {cpu: recorded(machine)[-last:] for machine, cpu in machines().items()}
    return {cpu: points for cpu, points in history.items() if points}


if __name__ == "__main__":
    sys.exit(main())
