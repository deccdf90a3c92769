"""A checkpoint: the tensors of one safetensors file, or of a folder of shards with its index."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from ltx2c.files.tensorfile import StoredTensor, TensorFile


class Checkpoint:
    """A model's tensors by key, wherever they lie; also a context manager.

    Attributes:
        path: as given.
        files: the safetensors files in it.
        tensors: by key, file after file in each header's order.
        metadata: ``__metadata__`` of all files together; the first file that holds a name wins.
        notes: what a person should know of it and nobody refused, one line each.
    """

    def __init__(self, path: Path, files: tuple[TensorFile, ...], notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self.files = files
        self.notes = notes
        self.tensors: dict[str, StoredTensor] = {}
        self.metadata: dict[str, str] = {}
        for file in files:
            self.tensors.update(file.tensors)
            self.metadata = {**file.metadata, **self.metadata}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Open a ``.safetensors`` file from its header; no tensor byte is read.

        Raises:
            OSError: a file is missing or cannot be read.
            RefusedError: as ``TensorFile.open`` says.
        """
        path = Path(path)
        return cls(path, (TensorFile.open(path),))

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
