"""What a plan's output will be, to the byte: its files, their headers and metadata. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ltx2c.engines.provenance import Described, provenance
from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile
from ltx2c.files.checkpoint import Component
from ltx2c.files.index import INDEX_SUFFIX, Index, is_shard_name, split_index_name
from ltx2c.files.layout import FileLayout, OutputLayout, OutputTensor, plan_file
from ltx2c.plan.opened import OpenedPlan
from ltx2c.plan.written import written_components, written_tensors


def lay_out(
    opened: OpenedPlan,
    *,
    max_shard_bytes: int | None = None,
    adapter_sha256: Sequence[str] | None = None,
    request: str | None = None,
) -> OutputLayout:
    """The output: the base's keys in its order, its dtypes, its metadata and ours; sharded as the base is.

    Of a model's folder it is a folder, and of a pipeline's the components that the plan writes. What else stands in it
    is not looked for here.

    Args:
        max_shard_bytes: shard anew, with at most so many tensor bytes in each (or one tensor).
        adapter_sha256: digests of the adapters' whole content, for the metadata.
        request: the digest of what was asked for, likewise.

    Raises:
        RefusedError: ``header-length``, ``max-shard-size``.
    """
    plan, sources = opened
    base = sources.base
    ours = Described(plan, provenance(plan, base.metadata, adapter_sha256, request), base.tensors)
    made: dict[str, list[OutputTensor]] = {}
    for tensor in outputs(opened):
        made.setdefault(tensor.source.key, []).append(tensor)
    files: list[FileLayout] = []
    texts: dict[str, bytes] = {}
    for component in written_components(base, plan.weights):
        tensors = [tensor for key in component.tensors for tensor in made.get(key, ())]
        if max_shard_bytes is None:
            parts, index_name = _as_sharded(component, tensors, ours), component.index_name
        else:
            parts, index_name = _sharded_anew(component, tensors, ours, max_shard_bytes)
        within = f"{component.name}/" if component.name else ""
        if index_name:
            texts[within + index_name] = _index(parts, component)
        files += [replace(file, name=within + file.name) for file in parts]
    is_folder = base.folder is not None or bool(texts)
    return OutputLayout(tuple(files), is_folder, texts)


def outputs(opened: OpenedPlan) -> tuple[OutputTensor, ...]:
    """The result's tensors, in the base's key order: what changed weights write, and copies of all others."""
    return written_tensors(opened.sources.base, opened.plan.weights, opened.plan.written)


def _as_sharded(component: Component, tensors: Iterable[OutputTensor], ours: Described) -> tuple[FileLayout, ...]:
    groups: dict[TensorFile, list[OutputTensor]] = {file: [] for file in component.files}
    for tensor in tensors:
        groups[tensor.source.file].append(tensor)
    names = _names(component)
    return tuple(plan_file(names[file], group, ours.metadata(file.metadata, group)) for file, group in groups.items())


def _sharded_anew(
    component: Component, tensors: Iterable[OutputTensor], ours: Described, max_shard_bytes: int
) -> tuple[tuple[FileLayout, ...], str]:
    """The shards, and what their index is called."""
    if max_shard_bytes < 1:
        raise RefusedError(f"the largest shard must be 1 byte or more, not {max_shard_bytes}", code="max-shard-size")
    stem, suffix = _stem(component)
    groups = _shards(tensors, max_shard_bytes)
    names = _numbered(_with_variant(stem, component), len(groups))
    metadata: dict[str, str] = {}
    for file in component.files:
        metadata = {**file.metadata, **metadata}
    files = (plan_file(name, group, ours.metadata(metadata, group)) for name, group in zip(names, groups, strict=True))
    return tuple(files), f"{stem}{suffix}"


def _names(component: Component) -> dict[TensorFile, str]:
    """What the output's files are called: as the base's, but numbered where those lie in subfolders."""
    names = {file: file.path.name for file in component.files}
    if any("/" in shard for shard in component.shards):
        names = dict(zip(component.files, _numbered(_stem(component)[0], len(component.files)), strict=True))
    return names


def _numbered(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _stem(component: Component) -> tuple[str, str]:
    """What new shards are called by, and what the index adds to it: the base's own, unless no index could hold it."""
    if component.index_name:
        stem, suffix = split_index_name(component.index_name)
    elif component.variant:
        stem = component.files[0].path.name.removesuffix(f".{component.variant}.safetensors")
        suffix = INDEX_SUFFIX.replace(".json", f".{component.variant}.json")
    else:
        stem, suffix = component.files[0].path.name.removesuffix(".safetensors"), INDEX_SUFFIX
    return (stem if is_shard_name(f"{stem}.safetensors") else "model"), suffix


def _with_variant(stem: str, component: Component) -> str:
    return f"{stem}.{component.variant}" if component.variant else stem


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


def _index(files: Iterable[FileLayout], component: Component) -> bytes:
    placed = {one.tensor.key: (file.name, one.tensor.nbytes) for file in files for one in file.tensors}
    base = component.index or Index({}, {key: "" for key in component.tensors})
    metadata = {**base.metadata, "total_size": sum(nbytes for _, nbytes in placed.values())}
    order = dict.fromkeys([*(key for key in base.weight_map if key in placed), *placed])
    return Index(metadata, {key: placed[key][0] for key in order}, base.others).as_bytes()
