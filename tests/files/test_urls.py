"""Inputs in a storage: read in ranges, pinned to the version that was opened, the same bytes as from this disk."""

from __future__ import annotations

import builtins
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fusing import assert_same, load, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

import ltx2c
from ltx2c.cli import main
from ltx2c.crew import Crew
from ltx2c.errors import RefusedError
from ltx2c.files import Checkpoint, TensorFile
from ltx2c.files import chunks as chunks_module
from ltx2c.files.chunks import Chunks
from ltx2c.files.identity import ObjectIdentity, identity_from_json
from ltx2c.files.url import Url, as_url, is_url
from ltx2c.jobsfile import read_jobs

STORAGE = fsspec.filesystem("memory")


@pytest.fixture(autouse=True)
def _empty_storage() -> Iterator[None]:
    STORAGE.store.clear()
    STORAGE.pseudo_dirs[:] = [""]
    yield
    STORAGE.store.clear()


def put(source: Path, name: str) -> str:
    STORAGE.pipe_file(f"/{name}", source.read_bytes())
    return f"memory://{name}"


def put_model(folder: Path) -> tuple[str, list[tuple[str, float]], dict[str, np.ndarray]]:
    base, adapters, wanted = small_model(folder)
    urls = [(put(path, f"bucket/{path.name}"), strength) for path, strength in adapters]
    return put(base, f"bucket/{base.name}"), urls, wanted


# ---- The same bytes --------------------------------------------------------------------------------------------------


def test_a_fuse_of_urls_gives_the_bytes_of_a_fuse_of_files(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    url, urls, _ = put_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "files.safetensors")
    ltx2c.fuse_checkpoint(url, urls, tmp_path / "urls.safetensors")
    assert (tmp_path / "urls.safetensors").read_bytes() == (tmp_path / "files.safetensors").read_bytes()


def test_every_command_that_reads_takes_urls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, urls, wanted = put_model(tmp_path)
    loras = [word for path, strength in urls for word in ("--lora", path, str(strength))]
    out = tmp_path / "out.safetensors"
    assert main(["fuse", url, *loras, "-o", str(out)]) == 0
    assert_same(load(out), wanted)
    assert main(["verify", put(out, "bucket/fused.safetensors"), url, *loras]) == 0
    assert main(["inspect", urls[0][0], "--against", url, "--norms", "--quiet"]) == 0
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f'["many.safetensors"]\nloras = {json.dumps(urls)}\n')
    assert main(["fuse-many", url, str(jobs)]) == 0
    assert (tmp_path / "many.safetensors").read_bytes() == out.read_bytes()
    job = str(tmp_path / "JOB")
    assert main(["job", "create", job, url, *loras, "-o", str(tmp_path / "job.safetensors"), "--units", "3"]) == 0
    assert main(["job", "run", job]) == 0
    assert (tmp_path / "job.safetensors").read_bytes() == out.read_bytes()
    capsys.readouterr()
    assert main(["fuse", url, *loras, "-o", str(tmp_path / "x.safetensors"), "--dry-run", "--json"]) == 0
    assert [one["path"] for one in json.loads(capsys.readouterr().out)["adapters"]] == [path for path, _ in urls]


def test_shards_are_found_by_their_index_or_their_folder(tmp_path: Path) -> None:
    base, adapters, wanted = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "sharded", max_shard_bytes=3000)
    for path in (tmp_path / "sharded").iterdir():
        put(path, f"bucket/model/{path.name}")
    index = next((tmp_path / "sharded").glob("*.index.json")).name
    for url in ("memory://bucket/model", "memory://bucket/model/", f"memory://bucket/model/{index}"):
        with Checkpoint.open(url) as checkpoint:
            assert len(checkpoint.files) > 1
            assert {key: tensor.read().tobytes() for key, tensor in checkpoint.tensors.items()} == {
                key: value.tobytes() for key, value in wanted.items()
            }


def test_a_plan_of_urls_goes_through_json(tmp_path: Path) -> None:
    url, urls, wanted = put_model(tmp_path)
    plan = ltx2c.Plan.from_json(ltx2c.plan_fuse(url, urls).to_json())
    assert isinstance(plan.base.files[0], ObjectIdentity) and plan.base.files[0].path == url
    ltx2c.execute(plan, tmp_path / "out.safetensors")
    assert_same(load(tmp_path / "out.safetensors"), wanted)
    whole = (tmp_path / "out.safetensors").read_bytes()
    assert ltx2c.fused_bytes(plan, 100, 5000) == whole[100:5000]


# ---- The version that was opened -------------------------------------------------------------------------------------


