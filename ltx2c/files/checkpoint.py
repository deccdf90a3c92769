"""A checkpoint: the tensors of one safetensors file, of a model's folder, or of a pipeline's components."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ltx2c.errors import RefusedError, printable
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.index import Index, is_index_name, is_side_file, read_index, shards_of
from ltx2c.files.model_folder import OTHERS, component_folders, find_weights, is_pipeline
from ltx2c.files.paths import input_path
from ltx2c.files.tensorfile import StoredTensor, TensorFile
from ltx2c.files.url import AnyPath, on_this_disk


@dataclass(frozen=True, eq=False)
class Component:
    """The weights of one model: of one file, or of shards with their index.

    Attributes:
        name: of its subfolder in a pipeline's folder; "" where it stands by itself.
        files: the safetensors files in it, sorted by name.
        variant: of which variant they are, "" of none.
        shards: the same by the path that the index gives them, such as ``part/a.safetensors``; empty for a single file.
        index: of a folder of shards; None for a single file.
        index_name: the index's file name, or "".
        notes: what a person should know of it and nobody refused, one line each.
    """

    name: str
    files: tuple[TensorFile, ...]
    variant: str = ""
    shards: dict[str, TensorFile] = field(default_factory=dict)
    index: Index | None = None
    index_name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """Its tensors by key, file after file in each header's order; where there is an index, as that has them."""
        if self.index is None:
            return self.files[0].tensors
        found: dict[str, StoredTensor] = {}
        weight_map = self.index.weight_map
        for name, file in self.shards.items():
            ours = {key: tensor for key, tensor in file.tensors.items() if weight_map.get(key) == name}
            found |= file.tensors if len(ours) == len(file.tensors) else ours
        return found


class Checkpoint(HoldsDescriptors):
    """A model's tensors by key, wherever they lie; also a context manager. Cannot be pickled or copied.

    Attributes:
        path: as given.
        folder: the model's folder, where it was given as one; None for a file or an index, and for a URL: what stands
            beside the weights in a storage is not looked for.
        variant: the variant that was asked for; None where none was.
        components: where its tensors lie; a pipeline's main one first, all others have one.
        files: the safetensors files in it, component after component, sorted by name.
        tensors: by key, file after file in each header's order.
        metadata: ``__metadata__`` of all files together; the first file that holds a name wins.
        notes: what a person should know of it and nobody refused, one line each.
    """

    def __init__(
        self, path: AnyPath, components: Sequence[Component], *, folder: Path | None = None, variant: str | None = None
    ) -> None:
        self.path = path
        self.folder = folder
        self.variant = variant
        self.components = tuple(components)
        self.files = tuple(file for component in components for file in component.files)
        self.notes = tuple(note for component in components for note in component.notes)
        self.tensors: dict[str, StoredTensor] = {}
        self.metadata: dict[str, str] = {}
        for component in components:
            tensors = component.tensors
            for key in tensors.keys() & self.tensors.keys():
                raise RefusedError(
                    f"{printable(path)}: {printable(key)} is in {printable(component.name)} and another component",
                    code="ambiguous-weight",
                )
            self.tensors |= tensors
        for file in self.files:
            self.metadata = {**file.metadata, **self.metadata}

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, variant: str | None = None) -> Checkpoint:
        """Open a ``.safetensors`` file, a model's folder, a pipeline's, or an index, from the headers alone.

        Of a folder's shards the index decides which count, and where each key lies. A key that also stands in a shard
        that the index does not give for it, and shards that it does not name, are left out and listed in ``notes``.
        Of a pipeline's folder those components are opened that adapters are fused into.

        Args:
            path: or a URL, or a hub name, ``hf://ORG/REPO[@REVISION][/FILE]``, which is looked up in the cache on this
                disk.
            variant: of a folder that holds weights of several, which: ``"fp16"``.

        Raises:
            OSError: a file is missing or cannot be read.
            RefusedError: ``bad-path``, ``bad-url``, ``no-storage``, ``not-by-url``, ``hub-name``, ``not-in-cache``,
                ``no-checkpoint``, ``no-index``, ``several-indexes``, ``several-variants``, ``no-variant``,
                ``no-transformer``, ``ambiguous-weight``, ``shard-missing``, ``shard-key-missing``, or as
                ``TensorFile.open`` and ``read_index`` say.
        """
        place = input_path(path)
        with contextlib.ExitStack() as opened:
            is_folder = place.is_dir()
            components = tuple(_open_components(place, is_folder, variant, opened))
            folder = place if is_folder and isinstance(place, Path) else None
            checkpoint = cls(place, components, folder=folder, variant=variant if is_folder else None)
            opened.pop_all()
        return checkpoint

    @property
    def shards(self) -> dict[str, TensorFile]:
        """Of the first component."""
        return self.components[0].shards

    @property
    def index(self) -> Index | None:
        """Of the first component."""
        return self.components[0].index

    @property
    def index_name(self) -> str:
        """Of the first component."""
        return self.components[0].index_name

    def check_unchanged(self) -> None:
        """Make sure that every file is as it was when it was opened. Raises as ``TensorFile.check_unchanged``."""
        for file in self.files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the files. Arrays from ``view`` stay valid."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_components(
    path: AnyPath, is_folder: bool, variant: str | None, opened: contextlib.ExitStack
) -> Iterator[Component]:
    if not is_folder:
        yield _open_component("", path, "", opened)
        return
    if is_pipeline(path):
        on_this_disk(path, "a pipeline's folder, whose components are copied along,")
    for name in component_folders(path) if is_pipeline(path) else ("",):
        folder = path / name
        try:
            found = find_weights(folder, variant, or_plain=name in OTHERS)
        except RefusedError as error:
            if name in OTHERS and error.code == "no-checkpoint":
                continue
            raise
        yield _open_component(name, found.path, found.variant, opened)


