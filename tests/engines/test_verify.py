from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fusing import adapter, load, save, small_model, values
from refusals import refused

import ltx2c
from ltx2c import cli
from ltx2c.engines import comparison as engine
from ltx2c.engines.compare import Compared, compare

C = "model.diffusion_model.c.weight"


@pytest.fixture
def model(tmp_path: Path):
    base, adapters, wanted = small_model(tmp_path)
    return base, adapters, wanted, tmp_path / "fused"


@pytest.mark.parametrize("block_bytes", [1, 500, 16 << 20])
def test_the_references_own_result_is_equal(block_bytes: int, model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", block_bytes)
    base, adapters, wanted, fused = model
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters)
    assert report.equal and report.differences == () and report.likely == ""
    assert report.bytes_compared == sum(value.nbytes for value in wanted.values())


def test_keys_in_another_order_are_equal(model) -> None:
    base, adapters, wanted, fused = model
    assert ltx2c.verify_checkpoint(save(fused, dict(reversed(wanted.items()))), base, adapters).equal


def step(array: np.ndarray, *index: int, by: int = 1) -> None:
    array.view(f"u{array.dtype.itemsize}")[index] += by


def test_one_element_off_by_one_step_looks_like_rounding(model) -> None:
    base, adapters, wanted, fused = model
    step(wanted[C], 299, 127)
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters)
    (difference,) = report.differences
    assert (difference.key, difference.elements, difference.differing, difference.one_step) == (C, 300 * 128, 1, 1)
    assert not report.equal and "rounding" in report.likely


def test_one_element_off_by_much_does_not(model) -> None:
    base, adapters, wanted, fused = model
    step(wanted[C], 5, 5, by=40)
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters)
    assert report.differences[0].one_step == 0 and "damaged" in report.likely


def test_a_flipped_sign_looks_like_damage(model) -> None:
    base, adapters, wanted, fused = model
    wanted[C].view(np.uint16)[7, 7] ^= 0x8000
    assert "damaged" in ltx2c.verify_checkpoint(save(fused, wanted), base, adapters).likely


def test_another_strength_looks_like_one(model) -> None:
    base, adapters, wanted, fused = model
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, [(adapters[0][0], 0.81), adapters[1]])
    assert {difference.key for difference in report.differences} == {
        f"model.diffusion_model.{name}.weight" for name in "abc"
    }
    assert "strength" in report.likely


def test_the_order_of_adapters_counts(model) -> None:
    base, adapters, wanted, fused = model
    assert not ltx2c.verify_checkpoint(save(fused, wanted), base, adapters[::-1]).equal


def test_an_untouched_tensor_that_differs_looks_like_another_base(model) -> None:
    base, adapters, wanted, fused = model
    step(wanted["bias"], 17)
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters)
    assert [difference.key for difference in report.differences] == ["bias"] and "another base" in report.likely


@pytest.mark.parametrize("adapters_known", [0, 1])
def test_adapters_that_touch_more_weights_are_a_possible_cause(adapters_known: int, model) -> None:
    base, adapters, wanted, fused = model
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters[:adapters_known])
    assert report.likely.endswith("made from another base, or with adapters that touch more weights")


def test_another_structure_is_not_called_another_base(model) -> None:
    base, adapters, wanted, fused = model
    wanted["scalar2"] = wanted.pop("scalar")
    assert ltx2c.verify_checkpoint(save(fused, wanted), base, adapters).likely == "keys, dtypes or shapes differ"


def test_what_was_left_out_is_listed_with_all_notes(model, capsys: pytest.CaptureFixture[str]) -> None:
    base, _, _, fused = model
    path, _ = first = (base.parent / "strange.safetensors", 0.5)
    save(path, adapter({"c": (300, 2, 128), "nowhere": (4, 2, 4)}, 7))
    ltx2c.fuse_checkpoint(base, [first], fused, unmatched="warn", max_shard_bytes=20_000)
    save(fused / "stray.safetensors", {"stray": values(1, 3)})

    report = ltx2c.verify_checkpoint(fused, base, [first], unmatched="warn")
    assert report.equal and report.unmatched == tuple(f"diffusion_model.nowhere.lora_{side}.weight" for side in "AB")
    assert any("stray.safetensors" in note for note in report.notes)
    assert cli.main(["verify", str(fused), str(base), "--lora", str(path), "0.5", "--unmatched", "warn"]) == 0
    shown = capsys.readouterr().out
    assert "left out, no target in the base: diffusion_model.nowhere.lora_A.weight" in shown
    assert "  note: " in shown and "stray.safetensors" in shown


