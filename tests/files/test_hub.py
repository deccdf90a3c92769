"""Hub names against a cache of links as huggingface_hub lays it out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from refusals import refused
from tensor_files import pair, write

from ltx2c import Recipe
from ltx2c.adapters import Adapter
from ltx2c.files import Checkpoint, hub

COMMIT = hashlib.sha1(b"one").hexdigest()
OLDER = hashlib.sha1(b"older").hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two snapshots of org/model, the newer one as main and as refs/pr/1; blobs behind links."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--model"
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs" / "refs" / "pr").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "refs" / "refs" / "pr" / "1").write_text(COMMIT)
    for commit in (COMMIT, OLDER):
        blob = folder / "blobs" / commit
        blob.write_text(commit)
        link = folder / "snapshots" / commit / "transformer" / "model.safetensors"
        link.parent.mkdir(parents=True)
        link.symlink_to(Path("../../../blobs") / commit)
    return folder / "snapshots"


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("hf://org/model", COMMIT),
        ("hf://org/model/", COMMIT),
        ("hf://org/model@main", COMMIT),
        (f"hf://org/model@{OLDER}", OLDER),
        ("hf://org/model@refs%2Fpr%2F1", COMMIT),
        ("hf://org/model/transformer", f"{COMMIT}/transformer"),
        ("hf://org/model/transformer/model.safetensors", f"{COMMIT}/transformer/model.safetensors"),
        (f"hf://org/model@{OLDER}/transformer/model.safetensors", f"{OLDER}/transformer/model.safetensors"),
    ],
)
def test_finds_what_the_cache_holds(cache: Path, given: str, there: str) -> None:
    assert hub.cached_path(given) == cache / there


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ("hf://org/other", "hf download org/other"),
        ("hf://org/model@v2", "hf download org/model --revision v2"),
        ("hf://org/model@" + "0" * 40, "hf download org/model --revision " + "0" * 40),
        ("hf://org/model/lora.safetensors", "hf download org/model lora.safetensors"),
        ("hf://org/model@v2/a/b.safetensors", "hf download org/model a/b.safetensors --revision v2"),
    ],
)
def test_a_miss_says_which_command_helps(cache: Path, given: str, command: str) -> None:
    with refused("not-in-cache", f": {command}"):
        hub.cached_path(given)


@pytest.mark.parametrize(
    "given",
    [
        "hf://",
        "hf://org",
        "hf://org/",
        "hf:///model",
        "hf://../model",
        "hf://org/..",
        "hf://org/model@",
        "hf://org/model@../main",
        "hf://org/model@..%2Fmain",
        "hf://org/model/../../x",
        "hf://org/model/a//b",
        "hf://org/model/a\0",
        "hf://org/mo del",
    ],
)
def test_what_is_no_hub_name_is_refused(cache: Path, given: str) -> None:
    with refused("hub-name"):
        hub.cached_path(given)


@pytest.mark.parametrize(
    ("environment", "there"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(environment: dict[str, str], there: str) -> None:
    assert hub.cache_folder(environment) == Path(there)


def test_a_ref_that_holds_no_commit_is_a_miss(cache: Path) -> None:
    (cache.parent / "refs" / "main").write_text("../../elsewhere")
    with refused("not-in-cache"):
        hub.cached_path("hf://org/model")


def test_what_a_path_has_lost_a_slash_of_is_still_a_hub_name(cache: Path) -> None:
    assert hub.is_hub_name(Path("hf://org/model")) and hub.cached_path(str(Path("hf://org/model"))) == cache / COMMIT


def test_bases_and_adapters_are_opened_by_hub_names(cache: Path) -> None:
    for opened in (Checkpoint, Adapter):
        with refused("not-in-cache", "hf download org/other"):
            opened.open("hf://org/other/x.safetensors")
    with refused("not-in-cache", "hf download org/other"):
        Recipe.named("one_stage", loras="hf://org/other")
    path = cache / COMMIT / "transformer" / "model.safetensors"
    path.unlink()
    write(path, pair("x", 4, 2, 4))
    with Checkpoint.open("hf://org/model/transformer/model.safetensors") as checkpoint:
        assert checkpoint.path == path
    with Adapter.open("hf://org/model/transformer") as adapter:
        assert adapter.deltas[0].module == "x"
    assert Recipe.named("one_stage", loras=("hf://org/model/transformer", 0.5)).paths == (path.parent,)