def _open_component(name: str, path: AnyPath, variant: str, opened: contextlib.ExitStack) -> Component:
    if not is_index_name(path.name):
        return Component(name, (opened.enter_context(TensorFile.open(path)),), variant)
    index, folder = read_index(path), path.parent
    shards = {shard: opened.enter_context(_open_shard(folder, shard)) for shard in shards_of(index.weight_map)}
    _check_indexed(index, path, shards)
    notes = (*_left_out_notes(index, shards), *_stray_notes(folder, shards))
    return Component(name, tuple(shards.values()), variant, shards, index, path.name, notes)


def _check_indexed(index: Index, path: AnyPath, shards: Mapping[str, TensorFile]) -> None:
    tensors = {name: file.tensors for name, file in shards.items()}
    for key, name in index.weight_map.items():
        if key not in tensors[name]:
            raise RefusedError(
                f"{printable(path)}: key '{printable(key)}' should be in {printable(name)}, which lacks it",
                code="shard-key-missing",
            )


def _left_out_notes(index: Index, shards: Mapping[str, TensorFile]) -> Iterator[str]:
    for name, file in shards.items():
        left_out = [key for key in file.tensors if index.weight_map.get(key) != name]
        if left_out:
            yield (
                f"{printable(file.path)}: {printable(left_out[0])} is not there by the index: left out "
                f"({len(left_out)} such)"
            )


def _open_shard(folder: AnyPath, name: str) -> TensorFile:
    path = folder / name
    if isinstance(folder, Path) and isinstance(path, Path):
        _check_stays_within(folder, path)
    try:
        return TensorFile.open(path)
    except FileNotFoundError:
        raise RefusedError(
            f"{printable(path)}: the index names this shard, and it is missing", code="shard-missing"
        ) from None


def _check_stays_within(folder: Path, path: Path) -> None:
    """Refuse a shard in a subfolder that is a link to elsewhere. The shard may be one: so are all of a hub's cache."""
    if path.parent == folder:
        return
    within, parent = Path(os.path.realpath(folder)), Path(os.path.realpath(path.parent))
    if not parent.is_relative_to(within):
        raise RefusedError(
            f"{printable(path)}: the index names this shard, and its folder is a link that leads out of "
            f"{printable(folder)}, to {printable(parent)}",
            code="shard-name",
        )


def _stray_notes(folder: AnyPath, shards: Container[str]) -> Iterator[str]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except PermissionError:
        if isinstance(folder, Path):
            raise
        return  # who may read objects need not be allowed to list them
    for name in names:
        if name.endswith(".safetensors") and not is_side_file(name) and name not in shards:
            yield f"{printable(folder / name)}: not a shard by the index: ignored"
