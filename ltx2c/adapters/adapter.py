"""An adapter file, opened from its header: its deltas and what its metadata says."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn

from ltx2c.adapters import keys
from ltx2c.adapters.config import CONFIG_NAME, PeftConfig, config_beside, packed_configs, read_config
from ltx2c.adapters.deltas import Delta
from ltx2c.adapters.formats import PEFT_PREFIX, PREFIXES, WHOLE_WEIGHT
from ltx2c.adapters.metadata import DOWNSCALE, TEMPORAL_SCALE, alpha_notes, scale_factor, stated_scaling
from ltx2c.adapters.module import Module, module_deltas
from ltx2c.adapters.scaling import AlphaMode, check_alpha_mode
from ltx2c.errors import RefusedError, printable
from ltx2c.files import Checkpoint
from ltx2c.files.descriptors import HoldsDescriptors
from ltx2c.files.url import AnyPath

# What a file must hold to be called an adapter, for a refusal.
_READ = "LoRA, LoCon, LoHa, LoKr, DoRA and full differences"


@dataclass(frozen=True, eq=False)
class Adapter(HoldsDescriptors):
    """Deltas for the modules of some base. Usable as a context manager, which closes the files.

    Attributes:
        checkpoint: the file, or folder of shards, that holds the tensors.
        deltas: module after module, in the order in which the file first names them. Never empty.
        keys: of each delta's module, all keys that the file holds for it.
        reference_downscale_factor: the adapter's spatial reference scale, 1 when it states none.
        reference_temporal_scale_factor: likewise in time.
        unread: keys of kinds that ltx2c does not read, in the file's order. None of them belongs to a delta's module.
        notes: what a user should be told though the adapter is usable.
    """

    checkpoint: Checkpoint
    deltas: tuple[Delta, ...] = field(repr=False)
    keys: Mapping[str, tuple[str, ...]] = field(repr=False)
    unread: tuple[str, ...] = field(repr=False)
    reference_downscale_factor: int
    reference_temporal_scale_factor: int
    notes: tuple[str, ...]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, alpha: AlphaMode = "stated") -> Adapter:
        """Open an adapter and find its deltas. Reads headers, ``.alpha`` values and PEFT's configuration, no factor.

        Args:
            path: a ``.safetensors`` file, a folder of shards or its index, or a folder as PEFT saves it.
            alpha: ``"ignore"`` takes strengths alone; ``"file"`` also an alpha that stands in other metadata than
                PEFT's, which otherwise is noted and does not count.

        Raises:
            RefusedError: not a safetensors file, no delta in it, a module with a missing or duplicate tensor or with
                one of a kind that is not read, a tensor of impossible shape or dtype, a kind that is not fused,
                malformed metadata or configuration.
            OSError: as the system raised it.
        """
        check_alpha_mode(alpha)
        checkpoint = Checkpoint.open(path)
        try:
            return cls._from(checkpoint, alpha)
        except BaseException:
            checkpoint.close()
            raise

    @classmethod
    def _from(cls, checkpoint: Checkpoint, alpha: AlphaMode) -> Adapter:
        path = checkpoint.path
        _refuse_kinds_not_fused(checkpoint)
        modules, unread = _modules(checkpoint)
        stated = functools.partial(stated_scaling, checkpoint.metadata, alpha)
        deltas = tuple(delta for module in modules.values() for delta in module_deltas(module, path, alpha, stated))
        return cls(
            checkpoint=checkpoint,
            deltas=deltas,
            keys={module.name: module.keys for module in modules.values()},
            unread=unread,
            reference_downscale_factor=scale_factor(checkpoint.files, DOWNSCALE),
            reference_temporal_scale_factor=scale_factor(checkpoint.files, TEMPORAL_SCALE),
            notes=(
                *checkpoint.notes,
                *alpha_notes(checkpoint.metadata, deltas, path, alpha),
                *_config_notes(checkpoint, modules),
            ),
        )

    @property
    def path(self) -> AnyPath:
        """The file or folder, as it was given."""
        return self.checkpoint.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """``__metadata__`` as stored."""
        return self.checkpoint.metadata

    @property
    def identity(self) -> frozenset[tuple[object, ...]]:
        """The place of each file: equal for one adapter reached by two names."""
        return frozenset(file.identity.place for file in self.checkpoint.files)

    def close(self) -> None:
        """Close the files. The deltas can no longer be read."""
        self.checkpoint.close()

    def __enter__(self) -> Adapter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_kinds_not_fused(checkpoint: Checkpoint) -> None:
    """Refuse what is recognised and not fused, by its name, however little of the file it is."""
    kinds: dict[str, list[str]] = {}
    for key in checkpoint.tensors:
        kind = keys.not_fused(key)
        if kind is not None:
            kinds.setdefault(kind, []).append(key)
    for kind, held in kinds.items():
        raise RefusedError(
            f"{printable(checkpoint.path)}: key {printable(held[0])} is {kind}, which ltx2c does not fuse "
            f"({len(held)} such keys); it fuses {_READ}",
            code="unsupported-delta",
        )


def _modules(checkpoint: Checkpoint) -> tuple[dict[str, Module], tuple[str, ...]]:
    """The file's modules, and its keys of other kinds."""
    configs = _configs(checkpoint)
    modules: dict[str, Module] = {}
    unread: list[str] = []
    for key, tensor in checkpoint.tensors.items():
        parsed = keys.parse(key)
        if parsed is None:
            unread.append(key)
            continue
        module = modules.get(parsed.module)
        if module is None:
            module = modules[parsed.module] = Module(parsed.module, parsed.underscored, _config_of(key, configs))
        if parsed.role in module.tensors:
            raise RefusedError(
                f"{printable(checkpoint.path)}: module {printable(parsed.module)} has two {parsed.role}: "
                f"{printable(module.tensors[parsed.role].key)} and {printable(key)}",
                code="duplicate-factor",
            )
        module.tensors[parsed.role] = tensor
    if not any(role != "alpha" for module in modules.values() for role in module.tensors):
        _refuse_no_delta(checkpoint.path, unread, len(checkpoint.tensors))
    partly = [key for key in unread if keys.belongs_to(key, modules)]
    if partly:
        _refuse_partly_read(checkpoint.path, partly)
    return modules, tuple(unread)


