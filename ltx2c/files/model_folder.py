"""A model's folder as diffusers and transformers save it: where its weights lie, plain or as a variant.

A variant's files are called ``STEM.VARIANT.safetensors``, ``STEM.VARIANT-00001-of-00002.safetensors`` and
``STEM.safetensors.index.VARIANT.json``; a pipeline's folder holds ``model_index.json`` and a subfolder per component.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ltx2c.errors import RefusedError, printable
from ltx2c.files.hub import repository_of
from ltx2c.files.index import is_index_name, is_side_file, split_index_name
from ltx2c.files.url import AnyPath

PIPELINE_INDEX = "model_index.json"

# What adapters are fused into: always, and where an adapter has keys for it.
MAIN, OTHERS = "transformer", ("connectors",)

# What weights are called by in a folder: there, what follows a dot is a variant.
STEMS = ("diffusion_pytorch_model", "model")

_WEIGHTS = re.compile(
    r".*\.(safetensors|gguf)|.*\.safetensors\.index(\.[^./]+)?\.json"
    r"|((diffusion_)?(pytorch_|flax_|tf_)?model|consolidated)[^/]*\.(bin|pt|pth|ckpt|msgpack|h5)(\.index[^/]*\.json)?",
    re.DOTALL,
)
_NUMBERED = re.compile(r"-\d{5}-of-\d{5}(\.[^./]+)?\.safetensors")


class Weights(NamedTuple):
    """One checkpoint of a folder: its index or its only file, and of which variant it is; "" of none."""

    path: AnyPath
    variant: str


def is_pipeline(folder: AnyPath) -> bool:
    """Whether a folder is a pipeline's."""
    return (folder / PIPELINE_INDEX).is_file()


def is_weights(name: str) -> bool:
    """Whether a file of that name in a model's folder holds its weights, in whatever format, or indexes them."""
    return _WEIGHTS.fullmatch(name) is not None


def component_folders(pipeline: AnyPath) -> tuple[str, ...]:
    """Those of a pipeline that adapters are fused into, the main one first.

    Raises:
        RefusedError: ``no-transformer``.
    """
    if not (pipeline / MAIN).is_dir():
        raise RefusedError(
            f"{printable(pipeline)}: a pipeline without a folder {MAIN}, which is what adapters are fused into",
            code="no-transformer",
        )
    return (MAIN, *(name for name in OTHERS if (pipeline / name).is_dir()))


def find_weights(folder: AnyPath, variant: str | None = None, *, or_plain: bool = False) -> Weights:
    """The checkpoint of a folder.

    Args:
        variant: which; None takes the only one that there is.
        or_plain: whether one of no variant will do where ``variant`` is missing.

    Raises:
        OSError: as the system says.
        RefusedError: ``no-checkpoint``, ``no-variant``, ``several-variants``, ``several-indexes``, ``no-index``.
    """
    names = sorted(path.name for path in folder.iterdir() if not is_side_file(path.name))
    found = _candidates(folder, names)
    variants = sorted({one.variant for one in found})
    if variant is not None:
        chosen = [one for one in found if one.variant == variant]
        if not chosen and or_plain:
            chosen = [one for one in found if not one.variant]
        if found and not chosen:
            _refuse(folder, f"holds no weights of variant {printable(variant)}, but {_named(found)}", "no-variant")
    elif len(variants) > 1:
        _refuse(folder, f"holds {_named(found)}: --variant or the path of one chooses", "several-variants")
    else:
        chosen = found
    if not chosen:
        repository = repository_of(folder.name)
        hint = (
            f", but is a repository of a hub's cache: give hf://{repository}, or one of its snapshots"
            if repository
            else ""
        )
        _refuse(folder, f"holds no .safetensors file{hint}", "no-checkpoint")
    if len(chosen) > 1:
        if is_index_name(chosen[0].path.name):
            _refuse(folder, f"holds several indexes, {_named(chosen)}: give the path of one", "several-indexes")
        shown = ", ".join(printable(one.path.name) for one in chosen[:3])
        _refuse(
            folder, f"holds {len(chosen)} .safetensors files ({shown} ...) and no index that joins them", "no-index"
        )
    return chosen[0]


def _candidates(folder: AnyPath, names: list[str]) -> list[Weights]:
    """Every index; and of single files all where there is no index, else those of another variant than any index."""
    indexes = [(name, *split_index_name(name)) for name in names if is_index_name(name)]
    found = [Weights(folder / name, _index_variant(suffix)) for name, _, suffix in indexes]
    singles = [name for name in names if name.endswith(".safetensors")]
    stems = {stem for _, stem, _ in indexes}
    plain = {name.removesuffix(".safetensors") for name in singles}
    for name in singles:
        stem, _, variant = name.removesuffix(".safetensors").rpartition(".")
        if stem not in {*STEMS, *plain, *stems}:
            stem, variant = name.removesuffix(".safetensors"), ""
        beside = stem in stems and variant not in {one.variant for one in found}
        if not indexes or (beside and not _NUMBERED.search(name)):
            found.append(Weights(folder / name, variant))
    return found


def _index_variant(suffix: str) -> str:
    return suffix.removeprefix(".safetensors.index").removesuffix("json").strip(".")


def _named(found: list[Weights]) -> str:
    return " and ".join(printable(one.path.name) for one in found[:4])


def _refuse(folder: AnyPath, problem: str, code: str) -> NoReturn:
    raise RefusedError(f"{printable(folder)}: {problem}", code=code)
