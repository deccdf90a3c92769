"""The table of commands, and how a command line becomes a command and its arguments.

Only the module of the command that was asked for is imported: ``ltx2c --help`` must not pay for any of them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from ltx2c.cli.result import Result
from ltx2c.errors import escaped
from ltx2c.version import __version__

# name: (module, what it does)
COMMANDS = {
    "fuse": ("ltx2c.cli.fuse", "fuse LoRA adapters into a checkpoint and write the result"),
    "fuse-many": ("ltx2c.cli.fuse_many", "fuse several results from one reading of a base"),
    "job": ("ltx2c.cli.job", "a fuse in units, for many machines: create, unit, run, status, finish, abandon"),
    "inspect": ("ltx2c.cli.inspect", "say what a checkpoint or an adapter holds, and whether they fit"),
    "verify": ("ltx2c.cli.verify", "check a fused checkpoint against its base and adapters, byte for byte"),
    "synth": ("ltx2c.cli.synth", "write LTX-2.5-shaped files to try things out on"),
    "plan": ("ltx2c.cli.plan", "what the renders of a pipeline will cost, beside the naive order"),
    "phases": ("ltx2c.cli.phases", "write one file for each distinct state of a pipeline's phases"),
    "demo": ("ltx2c.cli.demo", "synthesise, fuse and check, in one go"),
    "bench": ("ltx2c.cli.bench", "measure this machine: peaks, and fusion beside them"),
    "info": ("ltx2c.cli.info", "versions, CPU features, the kernel chosen and why, threads"),
}


# What argparse must not take for an option. By itself it knows -0.3 for a number, but not -1e-3 or -inf.
_NEGATIVE_NUMBER = re.compile(
    r"-(([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(e[+-]?[0-9][0-9_]*)?|inf|infinity|nan)$", re.IGNORECASE
)


class Command(Protocol):
    """What a command's module offers."""

    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""

    def run(self, args: argparse.Namespace) -> Result:
        """Do the work. ``RefusedError`` and ``OSError`` are left to the caller."""


class UsageError(Exception):
    """A command line that makes no sense."""

    code = "usage"


class Parser(argparse.ArgumentParser):
    """argparse, raising ``UsageError`` instead of printing its own kind of message."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)
        self._negative_number_matcher = _NEGATIVE_NUMBER

    def error(self, message: str) -> NoReturn:
        """Raise, with a pointer to the help; argparse puts arguments into its messages as they were typed."""
        raise UsageError(f"{escaped(message)} (see {self.prog} --help)")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        # argparse would show one or two values as "PATH [STRENGTH ...]"
        shown = super()._format_args(action, default_metavar)
        return shown.replace(" ...]", "]") if isinstance(action.metavar, tuple) else shown


def parse(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command named first, and its parsed arguments. ``--help`` and ``--version`` print and exit."""
    _overview().parse_args(arguments[:1])
    name, *rest = arguments
    module, summary = COMMANDS[name]
    command: Command = importlib.import_module(module)
    parser = Parser(
        prog=f"ltx2c {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="example:\n" + textwrap.indent(textwrap.dedent(command.EXAMPLE).strip(), "  "),
    )
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return command, parser.parse_args(rest)


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    parser = Parser(
        prog="ltx2c",
        description="Fuse LoRA adapters into large diffusion transformers: bit-exact, at the CPU's full speed.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
        + "\n\nexample:\n  ltx2c fuse base.safetensors --lora style.safetensors 0.8 -o fused.safetensors"
        + "\n\n`ltx2c COMMAND --help` says more about each.",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"ltx2c {__version__}")
    return parser
