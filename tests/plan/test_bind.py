"""Which tensors are worth a second copy, and what a bind makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tensor_files import pair, write

from ltx2c import Adapter, Checkpoint, plan_fuse
from ltx2c.plan import Fusions
from ltx2c.plan.bind import choose_double_buffered, plan_bind

MB = 1 << 20
# Of equal size, 1 MiB each; ranks say which is dearest: b, then c, then a. d is fused alike in both phases.
RANKS = {"a": 1, "b": 4, "c": 2}
NBYTES = MB


@pytest.fixture
def model(tmp_path: Path) -> Iterator[tuple[Checkpoint, list[Fusions]]]:
    base = write(tmp_path / "base.safetensors", {f"{name}.weight": ("BF16", [512, 1024]) for name in "abcde"})
    some = {key: value for name, rank in RANKS.items() for key, value in pair(name, 512, rank, 1024).items()}
    with ExitStack() as files:
        checkpoint = files.enter_context(Checkpoint.open(base))
        always = files.enter_context(Adapter.open(write(tmp_path / "d.safetensors", pair("d", 512, 9, 1024))))
        second = files.enter_context(Adapter.open(write(tmp_path / "some.safetensors", some)))
        yield (
            checkpoint,
            [plan_fuse(checkpoint, [(always, 1)]).fusions, plan_fuse(checkpoint, [(always, 1), (second, 1)]).fusions],
        )


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [(0, ""), (2 * MB - 1, ""), (2 * MB, "b"), (4 * MB - 1, "b"), (4 * MB, "abc"), (1 << 40, "abc")],
)
def test_the_dearest_that_differ_are_chosen_first(
    model: tuple[Checkpoint, list[Fusions]], budget: int, chosen: str
) -> None:
    """Room is counted in huge pages of 2 MiB, and every tensor takes a little more than its bytes."""
    double_buffered = choose_double_buffered(*model, {}, budget, lambda key: NBYTES)
    assert double_buffered == tuple(f"{name}.weight" for name in chosen)


def test_a_bind_writes_what_the_spare_copy_lacks_and_switches(model: tuple[Checkpoint, list[Fusions]]) -> None:
    base, (first, second) = model
    double_buffered = ("b.weight", "c.weight")
    bind = plan_bind(base, first, dict.fromkeys(double_buffered), second, {})
    assert tuple(bind.spare.fuse) == double_buffered and tuple(bind.in_place.fuse) == ("a.weight",)
    assert bind.switch == double_buffered and (bind.fused, bind.restored, bind.switched) == (3, 0, 0)
    back = plan_bind(base, second, {key: first.get(key, ()) for key in double_buffered}, first, {})
    assert (back.fused, back.restored, back.switched) == (0, 1, 2)
    assert back.cost.bytes_read == NBYTES and back.cost.macs == 0


def test_a_bind_to_what_is_there_does_nothing(model: tuple[Checkpoint, list[Fusions]]) -> None:
    base, (first, second) = model
    bind = plan_bind(base, first, {"b.weight": second["b.weight"]}, first, {})
    assert (bind.fused, bind.restored, bind.switch, bind.cost.macs) == (0, 0, (), 0)


def test_torn_tensors_are_done_again(model: tuple[Checkpoint, list[Fusions]]) -> None:
    base, (first, _) = model
    bind = plan_bind(base, {**first, "d.weight": None, "e.weight": None}, {}, first, {})
    assert tuple(bind.in_place.fuse) == ("d.weight",) and bind.in_place.restore == ("e.weight",)
    assert bind.in_place.keep == ("a.weight", "b.weight", "c.weight")