def test_an_object_that_changed_since_the_plan_is_refused_by_name(tmp_path: Path) -> None:
    url, urls, _ = put_model(tmp_path)
    plan = ltx2c.plan_fuse(url, urls)
    content = STORAGE.cat_file(f"/bucket/{Path(urls[1][0]).name}")
    STORAGE.pipe_file(f"/bucket/{Path(urls[1][0]).name}", content)  # the same bytes, of another time
    with pytest.raises(RefusedError, match="changed since the plan was made: version was") as refusal:
        ltx2c.execute(plan, tmp_path / "out.safetensors")
    assert refusal.value.code == "file-changed" and urls[1][0] in str(refusal.value)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("what", ["replaced", "removed", "shortened"])
def test_an_object_that_changes_in_the_middle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    url, urls, _ = put_model(tmp_path)
    content = STORAGE.cat_file("/bucket/base.safetensors")
    read_block = TensorFile.read_block

    def changing(self: TensorFile, *given: Any) -> None:
        if what == "removed":
            STORAGE.store.pop("/bucket/base.safetensors", None)
        else:
            STORAGE.pipe_file("/bucket/base.safetensors", content if what == "replaced" else content[:-1])
        read_block(self, *given)

    monkeypatch.setattr(TensorFile, "read_block", changing)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_checkpoint(url, urls, tmp_path / "out.safetensors")
    assert refusal.value.code == "file-changed" and url in str(refusal.value)
    assert not (tmp_path / "out.safetensors").exists()


def test_one_object_under_two_strengths_is_one_adapter(tmp_path: Path) -> None:
    url, urls, _ = put_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.plan_fuse(url, [urls[0], (urls[0][0], 0.1)])
    assert refusal.value.code == "same-adapter-twice"


def test_a_damaged_identity_is_refused() -> None:
    with pytest.raises(RefusedError) as refusal:
        identity_from_json({"path": "s3://a/b", "size": "3", "version": "x", "header_sha256": ""})
    assert refusal.value.code == "identity-json"


# ---- Failures --------------------------------------------------------------------------------------------------------


def test_a_missing_object_is_a_failure_of_the_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, urls, _ = put_model(tmp_path)
    assert main(["fuse", "memory://bucket/none.safetensors", "--lora", urls[0][0], "-o", str(tmp_path / "x")]) == 3
    assert capsys.readouterr().err == "ltx2c: error: memory://bucket/none.safetensors: No such file or directory\n"


def test_a_connection_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, urls, wanted = put_model(tmp_path)
    cat_file, failures = type(STORAGE).cat_file, iter([True, False] * 1000)

    def failing(self: Any, *given: Any, **options: Any) -> bytes:
        if next(failures):
            raise ConnectionResetError("reset by peer")
        return cat_file(self, *given, **options)

    monkeypatch.setattr(type(STORAGE), "cat_file", failing)
    monkeypatch.setattr("ltx2c.files.objects._PAUSE", 0.0)
    ltx2c.fuse_checkpoint(url, urls, tmp_path / "out.safetensors")
    monkeypatch.undo()
    assert_same(load(tmp_path / "out.safetensors"), wanted)


def test_a_connection_that_goes_on_failing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, _ = put_model(tmp_path)

    def failing(self: Any, *given: Any, **options: Any) -> bytes:
        raise RuntimeError("no route")  # not every library raises what Python calls an OSError

    monkeypatch.setattr(type(STORAGE), "cat_file", failing)
    monkeypatch.setattr("ltx2c.files.objects._PAUSE", 0.0)
    with pytest.raises(OSError, match="RuntimeError: no route") as failure:
        Checkpoint.open(url)
    assert failure.value.filename == url


@pytest.mark.parametrize(
    ("url", "code"),
    [("nosuch://bucket/x", "bad-url"), ("s3://", "bad-url"), ("memory:///", "bad-url"), ("memory://a\nb", "bad-url")],
)
def test_what_is_no_url_of_a_storage_is_refused(url: str, code: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        Checkpoint.open(url)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("url", "package"), [("s3://b/x", "ltx2c[s3]"), ("gs://b/x", "ltx2c[gs]"), ("memory://b/x", "fsspec")]
)
def test_without_its_package_one_line_says_which(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any) -> Any:
        if name.partition(".")[0] == "fsspec":
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RefusedError) as refusal:
        Checkpoint.open(url)
    assert refusal.value.code == "no-storage"
    assert str(refusal.value) == f"{url}: {url[: url.index(':')]}:// needs a package: pip install '{package}'"


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    put_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        TensorFile.open("memory://bucket")
    assert refusal.value.code == "not-a-file"


