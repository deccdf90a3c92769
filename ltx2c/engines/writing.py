"""The output side of one result: its files, filled front to back with blocks that are fused already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from ltx2c.engines.blocks import Block
from ltx2c.engines.digests import Digests
from ltx2c.engines.fuser import Fused
from ltx2c.engines.late import Late
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.files.layout import FileLayout, OutputLayout
from ltx2c.files.places import AnyEmpty, AnyOutput, AnyStaged, copy_along, open_output, write_small
from ltx2c.files.url import AnyPath
from ltx2c.layouts import StoredWeight

if TYPE_CHECKING:
    from hashlib import _Hash


class ResultWriter:
    """Writes the files of one result, one after the other. A context manager: it closes them.

    Attributes:
        nonfinite: what the weights came to.
    """

    def __init__(
        self,
        layout: OutputLayout,
        weights: Iterable[StoredWeight],
        nonfinite: Nonfinite,
        digests: Digests | None = None,
    ) -> None:
        """``weights``: those that are fused. ``digests`` takes the files'."""
        self.nonfinite = nonfinite
        self._digests = digests
        self._late = Late(layout, weights, self._patch)
        self._open: dict[str, _Output] = {}

    def begin(self, layout: FileLayout, file: AnyEmpty, buffer: memoryview) -> None:
        """Open a file of the result and write its header, by way of ``buffer``."""
        digest = hashlib.sha256() if self._digests else None
        output = open_output(file, layout.size, digest, lambda begin, end: self._late.owes(layout.name, begin, end))
        self._open[layout.name] = _Output(layout, output, file.path, digest)
        output.append_copy(layout.header, buffer)

    def append(self, layout: FileLayout, block: Block, buffer: memoryview, fused: Fused) -> None:
        """Append a block, which lies in ``buffer`` from ``block.lead`` on, to the file that was begun last.

        Raises:
            OSError: as the system says.
            RefusedError: ``nonfinite``.
        """
        self.nonfinite.add(fused)
        self.nonfinite.refuse(going_on=block.pieces[-1].tensor.key)
        for piece in block.pieces:
            if piece.weight is not None and piece.weight.is_complete_with(piece.fused_bytes):
                self._late.put(piece.weight)
        self._late.fill(layout, block.begin, buffer[block.lead : block.lead + block.nbytes])
        self._open[layout.name].output.append(buffer, block.nbytes)

    def end(self) -> list[str]:
        """Of the file that was begun last, all has been appended.

        Returns:
            The names of the files that are finished with it: those to which no companion is owed any more.

        Raises as ``append`` does.
        """
        self.nonfinite.refuse()
        finished = [name for name, one in self._open.items() if self._late.is_settled(one.layout)]
        for name in finished:
            self._finish(self._open.pop(name))
        return finished

    def _finish(self, one: _Output) -> None:
        again = hashlib.sha256() if one.digest is not None and one.output.patched else None
        one.output.finish(again)
        if self._digests is not None and one.digest is not None:
            self._digests.by_path[one.path] = (again or one.digest).hexdigest()

    def _patch(self, name: str, offset: int, data: memoryview) -> None:
        self._open[name].output.patch(offset, data)

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._open.values():
            one.output.close()


def write_beside(layout: OutputLayout, staged: AnyStaged) -> None:
    """Write what stands beside the weights of a result: indexes, and copies of what stood beside the base's.

    Raises:
        OSError: as the system says.
        RefusedError: as ``copy_sibling`` says.
    """
    for name, content in layout.texts.items():
        write_small(staged.file(name), content)
    for sibling in layout.siblings:
        copy_along(sibling, staged.file(sibling.name))
        staged.complete(sibling.name)


class _Output(NamedTuple):
    """A file that is being written; ``path`` is where it will be."""

    layout: FileLayout
    output: AnyOutput
    path: AnyPath
    digest: _Hash | None
