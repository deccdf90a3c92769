"""Full sha256 digests of a fuse's inputs and outputs, and the refusal of an input that is not the expected one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files.digest import FileDigest
from ltx2c.files.url import AnyPath
from ltx2c.plan.opened import Sources

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class Digests:
    """Digests of one fuse. Adapters are read for it up front, the base's bytes as they pass.

    Attributes:
        by_path: hex digest of each file, as far as they are known.
    """

    def __init__(self, sources: Sources, expected: Sequence[str] = ()) -> None:
        """``expected``: digests of the base and then of each adapter in order, as far as given.

        Raises:
            RefusedError: ``bad-sha256`` (no sequence of digests), ``sha256-count`` (too many of them),
                ``sha256-of-shards`` (one for a checkpoint of several files).
        """
        inputs = sources.checkpoints
        _check_expected(inputs, expected)
        self.by_path: dict[AnyPath, str] = {}
        self._expected = {
            checkpoint.files[0]: digest.lower() for checkpoint, digest in zip(inputs, expected, strict=False)
        }
        self._adapters = inputs[1:]
        self._base = {file: FileDigest(file) for file in sources.base.files}

    def of_adapters(self) -> list[str]:
        """One digest per adapter, read now; of a sharded one, the digest of its shards' hex digests joined.

        Raises:
            OSError: as the system says.
            RefusedError: ``wrong-sha256``.
        """
        digests = []
        for adapter in self._adapters:
            parts = [self._known(file, FileDigest(file).finish()) for file in adapter.files]
            digests.append(parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest())
        return digests

    def take(self, known: Mapping[TensorFile, str]) -> None:
        """Take digests that are known of all inputs. Raises ``wrong-sha256`` as ``of_adapters`` does."""
        for file, digest in known.items():
            self._known(file, digest)

    def feed(self, file: TensorFile, offset: int, data: memoryview) -> None:
        """Take bytes of the base as they were read."""
        self._base[file].feed(offset, data)

    def finish_base(self) -> None:
        """All of the base has been fed. Raises as ``of_adapters`` does."""
        for file, digest in self._base.items():
            self._known(file, digest.finish())

    def report(self) -> dict[str, str]:
        """What is known so far, by path as text."""
        return {str(path): digest for path, digest in self.by_path.items()}

    def _known(self, file: TensorFile, digest: str) -> str:
        expected = self._expected.get(file, digest)
        if digest != expected:
            raise RefusedError(
                f"{printable(file.path)}: its sha256 is {digest}, expected {expected}", code="wrong-sha256"
            )
        self.by_path[file.path] = digest
        return digest


def _check_expected(inputs: Sequence[Checkpoint], expected: Sequence[str]) -> None:
    if isinstance(expected, str):
        raise RefusedError(
            f"expected digests are a sequence of them, not one string, '{printable(expected)}'", code="bad-sha256"
        )
    if len(expected) > len(inputs):
        raise RefusedError(f"{len(expected)} sha256 digests for {len(inputs)} inputs", code="sha256-count")
    for checkpoint, digest in zip(inputs, expected, strict=False):
        if not _SHA256.fullmatch(digest):
            raise RefusedError(f"'{printable(digest)}' is no sha256 digest of 64 hex digits", code="bad-sha256")
        if len(checkpoint.files) > 1:
            raise RefusedError(
                f"{printable(checkpoint.path)}: a sha256 is of one file, not of shards", code="sha256-of-shards"
            )