def test_what_works_on_this_disk_alone_says_so(tmp_path: Path) -> None:
    url, urls, _ = put_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_checkpoint(url, urls, tmp_path / "out.safetensors", reuse=True)
    assert refusal.value.code == "not-by-url" and url in str(refusal.value)
    STORAGE.pipe_file("/bucket/pipeline/model_index.json", b"{}")
    with pytest.raises(RefusedError) as refusal:
        Checkpoint.open("memory://bucket/pipeline")
    assert refusal.value.code == "not-by-url"


# ---- Names -----------------------------------------------------------------------------------------------------------


def test_a_url_is_asked_as_a_path_is() -> None:
    url = as_url("s3://bucket/a/b.safetensors")
    assert (url.name, str(url.parent), str(url.parent / "c")) == ("b.safetensors", "s3://bucket/a", "s3://bucket/a/c")
    assert str(url.parent.parent.parent) == "s3://bucket"
    assert as_url("s3://bucket/a?versionId=7").name == "a"
    assert sorted([Url("s3://b/2"), Url("s3://b/1")])[0] == Url("s3://b/1") and len({url, Url(url.text)}) == 1


@pytest.mark.parametrize("text", ["hf://org/repo", "/a/b", "a://", "s3:/b/k", Path("s3://b/k"), "C:\\x", "x"])
def test_what_is_no_url(text: str) -> None:
    assert not is_url(text) or text == "a://"


def test_a_file_of_jobs_may_name_urls(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('["s3://bucket/out"]\nloras = ["s3://bucket/a", ["b", 0.5]]\n')
    assert read_jobs(jobs) == {"s3://bucket/out": [("s3://bucket/a", 1.0), (str(tmp_path / "b"), 0.5)]}


# ---- Chunks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 900), st.booleans())))
def test_chunks_give_any_range_in_any_order(size: int, reads: list[tuple[int, int, bool]]) -> None:
    content = np.random.default_rng(size).bytes(size)
    asked: list[tuple[int, int]] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return content[begin:end]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CHUNK_BYTES": 64, "IN_FLIGHT": 3, "KEPT": 5}.items():
            patch.setattr(chunks_module, name, value)
        chunks = Chunks()
        for start, length, ahead in reads:
            begin, end = min(start, size), min(start + length, size)
            buffer = bytearray(end - begin)
            chunks.read(fetch, size, begin, memoryview(buffer), ahead=ahead)
            assert bytes(buffer) == content[begin:end]
            assert len(chunks._kept) <= 5
        chunks.forget(fetch)
        assert not chunks._kept
        chunks._crew.cancel()
    assert all(begin % 64 == 0 and end == min(begin + 64, size) for begin, end in asked)


def test_several_chunks_are_under_way_at_once_and_each_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 10)
    monkeypatch.setattr(chunks_module, "IN_FLIGHT", 4)
    together = threading.Barrier(4, timeout=20)
    asked: list[int] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append(begin)
        together.wait()
        return bytes(end - begin)

    chunks = Chunks()
    chunks.read(fetch, 80, 0, memoryview(bytearray(80)), ahead=False)
    assert sorted(asked) == list(range(0, 80, 10))
    chunks._crew.cancel()


def test_who_waits_for_a_chunk_that_never_comes_can_be_cancelled() -> None:
    asked, never = threading.Event(), threading.Event()

    def fetch(begin: int, end: int) -> bytes:
        asked.set()
        never.wait(60)
        return b"abc"

    chunks, reading = Chunks(), Crew(1, "reading")
    waiting = reading.submit(chunks.read, fetch, 3, 0, memoryview(bytearray(3)), ahead=False)
    assert asked.wait(20)
    began = time.monotonic()
    reading.cancel()
    assert time.monotonic() - began < 20 and not never.is_set()
    with pytest.raises(CancelledError):
        waiting.result()
    never.set()
    chunks._crew.cancel()


def test_a_connection_that_times_out_is_no_reason_to_wait_on() -> None:
    def fetch(begin: int, end: int) -> bytes:
        raise TimeoutError("the server's")

    chunks = Chunks()
    with pytest.raises(TimeoutError, match="the server's"):
        chunks.read(fetch, 3, 0, memoryview(bytearray(3)), ahead=False)
    chunks._crew.cancel()


def test_what_failed_is_fetched_again() -> None:
    outcomes = iter([OSError("first"), b"abc"])

    def fetch(begin: int, end: int) -> bytes:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    chunks, buffer = Chunks(), bytearray(3)
    with pytest.raises(OSError, match="first"):
        chunks.read(fetch, 3, 0, memoryview(buffer), ahead=False)
    chunks.read(fetch, 3, 0, memoryview(buffer), ahead=False)
    assert buffer == b"abc"
    chunks._crew.cancel()
