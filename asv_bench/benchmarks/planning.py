"""Opening and planning the whole LTX-2.5 inventory: 4349 tensors and 1660 pairs, headers only."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

_BYTES = {"BF16": 2, "F32": 4}


def _hollow(path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Path:
    """A file with these tensors in its header and no data behind it: a hole, which takes no disk."""
    header, end = {}, 0
    for key, dtype, shape in tensors:
        begin, end = end, end + math.prod(shape) * _BYTES[dtype]
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


class WholeModel:
    """The real headers, the real number of everything. There are only seconds to tell: nothing is moved or computed."""

    rounds = 1
    repeat = (3, 10, 2.0)
    number = 1

    def setup(self) -> None:
        self.opened = ()
        self.folder = tempfile.TemporaryDirectory()
        try:
            from ltx2c import Adapter, Checkpoint, RefusedError, inventory, plan_fuse
        except ImportError as error:
            raise NotImplementedError from error
        folder = Path(self.folder.name)
        base = _hollow(folder / "base.safetensors", inventory.base_tensors())
        adapter = _hollow(folder / "adapter.safetensors", inventory.adapter_tensors())
        self.open_base = lambda: Checkpoint.open(base)
        self.open_adapter = lambda: Adapter.open(adapter)
        self.plan = plan_fuse
        self.opened = self.open_base(), self.open_adapter()
        pair = [("blocks.0.to_q.lora_A.weight", "BF16", (1, 8)), ("blocks.0.to_q.lora_B.weight", "BF16", (8, 1))]
        stranger = _hollow(folder / "stranger.safetensors", pair)
        self.stranger, self.refused = Adapter.open(stranger), RefusedError
        self.opened += (self.stranger,)

    def teardown(self) -> None:
        for opened in self.opened:
            opened.close()
        self.folder.cleanup()

    def time_open_base(self) -> None:
        self.open_base().close()

    def time_open_adapter(self) -> None:
        self.open_adapter().close()

    def time_plan(self) -> None:
        base, adapter, _ = self.opened
        self.plan(base, [(adapter, 0.8)])

    def time_plan_of_what_fits_nothing(self) -> None:
        """Each of the base's names is a candidate for what was meant."""
        base, *_ = self.opened
        with contextlib.suppress(self.refused):
            self.plan(base, [(self.stranger, 0.8)])


class ManyTensors:
    """A header of a quarter of a million tensors."""

    rounds = 1
    repeat = (3, 5, 5.0)
    number = 1

    def setup(self) -> None:
        from ltx2c import Checkpoint

        self.folder = tempfile.TemporaryDirectory()
        names = (f"layers.{i // 4000}.mlp.experts.{i % 4000}.gate_proj.weight" for i in range(250_000))
        path = _hollow(Path(self.folder.name, "many.safetensors"), ((name, "BF16", (1, 2)) for name in names))
        self.open = lambda: Checkpoint.open(path)

    def teardown(self) -> None:
        self.folder.cleanup()

    def time_open(self) -> None:
        self.open().close()

    def peakmem_open(self) -> None:
        self.open().close()
