"""A checkpoint: the tensors of one safetensors file, or of a folder of shards with its index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path
from types import TracebackType

from ltx2c.errors import RefusedError, printable
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.index import Index, find_index, is_index_name, is_side_file, read_index, shards_of
from ltx2c.files.paths import input_path
from ltx2c.files.tensorfile import StoredTensor, TensorFile


class Checkpoint(HoldsDescriptors):
    """A model's tensors by key, wherever they lie; also a context manager. Cannot be pickled or copied.

    Attributes:
        path: as given.
        files: the safetensors files in it, sorted by name.
        shards: the same by the path that the index gives them, such as ``part/a.safetensors``; empty for a single file.
        index: of a folder of shards; None for a single file.
        index_name: the index's file name, or "".
        tensors: by key, file after file in each header's order.
        metadata: ``__metadata__`` of all files together; the first file that holds a name wins.
        notes: what a person should know of it and nobody refused, one line each.
    """

    def __init__(self, path: Path, files: tuple[TensorFile, ...]) -> None:
        self.path = path
        self.files = files
        self.shards: dict[str, TensorFile] = {}
        self.index: Index | None = None
        self.index_name = ""
        self.notes: tuple[str, ...] = ()
        self.tensors: dict[str, StoredTensor] = {}
        self.metadata: dict[str, str] = {}
        for file in files:
            self.tensors.update(file.tensors)
            self.metadata = {**file.metadata, **self.metadata}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Open a ``.safetensors`` file, a folder of shards, or its index, from the headers; no tensor byte is read.

        Of a folder's shards the index decides which count, and where each key lies. A key that also stands in a shard
        that the index does not give for it, and shards that it does not name, are left out and listed in ``notes``.

        Raises:
            OSError: a file is missing or cannot be read.
            RefusedError: ``bad-path``, ``hub-name``, ``not-in-cache``, ``no-checkpoint``, ``no-index``,
                ``several-indexes``, ``shard-missing``,
                ``shard-key-missing``, or as ``TensorFile.open`` and ``read_index`` say.
        """
        path = input_path(path)
        if path.is_dir():
            index = find_index(path)
            return cls._open_shards(path, index) if index else cls(path, (TensorFile.open(_only_file(path)),))
        if is_index_name(path.name):
            return cls._open_shards(path, path)
        return cls(path, (TensorFile.open(path),))

    @classmethod
    def _open_shards(cls, path: Path, index_path: Path) -> Checkpoint:
        index = read_index(index_path)
        folder = index_path.parent
        with contextlib.ExitStack() as opened:
            shards = {name: opened.enter_context(_open_shard(folder, name)) for name in shards_of(index.weight_map)}
            checkpoint = cls(path, tuple(shards.values()))
            checkpoint.shards = shards
            checkpoint.index, checkpoint.index_name = index, index_path.name
            checkpoint._keep_only_indexed(index, index_path)
            checkpoint.notes += _stray_notes(folder, shards)
            opened.pop_all()
        return checkpoint

    def _keep_only_indexed(self, index: Index, index_path: Path) -> None:
        tensors = {name: file.tensors for name, file in self.shards.items()}
        for key, name in index.weight_map.items():
            if key not in tensors[name]:
                raise RefusedError(
                    f"{printable(index_path)}: key '{printable(key)}' should be in {printable(name)}, which lacks it",
                    code="shard-key-missing",
                )
        notes = []
        self.tensors = {}
        for name, file in self.shards.items():
            left_out = [key for key in file.tensors if index.weight_map.get(key) != name]
            if left_out:
                notes.append(
                    f"{printable(file.path)}: {printable(left_out[0])} is not there by the index: left out "
                    f"({len(left_out)} such)"
                )
            self.tensors |= (
                file.tensors
                if not left_out
                else {key: tensor for key, tensor in file.tensors.items() if index.weight_map.get(key) == name}
            )
        self.notes = tuple(notes)

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


def _open_shard(folder: Path, name: str) -> TensorFile:
    path = folder / name
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


def _files_in(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.name.endswith(".safetensors") and not is_side_file(path.name)
    )


def _only_file(folder: Path) -> Path:
    files = _files_in(folder)
    if not files:
        raise RefusedError(f"{printable(folder)}: holds no .safetensors file", code="no-checkpoint")
    if len(files) > 1:
        names = ", ".join(printable(path.name) for path in files[:3])
        raise RefusedError(
            f"{printable(folder)}: holds {len(files)} .safetensors files ({names} ...) and no index that joins them",
            code="no-index",
        )
    return files[0]


def _stray_notes(folder: Path, shards: Container[str]) -> tuple[str, ...]:
    strays = [path for path in _files_in(folder) if path.name not in shards]
    return tuple(f"{printable(path)}: not a shard by the index: ignored" for path in strays)
