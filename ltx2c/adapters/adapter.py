"""An adapter file, opened from its header: its deltas and what its metadata says."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ltx2c.adapters import keys
from ltx2c.adapters.deltas import LowRank
from ltx2c.adapters.deltas.lowrank import pair_from
from ltx2c.adapters.metadata import DOWNSCALE, TEMPORAL_SCALE, alpha_notes, scale_factor
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint, StoredTensor
from ltx2c.files.descriptors import HoldsDescriptors


@dataclass(frozen=True, eq=False)
class Adapter(HoldsDescriptors):
    """Low-rank deltas for the modules of some base. Usable as a context manager, which closes the files.

    Attributes:
        checkpoint: the file, or folder of shards, that holds the factors.
        deltas: one per module, in the order the file first names the module. Never empty.
        reference_downscale_factor: the adapter's spatial reference scale, 1 when it states none.
        reference_temporal_scale_factor: likewise in time.
        unread: keys of kinds that ltx2c does not read, in the file's order. None of them belongs to a pair's module.
        notes: what a user should be told though the adapter is usable.
    """

    checkpoint: Checkpoint
    deltas: tuple[LowRank, ...] = field(repr=False)
    unread: tuple[str, ...] = field(repr=False)
    reference_downscale_factor: int
    reference_temporal_scale_factor: int
    notes: tuple[str, ...]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Adapter:
        """Open an adapter and pair up its factors. Reads headers and ``.alpha`` values, no factor.

        Raises:
            RefusedError: not a safetensors file, no pair in it, a module with a missing or doubled side or with a
                tensor of a kind that is not read, a factor of impossible shape or dtype, malformed metadata.
            OSError: as the system raised it.
        """
        checkpoint = Checkpoint.open(path)
        try:
            return cls._from(checkpoint)
        except BaseException:
            checkpoint.close()
            raise

    @classmethod
    def _from(cls, checkpoint: Checkpoint) -> Adapter:
        path = checkpoint.path
        modules, unread = _by_module(checkpoint.tensors, path)
        pairs = tuple(pair_from(module, tensors, path) for module, tensors in modules.items())
        return cls(
            checkpoint=checkpoint,
            deltas=pairs,
            unread=unread,
            reference_downscale_factor=scale_factor(checkpoint.files, DOWNSCALE),
            reference_temporal_scale_factor=scale_factor(checkpoint.files, TEMPORAL_SCALE),
            notes=(*checkpoint.notes, *alpha_notes(checkpoint.metadata, pairs, path)),
        )

    @property
    def path(self) -> Path:
        """The file or folder, as it was given."""
        return self.checkpoint.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """``__metadata__`` as stored."""
        return self.checkpoint.metadata

    @property
    def identity(self) -> frozenset[tuple[int, int]]:
        """Device and inode of each file: equal for one adapter reached by two names."""
        return frozenset((file.identity.device, file.identity.inode) for file in self.checkpoint.files)

    def close(self) -> None:
        """Close the files. The deltas can no longer be read."""
        self.checkpoint.close()

    def __enter__(self) -> Adapter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _by_module(
    tensors: Mapping[str, StoredTensor], path: Path
) -> tuple[dict[str, dict[keys.Role, StoredTensor]], tuple[str, ...]]:
    """Module -> role -> tensor, and the keys of other kinds."""
    modules: dict[str, dict[keys.Role, StoredTensor]] = {}
    unread: list[str] = []
    for key, tensor in tensors.items():
        parsed = keys.parse(key)
        if parsed is None:
            unread.append(key)
            continue
        roles = modules.setdefault(parsed.module, {})
        if parsed.role in roles:
            raise RefusedError(
                f"{printable(path)}: module {printable(parsed.module)} has two {parsed.role}: "
                f"{printable(roles[parsed.role].key)} and {printable(key)}",
                code="doubled-factor",
            )
        roles[parsed.role] = tensor
    if not any("A" in roles or "B" in roles for roles in modules.values()):
        _refuse_no_pair(path, unread, len(tensors))
    _check_pairs_are_read_whole(path, unread, modules)
    return modules, tuple(unread)


def _check_pairs_are_read_whole(path: Path, unread: Sequence[str], modules: Container[str]) -> None:
    """Refuse a pair with a part that is not read, such as a DoRA magnitude: fused without it, it would be wrong."""
    partly = [key for key in unread if keys.belongs_to(key, modules)]
    if partly:
        raise RefusedError(
            f"{printable(path)}: key {printable(partly[0])} is not understood ({len(partly)} such): it looks like "
            f"{keys.looks_like(partly[0])}, and leaving it out would change what its module's pair does; ltx2c reads "
            f"{', '.join(keys.ROLES)}",
            code="unknown-adapter-key",
        )


def _refuse_no_pair(path: Path, unread: list[str], count: int) -> NoReturn:
    what = f"{printable(path)}: not an adapter: it holds no pair"
    looks = {keys.looks_like(key): key for key in reversed(unread)}
    if keys.WHOLE_WEIGHT in looks:
        key = printable(looks[keys.WHOLE_WEIGHT])
        raise RefusedError(f"{what}, only whole weights such as {key}; are BASE and adapter swapped?", code="no-pair")
    seen = f"{printable(unread[0])} looks like {keys.looks_like(unread[0])}" if unread else f"{count} tensors"
    raise RefusedError(f"{what} ({seen}); ltx2c reads {', '.join(keys.ROLES)}", code="no-pair")
