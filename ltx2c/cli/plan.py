"""``ltx2c plan``: what renders of a pipeline will cost, phase by phase, beside the naive order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ltx2c.cli import options, text
from ltx2c.cli.result import Result
from ltx2c.errors import printable
from ltx2c.plan.cost import Cost
from ltx2c.plan.render import LOAD, TERMINAL, Step
from ltx2c.rendering import RenderPlan, plan_render

EXAMPLE = """
    ltx2c plan a2vid_two_stage ltx-2.5.safetensors --distilled-lora distilled-lora.safetensors --renders 3
"""

_HEADER = ("", "kept", "restored", "fused", "switched", "un-fused", "TFLOP", "GB", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, the base, and adapters by role."""
    options.add_recipe(parser)
    parser.add_argument("--renders", type=int, default=1, metavar="N", help="how many renders (default: 1)")
    parser.add_argument(
        "--terminal",
        default="last",
        metavar="first|last|base",
        help="the state each render leaves: its last phase's (the default), the first phase's, or the base",
    )
    parser.add_argument(
        "--memory-budget",
        type=options.byte_size,
        default=0,
        metavar="SIZE",
        help="memory for a second copy of what differs between phases, such as 8GB (default: 0)",
    )
    options.add_variant(parser)
    options.add_arithmetic(parser)
    options.add_unmatched(parser)
    options.add_strength_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Plan from headers, and predict seconds from rates measured on the spot."""
    plan = plan_render(
        args.base,
        options.recipe(args),
        args.renders,
        args.terminal,
        **options.planning(args),
        memory_budget=args.memory_budget,
    )
    return Result(plan.as_json(), _text(plan))


def _text(plan: RenderPlan) -> str:
    lines = [
        f"{plan.recipe}, {text.count(plan.renders, 'render')}, each leaving {plan.terminal}; predicted at "
        f"{plan.rates.flops / 1e9:.0f} GFLOP/s and {plan.rates.bytes / 1e9:.1f} GB/s",
        "",
        *_table([_HEADER, *_rows(plan, plan.steps, "total"), *_rows(plan, plan.naive, "naive total")[-1:]]),
        "",
        _saving(plan),
    ]
    if plan.second_copy is not None:
        copy = plan.second_copy
        lines.append(
            f"a second copy of {text.count(copy.tensors, 'tensor')} ({text.size(copy.bytes)}) saves "
            f"{copy.seconds_saved:.2f} s"
        )
    lines += [f"unmatched: {printable(pair.adapter)}: {printable(pair.key)}" for pair in plan.unmatched]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _saving(plan: RenderPlan) -> str:
    saved = plan.naive_seconds - plan.seconds
    share = saved / plan.naive_seconds if plan.naive_seconds else 0.0
    return f"saved: {saved:.2f} s of {plan.naive_seconds:.2f} s ({share:.0%})"


def _rows(plan: RenderPlan, steps: Sequence[Step], total: str) -> list[tuple[str, ...]]:
    shown = [step for step in steps if step.name != TERMINAL or plan.terminal != "last"]  # leaving is no work
    names = [LOAD if step.name == LOAD else f"render {step.render} {step.name}" for step in shown]
    rows = [_row(plan, name, f"{step.kept:,}", [step]) for name, step in zip(names, shown, strict=True)]
    return [*rows, _row(plan, total, "-", steps)]


def _row(plan: RenderPlan, name: str, kept: str, steps: Sequence[Step]) -> tuple[str, ...]:
    cost = Cost.total(step.cost for step in steps)
    done = (sum(getattr(step, lot) for step in steps) for lot in ("restored", "fused", "switched", "unfused"))
    return (
        name,
        kept,
        *(f"{count:,}" for count in done),
        f"{2 * cost.macs / 1e12:.2f}",
        f"{max(cost.bytes_read, cost.bytes_written) / 1e9:.2f}",
        f"{sum(plan.rates.seconds(step.cost) for step in steps):.2f}",
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns aligned: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]) for name, *numbers in rows]