def test_keys_dtypes_and_shapes_that_differ_are_named(model) -> None:
    base, adapters, wanted, fused = model
    del wanted["scalar"]
    wanted["bias"] = wanted["bias"].reshape(50, 100)
    wanted["more"] = wanted["empty"]
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters)
    assert not report.equal and report.differences == ()
    assert report.structure == (
        "scalar is missing",
        "bias is BF16 [50, 100], in the base BF16 [5000]",
        "more is not in the base",
    )


def test_a_sample_reads_a_share_of_every_tensor_and_finds_what_is_in_it(model) -> None:
    base, adapters, wanted, fused = model
    save(fused, wanted)
    report = ltx2c.verify_checkpoint(fused, base, adapters, sample=0.2)
    total = sum(value.nbytes for value in wanted.values())
    assert report.equal and 0.15 * total < report.bytes_compared < 0.35 * total
    wanted[C][:] = 9
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters, sample=0.2)
    (difference,) = report.differences
    assert difference.differing == difference.elements == 64 * 128


@pytest.mark.parametrize("sample", [0, -1, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(sample: float, model) -> None:
    base, adapters, _, _ = model
    with refused("bad-sample"):
        ltx2c.verify_checkpoint(base, base, adapters, sample=sample)


def test_progress_ends_complete(model) -> None:
    base, adapters, wanted, fused = model
    seen: list[tuple[int, ...]] = []
    report = ltx2c.verify_checkpoint(save(fused, wanted), base, adapters, progress=seen.append)
    assert seen[-1] == (report.bytes_compared, report.bytes_compared, report.macs, report.macs)


def test_a_sharded_result_is_compared_with_a_single_base(model) -> None:
    base, adapters, _, fused = model
    ltx2c.fuse_checkpoint(base, adapters, fused, max_shard_bytes=20_000)
    assert ltx2c.verify_checkpoint(fused, base, adapters).equal


def test_the_command_says_what_differs_and_exits_1(model, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, wanted, fused = model
    loras = [word for path, strength in adapters for word in ("--lora", str(path), str(strength))]
    save(fused, wanted)
    assert cli.main(["verify", str(fused), str(base), *loras]) == 0
    assert "equal byte for byte" in capsys.readouterr().out
    step(wanted[C], 0, 0)
    save(fused, wanted)
    assert cli.main(["verify", str(fused), str(base), *loras]) == 1
    shown = capsys.readouterr().out
    assert f"{C}: 1 of 38,400 elements differ, 1 of them by one step" in shown and "rounding" in shown


@pytest.mark.parametrize(
    ("ours", "theirs", "one_step"),
    [(1.0, 1.0078125, 1), (1.0, 0.99609375, 1), (0.0, -0.0, 1), (1.0, 1.015625, 0), (1.0, -1.0, 0), (3e38, np.inf, 0)],
)
def test_a_step_is_one_bfloat16_value(ours: float, theirs: float, one_step: int) -> None:
    from fusing import BF16

    one, other = (np.array([value], np.float32).astype(BF16).tobytes() for value in (ours, theirs))
    assert compare(memoryview(one), memoryview(other), "BF16") == Compared(1, 1, one_step)


@pytest.mark.parametrize("block_bytes", [1, 7, 1000])
def test_a_difference_in_a_tensor_of_odd_length_is_counted_in_elements(
    block_bytes: int, model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", block_bytes)
    base, adapters, wanted, fused = model
    odd = {"odd": values(9, 4999)}
    save(base, {**load(base), **odd})
    step(odd["odd"], 2500)
    report = ltx2c.verify_checkpoint(save(fused, {**wanted, **odd}), base, adapters)
    (difference,) = report.differences
    assert (difference.key, difference.elements, difference.differing, difference.one_step) == ("odd", 4999, 1, 1)


def test_bytes_that_are_not_whole_elements_are_compared_as_bytes() -> None:
    assert compare(memoryview(b"abc"), memoryview(b"abd"), "BF16") == Compared(3, 1, 0)
