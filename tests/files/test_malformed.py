from __future__ import annotations

import os
import tracemalloc
import unicodedata
from contextlib import nullcontext
from pathlib import Path

import pytest
from malformed import CASES, GOOD
from rawfiles import entry, header_of, raw_file
from refusals import refused
from steps import steps

from ltx2c.errors import RefusedError
from ltx2c.files import TensorFile, scanner


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_file_is_refused_by_name_in_few_steps_and_little_memory(name: str, tmp_path: Path) -> None:
    code, content = CASES[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    tracemalloc.start()
    with pytest.raises(RefusedError) as caught:
        TensorFile.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == code
    message = str(caught.value)
    assert message.startswith(str(path)) and len(message) < len(str(path)) + 1000
    assert not any(unicodedata.category(character).startswith("C") for character in message)
    assert peak < len(content) + 200e6
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert steps(lambda: _refused(path)) < 5000


def _refused(path: Path) -> None:
    with pytest.raises(RefusedError):
        TensorFile.open(path)


def test_the_file_that_the_cases_break_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    path.write_bytes(GOOD)
    with TensorFile.open(path) as file:
        assert file.tensors["a"].read().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("git-lfs", "git lfs pull"),
        ("html", "HTML"),
        ("zip", ".pt"),
        ("pickle", "pickle"),
        ("gguf", "GGUF"),
        ("json", "JSON"),
    ],
)
def test_a_foreign_file_is_told_what_it_looks_like(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CASES[name][1])
    with pytest.raises(RefusedError, match=kind):
        TensorFile.open(path)


def test_a_hostile_name_is_never_printed_raw(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw_file(header_of(**{"\x1b[2J\nltx2c: all is well\u202e" + "x" * 5000: entry("F7")}), bytes(4)))
    with pytest.raises(RefusedError) as caught:
        TensorFile.open(path)
    message = str(caught.value)
    assert "\\x1b" in message and "\x1b" not in message and "\n" not in message and "\u202e" not in message
    assert len(message) < 1000


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_not_a_file_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(RefusedError) as caught:
        TensorFile.open(path)
    assert caught.value.code == "not-a-file"


def test_a_missing_file_is_the_systems_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        TensorFile.open(tmp_path / "none.safetensors")
    assert str(tmp_path) in str(caught.value.filename)


def test_a_header_of_too_many_keys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of millions of keys would cost many times the file's size."""
    path = tmp_path / "many.safetensors"
    monkeypatch.setattr(scanner, "MAX_KEYS", 1000)
    for count, last in ((1000, None), (1001, "too-many-keys")):
        path.write_bytes(raw_file(header_of(**{str(i): entry("U8", (0,), (0, 0)) for i in range(count)})))
        with refused(last) if last else nullcontext():
            TensorFile.open(path).close()


def test_of_very_many_names_for_one_place_two_are_made_printable(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    path.write_bytes(raw_file(header_of(**{f"layers.{i}.weight": entry() for i in range(200_000)}), bytes(4)))
    with refused("overlapping-tensors", "layers.0.weight", "layers.1.weight"):
        TensorFile.open(path)
    assert steps(lambda: _refused(path)) < 12 * 200_000
