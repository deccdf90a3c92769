"""What a plan's output will be, to the byte: its files, their headers and metadata. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ltx2c.engines.provenance import described, provenance
from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files.index import INDEX_SUFFIX, Index, is_shard_name, split_index_name
from ltx2c.files.layout import FileLayout, OutputLayout, OutputTensor, plan_file
from ltx2c.plan.opened import OpenedPlan


def lay_out(
    opened: OpenedPlan, *, max_shard_bytes: int | None = None, adapter_sha256: Sequence[str] | None = None
) -> OutputLayout:
    """The output: the base's keys in its order, its dtypes, its metadata and ours; sharded as the base is.

    Args:
        max_shard_bytes: shard anew, with at most so many tensor bytes in each (or one tensor).
        adapter_sha256: digests of the adapters' whole content, for the metadata.

    Raises:
        RefusedError: ``header-length``, ``max-shard-size``.
    """
    plan, sources = opened
    base = sources.base
    ours = provenance(plan, base.metadata, adapter_sha256)
    if max_shard_bytes is not None:
        return _sharded_anew(base, outputs(opened), ours, max_shard_bytes)
    groups: dict[TensorFile, list[OutputTensor]] = {file: [] for file in base.files}
    for tensor in outputs(opened):
        groups[tensor.source.file].append(tensor)
    names = _names(base)
    files = tuple(plan_file(names[file], group, described(file.metadata, ours)) for file, group in groups.items())
    return _with_index(files, base.index_name, base) if base.index else OutputLayout(files)


def outputs(opened: OpenedPlan) -> tuple[OutputTensor, ...]:
    """The result's tensors, in the base's key order: what fused weights write, and copies of all others."""
    written = {spec.key: spec for stored in opened.plan.weights.values() for spec in stored.outputs}
    return tuple(
        OutputTensor(*written[key], source) if key in written else OutputTensor.copy_of(source)
        for key, source in opened.sources.base.tensors.items()
    )


def _sharded_anew(base: Checkpoint, tensors: Iterable[OutputTensor], ours: str, max_shard_bytes: int) -> OutputLayout:
    if max_shard_bytes < 1:
        raise RefusedError(f"the largest shard must be 1 byte or more, not {max_shard_bytes}", code="max-shard-size")
    stem, suffix = _stem(base)
    groups = _shards(tensors, max_shard_bytes)
    names = _numbered(stem, len(groups))
    files = tuple(
        plan_file(name, group, described(base.metadata, ours)) for name, group in zip(names, groups, strict=True)
    )
    return _with_index(files, f"{stem}{suffix}", base)


def _names(base: Checkpoint) -> dict[TensorFile, str]:
    """What the output's files are called: as the base's, but numbered where those lie in subfolders."""
    names = {file: file.path.name for file in base.files}
    if any("/" in shard for shard in base.shards):
        names = dict(zip(base.files, _numbered(_stem(base)[0], len(base.files)), strict=True))
    return names


def _numbered(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _stem(base: Checkpoint) -> tuple[str, str]:
    """What new shards are called by, and what the index adds to it: the base's own, unless no index could hold it."""
    if base.index_name:
        stem, suffix = split_index_name(base.index_name)
    else:
        stem, suffix = base.files[0].path.name.removesuffix(".safetensors"), INDEX_SUFFIX
    return (stem if is_shard_name(f"{stem}.safetensors") else "model"), suffix


def _shards(tensors: Iterable[OutputTensor], max_bytes: int) -> list[list[OutputTensor]]:
    """Consecutive tensors, as many as fit; a larger one stands alone."""
    shards: list[list[OutputTensor]] = []
    held = 0
    for tensor in tensors:
        if not shards or held + tensor.nbytes > max_bytes:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += tensor.nbytes
    return shards or [[]]


def _with_index(files: tuple[FileLayout, ...], name: str, base: Checkpoint) -> OutputLayout:
    shard_of = {placed.tensor.key: file.name for file in files for placed in file.tensors}
    keys = base.index.weight_map if base.index else base.tensors
    metadata = dict(base.index.metadata) if base.index else {}
    metadata["total_size"] = sum(placed.tensor.nbytes for file in files for placed in file.tensors)
    others = base.index.others if base.index else {}
    index = Index(metadata, {key: shard_of[key] for key in keys}, others)
    return OutputLayout(files, name, index.as_bytes())
