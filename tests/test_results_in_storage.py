"""Results by URL: uploaded in parts, completed in one step, or aborted and nothing there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket_storage import BucketStorage, refused
from fp8_models import fp8_base
from fusing import small_model

import ltx2c
from ltx2c.api import outline_fuse
from ltx2c.cli import main
from ltx2c.errors import RefusedError
from ltx2c.files import uploads
from ltx2c.files.object_staging import abandon_uploads

OUT = "bucket://models/fused.safetensors"


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    BucketStorage.clear()
    BucketStorage.smallest_part = 4096
    monkeypatch.setattr(uploads, "PART_BYTES", 4096)
    monkeypatch.setattr("ltx2c.files.bucket._PAUSE", 0.0)
    yield
    assert BucketStorage.uploads == {}, "an upload was left"
    BucketStorage.clear()


def fails(method: str, error: BaseException, times: int = 1, *, after: bool = False) -> None:
    """Let calls of ``method`` fail so often, before or after they are done."""
    left = [error] * times

    def fault(called: str, given: dict[str, Any]) -> None:
        if called == method and left:
            raise left.pop()

    (BucketStorage.afterwards if after else BucketStorage.faults).append(fault)


def on_disk(base: Any, adapters: Any, folder: Path, **options: Any) -> bytes:
    ltx2c.fuse_checkpoint(base, adapters, folder / "on-disk.safetensors", **options)
    return (folder / "on-disk.safetensors").read_bytes()


# ---- The same bytes --------------------------------------------------------------------------------------------------


def test_a_result_in_a_storage_has_the_bytes_of_one_on_disk(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    report = ltx2c.fuse_checkpoint(base, adapters, OUT, sha256=True)
    whole = on_disk(base, adapters, tmp_path, sha256=True)
    assert BucketStorage.content(OUT) == whole
    assert BucketStorage.calls.count("upload_part") == -(-len(whole) // 4096) > 20
    assert str(report.out) == OUT and json.loads(json.dumps(report.as_json()))["out"] == OUT
    assert (
        report.sha256[OUT]
        == ltx2c.fuse_checkpoint(base, adapters, tmp_path / "x", sha256=True).sha256[str(tmp_path / "x")]
    )


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("companion", "shape"), [("weight_scale", ()), ("weight_scale", (300, 1))])
def test_scales_that_are_known_late_are_in_their_parts(
    tmp_path: Path, companion: str, shape: tuple[int, ...], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters = fp8_base(tmp_path, companion, *shape, first=first)
    monkeypatch.setattr("ltx2c.engines.file.BLOCK_BYTES", 8192)
    sent: list[int] = []
    BucketStorage.faults.append(lambda called, given: sent.append(given.get("PartNumber", 0)))
    ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert BucketStorage.content(OUT) == on_disk(base, adapters, tmp_path)
    numbers = [number for number in sent if number]
    assert (sorted(numbers) != numbers) == first  # held back, and only then


def test_many_results_from_one_reading_go_to_a_storage(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    outs = {"bucket://models/a": adapters, "bucket://models/b": adapters[:1], str(tmp_path / "c"): adapters[1:]}
    BucketStorage().pipe_file("/models/taken", b"theirs")
    done = ltx2c.fuse_many(base, {**outs, "bucket://models/taken": adapters})
    for out, given in outs.items():
        whole = on_disk(base, given, tmp_path, force=True)
        assert (BucketStorage.content(out) if out.startswith("bucket") else Path(out).read_bytes()) == whole
    assert isinstance(done["bucket://models/taken"], RefusedError)
    assert BucketStorage.content("bucket://models/taken") == b"theirs"


def test_shards_come_before_their_index(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    completed: list[str] = []
    BucketStorage.afterwards.append(
        lambda called, given: completed.append(given["Key"]) if called == "complete_multipart_upload" else None
    )
    ltx2c.fuse_checkpoint(base, adapters, "bucket://models/sharded/", max_shard_bytes=20_000)
    ltx2c.fuse_checkpoint(base, adapters, tmp_path / "sharded", max_shard_bytes=20_000)
    made = {path.name: path.read_bytes() for path in (tmp_path / "sharded").iterdir()}
    assert {key.removeprefix("sharded/") for key in completed} == set(made) and len(made) > 3
    assert completed[-1].endswith(".index.json")
    assert all(BucketStorage.content(f"bucket://models/sharded/{name}") == content for name, content in made.items())
    with ltx2c.Checkpoint.open("bucket://models/sharded") as checkpoint:
        assert len(checkpoint.files) == len(made) - 1


def test_what_was_written_can_be_verified_and_fused_again(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    loras = [word for path, strength in adapters for word in ("--lora", str(path), str(strength))]
    assert main(["fuse", str(base), *loras, "-o", OUT, "--quiet"]) == 0
    assert main(["verify", OUT, str(base), *loras, "--quiet"]) == 0
    assert main(["inspect", OUT, "--quiet"]) == 0
    ltx2c.fuse_checkpoint(OUT, adapters, "bucket://models/again")
    with ltx2c.Checkpoint.open("bucket://models/again") as again, ltx2c.Checkpoint.open(OUT) as once:
        assert list(again.tensors) == list(once.tensors)


def test_a_dry_run_leaves_nothing(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    outline_fuse(base, adapters, OUT)
    assert BucketStorage.content(OUT) is None
    assert BucketStorage.calls[-3:] == ["list_multipart_uploads", "create_multipart_upload", "abort_multipart_upload"]


# ---- What stands there -----------------------------------------------------------------------------------------------


def test_what_stands_there_is_kept_unless_forced(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    BucketStorage().pipe_file("/models/fused.safetensors", b"theirs")
    with pytest.raises(RefusedError, match="exists; --force replaces it") as refusal:
        ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert refusal.value.code == "output-exists" and BucketStorage.content(OUT) == b"theirs"
    assert "create_multipart_upload" not in BucketStorage.calls
    ltx2c.fuse_checkpoint(base, adapters, OUT, force=True)
    assert BucketStorage.content(OUT) == on_disk(base, adapters, tmp_path)


def test_what_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)

    def appear(called: str, given: dict[str, Any]) -> None:
        if called == "complete_multipart_upload":
            BucketStorage().pipe_file("/models/fused.safetensors", b"theirs")

    BucketStorage.faults.append(appear)
    with pytest.raises(RefusedError, match="it appeared while the result was made") as refusal:
        ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert refusal.value.code == "output-exists" and BucketStorage.content(OUT) == b"theirs"


def test_an_input_is_never_the_result(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    BucketStorage().pipe_file("/models/base.safetensors", base.read_bytes())
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_checkpoint(
            "bucket://models/base.safetensors", adapters, "bucket://models/base.safetensors", force=True
        )
    assert refusal.value.code == "output-is-input"


# ---- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), refused(500), refused(503)])
def test_a_part_that_fails_is_sent_again(tmp_path: Path, error: OSError) -> None:
    base, adapters, _ = small_model(tmp_path)
    fails("upload_part", error, 2)
    ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert BucketStorage.content(OUT) == on_disk(base, adapters, tmp_path)


@pytest.mark.parametrize("method", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
def test_a_call_that_goes_on_failing_leaves_nothing(tmp_path: Path, method: str) -> None:
    base, adapters, _ = small_model(tmp_path)
    fails(method, refused(500), 100)
    with pytest.raises(OSError, match="status 500") as failure:
        ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert str(failure.value.filename).startswith("bucket://models")
    assert BucketStorage.content(OUT) is None


def test_a_refusal_by_the_storage_is_not_tried_again(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    asked: list[int] = []

    def refuse(called: str, given: dict[str, Any]) -> None:
        if called == "upload_part":
            asked.append(given["PartNumber"])
            raise refused(403, PermissionError)

    BucketStorage.faults.append(refuse)
    with pytest.raises(PermissionError):
        ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert asked and len(set(asked)) == len(asked)


def test_another_version_is_not_read_even_if_the_first_one_returns(tmp_path: Path) -> None:
    base, _, _ = small_model(tmp_path)
    content, url = base.read_bytes(), "bucket://models/base.safetensors"
    BucketStorage().pipe_file("/models/base.safetensors", content)
    reads: list[str] = []

    def swap(called: str, given: dict[str, Any]) -> None:
        if called == "get_object":
            reads.append(called)
            BucketStorage().pipe_file("/models/base.safetensors", content if len(reads) != 2 else content[:-1] + b"x")

    with ltx2c.Checkpoint.open(url) as checkpoint:
        checkpoint.files[0]._reader._head = b""
        BucketStorage.faults.append(swap)
        reads.append("the first")
        with pytest.raises(RefusedError, match="changed since it was opened: version") as refusal:
            checkpoint.tensors["bias"].read()
        assert refusal.value.code == "file-changed"
        BucketStorage().pipe_file("/models/base.safetensors", content)
        checkpoint.check_unchanged()


@pytest.mark.parametrize("force", [False, True])
def test_the_reply_to_complete_is_lost(tmp_path: Path, force: bool) -> None:
    base, adapters, _ = small_model(tmp_path)
    fails("complete_multipart_upload", ConnectionResetError("reset"), after=True)
    report = ltx2c.fuse_checkpoint(base, adapters, OUT, force=force)
    assert str(report.out) == OUT
    assert BucketStorage.content(OUT) == on_disk(base, adapters, tmp_path)


def test_a_second_complete_that_finds_the_first_ones_object_is_no_failure(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    fails("complete_multipart_upload", refused(412, FileExistsError), after=True)  # as a library's own retry is told
    ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert BucketStorage.content(OUT) == on_disk(base, adapters, tmp_path)


def test_complete_fails_and_anothers_object_stands_there(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    BucketStorage().pipe_file("/models/fused.safetensors", b"theirs")
    fails("complete_multipart_upload", refused(500), 10)
    with pytest.raises(OSError, match="status 500"):
        ltx2c.fuse_checkpoint(base, adapters, OUT, force=True)
    assert BucketStorage.content(OUT) == b"theirs"


def test_an_interrupt_aborts_the_upload(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    fails("upload_part", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert BucketStorage.content(OUT) is None


def test_shards_of_a_result_that_fails_are_removed_again(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    calls = iter(range(10))

    def third(called: str, given: dict[str, Any]) -> None:
        if called == "complete_multipart_upload" and next(calls) == 2:
            raise refused(500)

    BucketStorage.faults.append(third)
    with pytest.raises(OSError, match="status 500"):
        ltx2c.fuse_checkpoint(base, adapters, "bucket://models/sharded", max_shard_bytes=20_000)
    assert not [name for name in BucketStorage.store if "sharded" in name]


def test_a_folder_that_is_replaced_has_no_index_until_it_is_whole(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    ltx2c.fuse_checkpoint(base, adapters, "bucket://models/sharded", max_shard_bytes=20_000)
    indexes: list[int] = []

    def look(called: str, given: dict[str, Any]) -> None:
        if called == "complete_multipart_upload":
            indexes.append(sum(name.endswith(".index.json") for name in BucketStorage.store))

    BucketStorage.faults.append(look)
    ltx2c.fuse_checkpoint(base, adapters[:1], "bucket://models/sharded", max_shard_bytes=20_000, force=True)
    assert set(indexes) == {0}


# ---- What killed runs leave ------------------------------------------------------------------------------------------


def test_what_a_killed_run_left_is_told_and_abandoned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, _ = small_model(tmp_path)
    storage = BucketStorage()
    for key in ("fused.safetensors", "fused.safetensors/a", "fused.safetensors2"):
        storage.call_s3("create_multipart_upload", Bucket="models", Key=key, Metadata={})
    report = ltx2c.fuse_checkpoint(base, adapters, OUT)
    assert f"ltx2c job abandon {OUT}" in report.notes[-1] and "1 uploads" in report.notes[-1]
    assert main(["job", "abandon", OUT]) == 0
    assert capsys.readouterr().out == f"{OUT}: 2 uploads aborted\n"
    assert [one["Key"] for one in BucketStorage.uploads.values()] == ["fused.safetensors2"]
    assert BucketStorage.content(OUT) is not None
    assert abandon_uploads("bucket://models/fused.safetensors2") == 1


# ---- What is not done there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"reuse": True}, {"resume": True}, {"card": True}])
def test_what_is_only_done_on_this_disk_is_refused(tmp_path: Path, options: dict[str, bool]) -> None:
    base, adapters, _ = small_model(tmp_path)
    with pytest.raises(RefusedError, match="goes to this disk, to no URL") as refusal:
        ltx2c.fuse_checkpoint(base, adapters, OUT, **options)
    assert refusal.value.code == "not-by-url"


def test_a_digest_of_scales_that_come_late_is_refused(tmp_path: Path) -> None:
    base, adapters = fp8_base(tmp_path, "weight_scale", first=True)
    for call in (ltx2c.fuse_checkpoint, outline_fuse):
        with pytest.raises(RefusedError) as refusal:
            call(base, adapters, OUT, sha256=True)
        assert refusal.value.code == "not-by-url"


def test_a_job_writes_to_this_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapters, _ = small_model(tmp_path)
    assert main(["job", "create", str(tmp_path / "J"), str(base), "--lora", str(adapters[0][0]), "-o", OUT]) == 2
    assert "the result of a job goes to this disk, to no URL" in capsys.readouterr().err
    assert not (tmp_path / "J").exists()


@pytest.mark.parametrize(
    ("out", "code"),
    [
        ("memory://models/x", "not-by-url"),
        ("bucket://models", "bad-url"),
        ("bucket://models/x/", "output-is-folder"),
        ("bucket://", "bad-url"),
    ],
)
def test_where_no_result_can_go(tmp_path: Path, out: str, code: str) -> None:
    base, adapters, _ = small_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_checkpoint(base, adapters, out)
    assert refusal.value.code == code


def test_a_folder_is_not_called_as_a_file(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_checkpoint(base, adapters, OUT, max_shard_bytes=20_000)
    assert refusal.value.code == "output-is-not-folder"


# ---- Parts -----------------------------------------------------------------------------------------------------------


def test_parts_are_few_enough_and_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 16 << 20)
    for size in (0, 1, 16 << 20, 42 * 10**9, 10**12, 5 << 40):
        part = uploads.part_bytes(size)
        assert part % 4096 == 0 and 5 << 20 <= part <= 5 << 30
        assert -(-size // part) <= 10_000


def test_phases_go_to_a_storage(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    recipe = ltx2c.Recipe.named("ti2vid_two_stages", distilled_lora=adapters[0][0])
    ltx2c.write_phases(base, recipe, tmp_path / "phases")
    ltx2c.write_phases(base, recipe, "bucket://models/phases")
    for path in (tmp_path / "phases").iterdir():
        assert BucketStorage.content(f"bucket://models/phases/{path.name}") == path.read_bytes()
