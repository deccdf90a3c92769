"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ltx2c.arithmetic import ARITHMETICS
from ltx2c.errors import printable
from ltx2c.recipes import PIPELINES, Given, Recipe

# A file's size is a signed 64-bit number.
_TOO_LARGE = 1 << 63


def add_base(parser: argparse.ArgumentParser) -> None:
    """``BASE``."""
    parser.add_argument(
        "base",
        metavar="BASE",
        type=given_path,
        help="the base: a .safetensors file; a folder of a model, a pipeline or shards; an index; or hf://ORG/REPO",
    )


def add_loras(
    parser: argparse.ArgumentParser,
    option: str = "--lora",
    *,
    what: str = "an adapter to fuse",
    required: bool = False,
    ungiven: float | None = 1.0,
) -> None:
    """``OPTION PATH [STRENGTH]``, repeatable: a list of (path, strength) in the order given, empty by default.

    ``ungiven`` stands for a strength that was not given.
    """
    parser.add_argument(
        option,
        nargs="+",
        action=_Lora,
        const=ungiven,
        default=[],
        required=required,
        metavar=("PATH", "STRENGTH"),
        help=f"{what}, and its strength (1.0 unless given); repeatable, and the order counts",
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """``RECIPE BASE``, and adapters by role."""
    parser.add_argument("recipe", metavar="RECIPE", help=f"one of {', '.join(PIPELINES)}")
    add_base(parser)
    add_loras(parser, what="an adapter of the user's, or the IC or HDR adapter", ungiven=None)
    add_loras(parser, "--distilled-lora", what="the distilled adapter", ungiven=None)
    add_loras(parser, "--detailing-lora", what="the detailing adapter", ungiven=None)
    parser.add_argument(
        "--distilled-strengths",
        nargs="+",
        type=float,
        metavar="STRENGTH",
        help="the distilled adapter's strength in each phase, for ti2vid_two_stages_hq (default: 0.25 0.5)",
    )


def recipe(args: argparse.Namespace) -> Recipe:
    """The recipe that ``add_recipe``'s arguments give. Raises as ``Recipe.named`` does."""
    return Recipe.named(
        args.recipe,
        loras=_given(args.lora),
        distilled_lora=_given(args.distilled_lora),
        detailing_lora=_given(args.detailing_lora),
        distilled_strengths=args.distilled_strengths,
    )


def _given(loras: Sequence[tuple[str, float | None]]) -> list[Given]:
    """An explicit 1.0 is a strength that was chosen, and none is not."""
    return [path if strength is None else (path, strength) for path, strength in loras]


def add_threads(parser: argparse.ArgumentParser) -> None:
    """``--threads N``; None means as many as the machine allows this process."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads to compute with (default: all this process may use)"
    )


def add_arithmetic(parser: argparse.ArgumentParser) -> None:
    """``--arithmetic ltx|f32`` and ``--nvfp4-scales swizzled|linear``."""
    parser.add_argument(
        "--arithmetic",
        choices=tuple(ARITHMETICS),
        default="ltx",
        help="ltx rounds through bfloat16 as upstream LTX does (the default); f32 rounds once, as ComfyUI, kohya and "
        "PEFT mean it",
    )
    parser.add_argument(
        "--nvfp4-scales",
        choices=("swizzled", "linear"),
        help="the order of NVFP4's block scales in BASE, where it does not say so itself; of two codes in a byte the "
        "one in the high half is the first, and files that say they are ModelOpt's, where the low one is, are refused",
    )


def add_out_dtype(parser: argparse.ArgumentParser) -> None:
    """``--out-dtype`` and ``--keep``."""
    parser.add_argument(
        "--out-dtype",
        choices=("bf16", "f16", "f32", "fp8", "fp8-scaled"),
        help="store weights otherwise than BASE: bf16, f16 or f32 for all that are quantised, whose scales leave the "
        "file; fp8 or fp8-scaled for those of linear layers that are not (norms, biases and embeddings stay)",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="store weights whose keys the glob PATTERN fits as BASE does; repeatable",
    )


def add_allow_nonfinite(parser: argparse.ArgumentParser) -> None:
    """``--allow-nonfinite``."""
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="keep a result that holds inf or NaN where the base was finite (otherwise it is refused)",
    )


def add_variant(parser: argparse.ArgumentParser) -> None:
    """``--variant NAME``."""
    parser.add_argument(
        "--variant",
        metavar="NAME",
        help="which weights of the folder BASE, where it holds several, such as fp16; '' for those of no variant",
    )


def add_unmatched(parser: argparse.ArgumentParser) -> None:
    """``--unmatched error|warn``."""
    parser.add_argument(
        "--unmatched",
        choices=("error", "warn"),
        default="error",
        help="an adapter key without a target in the base: refuse (the default), or go on and list it",
    )


def planning(args: argparse.Namespace) -> dict[str, Any]:
    """What the library's functions take of the options that say how to plan a fuse."""
    names = ("arithmetic", "unmatched", "nvfp4_scales", "alpha", "block_weights", "variant")
    return {name: getattr(args, name) for name in names}


def storing(args: argparse.Namespace) -> dict[str, Any]:
    """And of the options that say how a result's weights are stored."""
    return {"out_dtype": args.out_dtype, "keep": args.keep}


def path(text: str) -> Path:
    """A path, which an empty word is not: to the system that is the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no file")
    return Path(text)


def given_path(text: str) -> str:
    """A path as it was given: a slash at its end says that it is a folder's, two in it may be a hub name's."""
    path(text)
    return text


def add_strength_options(parser: argparse.ArgumentParser) -> None:
    """``--alpha`` and ``--block-weights``: what makes of the strengths what is fused."""
    parser.add_argument(
        "--alpha",
        choices=("stated", "ignore", "file"),
        default="stated",
        help="stated (the default): .alpha tensors and PEFT's configuration count; ignore: strengths alone; file: also "
        "an alpha in other metadata",
    )
    parser.add_argument(
        "--block-weights",
        type=_block_weights,
        action="extend",
        default=[],
        metavar="PATTERN=FACTOR",
        help="multiply the strength by FACTOR in modules of BASE whose names the glob PATTERN fits; repeatable, "
        "factors multiply; or a file of such lines",
    )


def _block_weights(text: str) -> list[tuple[str, float]]:
    """One ``pattern=factor``, or the lines of a file; in it, empty lines and those that begin with # do not count."""
    if "=" in text:
        return [_block_weight(text)]
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"'{printable(text)}' is neither PATTERN=FACTOR nor a file of them: {printable(error)}"
        ) from None
    return [_block_weight(line) for line in map(str.strip, lines) if line and not line.startswith("#")]


