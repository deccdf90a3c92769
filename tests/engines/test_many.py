"""Several results from one reading of a base: the bytes of single fuses, each whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fp8_models import fp8_base
from fusing import adapter, save, small_model, values
from refusals import refused
from tensor_files import pair, write

import ltx2c
from ltx2c import cli
from ltx2c.engines import joint
from ltx2c.engines import many as engine
from ltx2c.engines.report import FuseReport
from ltx2c.errors import RefusedError
from ltx2c.files.reading import FileReader
from ltx2c.jobsfile import read_jobs

Given = dict[Path, list[tuple[Path, float]]]


def four(folder: Path, adapters: list[tuple[Path, float]]) -> Given:
    """Outputs that share adapters, at other strengths, in another order, and one that leaves weights alone."""
    folder.mkdir(exist_ok=True)
    (one, _), (other, _) = adapters
    given = [[(one, 0.8), (other, -0.3)], [(one, 1.0)], [(other, 0.25), (one, 0.5)], [(other, 1.0)]]
    return {folder / f"out{at}.safetensors": each for at, each in enumerate(given)}


def assert_as_single(base: Path, outputs: Given, **options: object) -> None:
    for out, adapters in outputs.items():
        single = out.parent / "single.safetensors"
        ltx2c.fuse_checkpoint(base, adapters, single, **options)
        assert out.read_bytes() == single.read_bytes()
        single.unlink()


@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
@pytest.mark.parametrize("block_bytes", [3000, 16 << 20])
def test_every_output_is_what_a_single_fuse_gives(
    arithmetic: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(engine, "_SMALLEST_BLOCK", 1)
    base, adapters, _ = small_model(tmp_path)
    outputs = four(tmp_path, adapters)
    done = ltx2c.fuse_many(base, outputs, arithmetic=arithmetic)
    assert list(done) == list(outputs) and all(isinstance(one, FuseReport) for one in done.values())
    assert_as_single(base, outputs, arithmetic=arithmetic)


@pytest.mark.parametrize("companion", [("weight_scale", 1), ("weight_scale", 300, 1), ("weight_scale_inv", 3, 2)])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
def test_stored_layouts(companion: tuple, first: bool, arithmetic: str, tmp_path: Path) -> None:
    base, [(lora, _)] = fp8_base(tmp_path, *companion, first=first)
    other = write(tmp_path / "other.safetensors", pair("a", 300, 3, 192, seed=9))
    outputs = four(tmp_path, [(lora, 1.0), (other, 1.0)])
    ltx2c.fuse_many(base, outputs, arithmetic=arithmetic)
    assert_as_single(base, outputs, arithmetic=arithmetic)


def test_sharded_outputs(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    outputs = {tmp_path / f"out{at}": adapters[: at + 1] for at in range(2)}
    ltx2c.fuse_many(base, outputs, max_shard_bytes=20_000)
    for out, given in outputs.items():
        ltx2c.fuse_checkpoint(base, given, tmp_path / "single", max_shard_bytes=20_000, force=True)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == {
            path.name: path.read_bytes() for path in (tmp_path / "single").iterdir()
        }


def test_base_and_factors_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapters, _ = small_model(tmp_path)
    read: Counter[str] = Counter()
    original = FileReader.read_into

    def counting(self: FileReader, buffer: object, offset: int) -> None:
        read[self.path.name] += len(memoryview(buffer).cast("B"))
        original(self, buffer, offset)

    monkeypatch.setattr(FileReader, "read_into", counting)
    ltx2c.fuse_many(base, four(tmp_path, adapters))
    for path in (base, *(path for path, _ in adapters)):
        header = 2 * path.stat().st_size - path.stat().st_size  # the head is read twice at most
        assert path.stat().st_size <= read[path.name] + 8 and read[path.name] < 1.6 * header, path


def test_products_are_made_once_under_f32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapters, _ = small_model(tmp_path)
    made: list[int] = []
    original = joint._product
    monkeypatch.setattr(joint, "_product", lambda *given: made.append(1) or original(*given))
    ltx2c.fuse_many(base, four(tmp_path, adapters), arithmetic="f32")
    assert len(made) == 6  # pairs of both adapters
    ltx2c.fuse_many(base, four(tmp_path / "more", adapters))
    assert len(made) == 6


def test_one_that_is_refused_or_fails_stops_no_other(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    huge = {key: np.full_like(value, 3e38) for key, value in adapter({"c": (300, 2, 128)}, 5).items()}
    strange = save(tmp_path / "strange.safetensors", adapter({"elsewhere": (300, 2, 128)}, 5))
    good = tmp_path / "good.safetensors"
    outputs = {
        tmp_path / "huge.out": [(save(tmp_path / "huge", huge), 1.0)],
        tmp_path / "strange.out": [(strange, 1.0)],
        good: adapters,
        tmp_path / "missing.out": [(tmp_path / "missing", 1.0)],
        tmp_path / "x" / ".." / "good.safetensors": adapters,
    }
    (tmp_path / "x").mkdir()
    before = set(tmp_path.iterdir())
    done = list(ltx2c.fuse_many(base, outputs).values())
    codes = [getattr(one, "code", type(one).__name__) for one in done]
    assert codes == ["nonfinite", codes[1], "FuseReport", "FileNotFoundError", "same-output-twice"]
    assert isinstance(done[1], RefusedError)
    assert set(tmp_path.iterdir()) == before | {good}
    assert_as_single(base, {good: adapters})


def test_an_adapter_that_changes_meanwhile_fails_its_own_outputs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters, _ = small_model(tmp_path)
    outputs = {tmp_path / f"out{at}": [one] for at, one in enumerate(adapters)}
    begin = engine._Maker.run

    def run(self: engine._Maker) -> None:
        with adapters[1][0].open("r+b") as file:
            file.truncate(adapters[1][0].stat().st_size - 500)
        begin(self)

    monkeypatch.setattr(engine._Maker, "run", run)
    one, other = ltx2c.fuse_many(base, outputs).values()
    assert isinstance(one, FuseReport)
    assert isinstance(other, RefusedError) and other.code == "file-changed"
    assert not (tmp_path / "out1").exists()


def test_a_bad_base_or_option_is_everybodys(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with refused("bad-arithmetic"):
        ltx2c.fuse_many(base, four(tmp_path, adapters), arithmetic="other")
    with pytest.raises(FileNotFoundError):
        ltx2c.fuse_many(tmp_path / "none", four(tmp_path, adapters))
    assert ltx2c.fuse_many(base, {}) == {}


def test_the_command_and_its_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, _ = small_model(tmp_path)
    jobs = tmp_path / "jobs.toml"
    good = '["a.out"]\nloras = [["lora0.safetensors", 0.8], "lora1.safetensors"]\n'
    good += '["b.out"]\nloras = [["lora1.safetensors"]]\n'
    jobs.write_text(good)
    assert cli.main(["fuse-many", str(base), str(jobs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["outputs"]
    assert [one["tensors_fused"] for one in told.values()] == [4, 3]
    pairs = [(adapters[0][0], 0.8), (adapters[1][0], 1.0)]
    assert_as_single(base, {tmp_path / "a.out": pairs, tmp_path / "b.out": pairs[1:]})
    assert cli.main(["fuse-many", str(base), str(jobs)]) == 2
    assert capsys.readouterr().err.count("it exists; --force replaces it") == 2
    jobs.write_text(good + '["c.out"]\nloras = ["gone.safetensors"]\n')
    assert cli.main(["fuse-many", str(base), str(jobs), "--force"]) == 3
    assert "gone.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "\xff",
        "out = 3",
        '["out"]',
        '["out"]\nloras = []',
        '["out"]\nloras = ["a"]\nlora = 3',
        '["out"]\nloras = [["a", "b"]]',
        '["out"]\nloras = [["a", true]]',
        '["out"]\nloras = [["a", 1.0, 2.0]]',
        '["out"]\nloras = [""]',
    ],
)
def test_what_is_no_file_of_jobs_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_bytes(text.encode("latin-1"))
    with refused("bad-jobs", "jobs.toml"):
        read_jobs(path)


def test_values_of_negative_zero_keep_their_sign(tmp_path: Path) -> None:
    """A shared product begins at -0.0: at +0.0 it would turn a weight of -0.0 and a delta of -0.0 into +0.0."""
    weight = np.full((4, 4), -0.0, np.float32)
    tiny = {
        "m.lora_A.weight": np.full((1, 4), 1e-38, np.float32),
        "m.lora_B.weight": np.full((4, 1), -1e-38, np.float32),
    }
    base, lora = write(tmp_path / "base", {"m.weight": weight}), write(tmp_path / "lora", tiny)
    outputs = {tmp_path / f"out{at}": [(lora, strength)] for at, strength in enumerate([1.0, -1.0])}
    ltx2c.fuse_many(base, outputs, arithmetic="f32")
    assert_as_single(base, outputs, arithmetic="f32")
    assert len({out.read_bytes()[-64:] for out in outputs}) == 2


def test_random_values(tmp_path: Path) -> None:
    base = save(tmp_path / "base", {f"{name}.weight": values(at, 64, 48) for at, name in enumerate("abc")})
    loras = [save(tmp_path / f"l{at}", adapter(dict.fromkeys("abc", (64, 4, 48)), 10 * at)) for at in range(3)]
    outputs = {tmp_path / f"out{at}": [(lora, 0.1 * at + 0.2) for lora in loras[: at + 1]] for at in range(3)}
    for arithmetic in ("ltx", "f32"):
        ltx2c.fuse_many(base, outputs, arithmetic=arithmetic, force=True, threads=1)
        assert_as_single(base, outputs, arithmetic=arithmetic)