def _configs(checkpoint: Checkpoint) -> dict[str, PeftConfig]:
    """Component -> PEFT's configuration; of ``"*"`` for all."""
    beside = config_beside(checkpoint.path)
    if beside is not None:
        return {"*": read_config(beside)}
    return packed_configs(checkpoint.metadata, printable(checkpoint.path))


def _config_of(key: str, configs: Mapping[str, PeftConfig]) -> PeftConfig | None:
    component = next((prefix[:-1] for prefix in PREFIXES if key.startswith(prefix)), "")
    return configs.get("*") or configs.get(component) or configs.get("")


def _config_notes(checkpoint: Checkpoint, modules: Mapping[str, Module]) -> tuple[str, ...]:
    """A note on a file that PEFT saved and that has lost the configuration which holds its alpha."""
    lost = any(key.startswith(PEFT_PREFIX) for key in checkpoint.tensors) and not any(
        module.config for module in modules.values()
    )
    note = f"saved by PEFT, and no {CONFIG_NAME} beside it: whatever alpha it was trained with is not known"
    return (f"{printable(checkpoint.path)}: {note}",) if lost else ()


def _refuse_partly_read(path: AnyPath, partly: Sequence[str]) -> NoReturn:
    raise RefusedError(
        f"{printable(path)}: key {printable(partly[0])} is not understood ({len(partly)} such): it looks like "
        f"{keys.looks_like(partly[0])}, and leaving it out would change what its module's delta does; ltx2c fuses "
        f"{_READ}",
        code="unknown-adapter-key",
    )


def _refuse_no_delta(path: AnyPath, unread: Sequence[str], count: int) -> NoReturn:
    what = f"{printable(path)}: not an adapter: it holds no pair and no other delta"
    looks = {keys.looks_like(key): key for key in reversed(unread)}
    if WHOLE_WEIGHT in looks:
        key = printable(looks[WHOLE_WEIGHT])
        raise RefusedError(f"{what}, only whole weights such as {key}; are BASE and adapter swapped?", code="no-pair")
    seen = f"{printable(unread[0])} looks like {keys.looks_like(unread[0])}" if unread else f"{count} tensors"
    raise RefusedError(f"{what} ({seen}); ltx2c fuses {_READ}", code="no-pair")
