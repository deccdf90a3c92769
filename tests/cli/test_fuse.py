"""``ltx2c fuse`` end to end: upstream's own result byte for byte, and every refusal with nothing touched."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tensor_files import pair, write

from ltx2c.cli import main

E2E = Path(__file__).parents[1] / "data" / "e2e"
ADAPTERS = [
    *("--lora", str(E2E / "adapter0.safetensors"), "0.5"),
    *("--lora", str(E2E / "adapter1.safetensors"), "0.8"),
    *("--lora", str(E2E / "adapter2.safetensors"), "-0.3"),
]


def header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        parsed: dict[str, Any] = json.loads(file.read(length))
    return parsed


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Key -> dtype, shape, bytes, in the file's order; read by this test's own few lines."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return {
        key: (entry["dtype"], entry["shape"], data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        for key, entry in header(path).items()
        if key != "__metadata__"
    }


def fuse_e2e(out: Path, *more: str) -> int:
    return main(["fuse", str(E2E / "base.safetensors"), *ADAPTERS, "-o", str(out), *more])


def test_three_adapters_give_upstreams_tensors(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"

    assert fuse_e2e(out, "--unmatched", "warn") == 0
    found, expected = tensors(out), tensors(E2E / "expected_a0_a1_a2.safetensors")
    assert found.keys() == expected.keys()
    assert [key for key in found if found[key] != expected[key]] == []
    assert list(found) == list(tensors(E2E / "base.safetensors"))


def test_one_adapter_gives_upstreams_tensors(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    command = ["fuse", str(E2E / "base.safetensors"), *ADAPTERS[:3], "-o", str(out)]

    assert main(command) == 0
    found, expected = tensors(out), tensors(E2E / "expected_a0.safetensors")
    assert [key for key in expected if found[key] != expected[key]] == []


def test_metadata_is_kept_and_says_what_was_fused(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert fuse_e2e(out, "--unmatched", "warn") == 0

    metadata = header(out)["__metadata__"]
    assert metadata.items() >= header(E2E / "base.safetensors")["__metadata__"].items()
    entry = json.loads(metadata["ltx2c"])
    assert entry["version"] == 1
    assert [adapter["strength"] for adapter in entry["adapters"]] == [0.5, 0.8, -0.3]


def test_the_same_inputs_give_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert fuse_e2e(tmp_path / name, "--unmatched", "warn") == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_pair_without_a_home_is_refused_unless_warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    assert fuse_e2e(out) == 2
    assert "not_there" in capsys.readouterr().err
    assert not out.exists()

    assert fuse_e2e(out, "--unmatched", "warn", "--json") == 0
    assert "not_there" in json.dumps(json.loads(capsys.readouterr().out)["unmatched"])


def test_the_summary_says_what_a_person_wants_to_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuse_e2e(tmp_path / "out.safetensors", "--unmatched", "warn") == 0
    text = capsys.readouterr().out

    for fact in (
        "out.safetensors",
        "88 tensors",
        "adapter1.safetensors at 0.8",
        "15 of 16 pairs",
        "not_there",
        "FLOP/s",
    ):
        assert fact in text


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuse_e2e(tmp_path / "out.safetensors", "--unmatched", "warn", "--dry-run", "--json") == 0
    facts = json.loads(capsys.readouterr().out)

    assert list(tmp_path.iterdir()) == []
    assert facts["tensors"] == 88
    assert 0 < facts["tensors_fused"] < 88
    assert facts["macs"] > 0 and facts["bytes_written"] > 0

    assert fuse_e2e(tmp_path / "out.safetensors", "--unmatched", "warn", "--dry-run") == 0
    assert "nothing was written" in capsys.readouterr().out
    assert fuse_e2e(tmp_path / "missing" / "out.safetensors", "--unmatched", "warn", "--dry-run") == 2


def test_a_dry_run_and_the_fuse_itself_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = []
    for more in (["--dry-run"], []):
        assert fuse_e2e(tmp_path / "out.safetensors", "--unmatched", "warn", "--sha256", "--json", *more) == 0
        facts.append(json.loads(capsys.readouterr().out))
    planned, done = facts
    assert done.keys() - planned.keys() == {"nonfinite", "seconds", "loss"}
    done["sha256"].pop(str(tmp_path / "out.safetensors"))
    assert planned == {key: done[key] for key in planned}
    assert len(planned["sha256"]) == 4


@pytest.mark.parametrize("wrong", range(4))
def test_a_dry_run_refuses_an_input_that_is_not_the_expected_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: int
) -> None:
    paths = [E2E / "base.safetensors", *(E2E / f"adapter{number}.safetensors" for number in range(3))]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    options = ["--unmatched", "warn", "--dry-run"]
    expected = [argument for digest in digests for argument in ("--expect-sha256", digest)]
    assert fuse_e2e(tmp_path / "out.safetensors", *options, *expected) == 0
    expected[2 * wrong + 1] = "0" * 64
    assert fuse_e2e(tmp_path / "out.safetensors", *options, *expected) == 2
    assert f"{paths[wrong].name}: its sha256 is {digests[wrong]}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_all_strengths_zero_gives_the_base(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    zero = ["--lora", str(E2E / "adapter0.safetensors"), "0", "--lora", str(E2E / "adapter2.safetensors"), "-0.0"]

    assert main(["fuse", str(E2E / "base.safetensors"), *zero, "-o", str(out)]) == 0
    assert tensors(out) == tensors(E2E / "base.safetensors")


def test_a_base_that_is_missing_is_an_io_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", str(tmp_path / "gone"), *ADAPTERS, "-o", str(tmp_path / "out")]) == 3
    assert "gone: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_leaves_no_result(tmp_path: Path, stop: signal.Signals) -> None:
    size = 4096
    base = write(tmp_path / "base.safetensors", {f"m.{i}.weight": ("BF16", [size, size]) for i in range(4)})
    lora = write(
        tmp_path / "lora.safetensors",
        {
            f"m.{i}.lora_{side}.weight": ("BF16", shape)
            for i in range(4)
            for side, shape in (("A", [2000, size]), ("B", [size, 2000]))
        },
    )
    out = tmp_path / "out" / "fused.safetensors"
    out.parent.mkdir()
    command = [sys.executable, "-m", "ltx2c", "fuse", str(base), "--lora", str(lora), "-o", str(out), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not any(part.stat().st_size for part in out.parent.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)

    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[stop]
    assert not out.exists()
    if stop != signal.SIGKILL:
        assert err.startswith("ltx2c: error: ") and err.count("\n") == 1
        assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(("size", "lost"), [(0.001, True), (0.5, False)])
def test_what_quantisation_leaves_is_reported(
    size: float, lost: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = np.random.default_rng(0).integers(40, 80, (600, 16)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    base = write(tmp_path / "base.safetensors", {"m.weight": codes})
    lora = write(tmp_path / "lora.safetensors", pair("m", 600, 1, 16))
    command = ["fuse", str(base), "--lora", str(lora), str(size / 0.0025), "-o", str(tmp_path / "out"), "--force"]
    assert main(command) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "codes changed" in line]
    assert "of 9,600 codes changed; the delta is " in line
    assert ("most of it is lost in rounding; fuse the bf16 base, then quantise" in line) is lost
    assert main([*command, "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert loss["codes"] == 9600 and loss["swallowed"] is lost and (loss["changed"] < 4800) is lost


def test_of_weights_that_are_not_in_codes_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuse_e2e(tmp_path / "out", "--unmatched", "warn", "--json") == 0
    assert json.loads(capsys.readouterr().out)["loss"] is None