def _block_weight(text: str) -> tuple[str, float]:
    pattern, _, factor = text.rpartition("=")
    try:
        return pattern.strip(), float(factor)  # whether it is finite, the plan says
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no PATTERN=FACTOR such as 'blocks.0.*=0.5'") from None


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """``--allow-nonfinite`` and ``--max-shard-size``."""
    add_allow_nonfinite(parser)
    parser.add_argument(
        "--max-shard-size",
        type=byte_size,
        metavar="SIZE",
        help="write a folder of shards of at most this size, such as 5GB (default: sharded as the base is)",
    )


def byte_size(text: str) -> int:
    """A size such as ``5GB``, ``500MB``, ``2GiB`` or a plain number of bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no size such as 5GB")
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " ")
    if size >= _TOO_LARGE:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is more than a file can hold")
    return int(size)


class _Lora(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(values, list)
        if len(values) > 2:
            parser.error(f"{option_string} takes PATH [STRENGTH] and got {len(values)} values: {' '.join(values)}")
        path, *strength = values
        if not path:
            parser.error(f"{option_string}: an empty path names no file")
        given = [*getattr(namespace, self.dest), (path, self._strength(parser, option_string, *strength))]
        setattr(namespace, self.dest, given)

    def _strength(self, parser: argparse.ArgumentParser, option: str | None, text: str | None = None) -> float | None:
        if text is None:
            ungiven: float | None = self.const
            return ungiven
        try:
            return float(text)  # whether it is finite and fits, the plan says
        except ValueError:
            parser.error(f"{option}: the strength must be a number, not '{printable(text)}'")
