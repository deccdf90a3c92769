"""A storage that speaks as much of S3 as results need, in memory, with faults on demand: ``bucket://NAME/KEY``.

It stands in for s3fs's method ``call_s3``. ci/storage.py runs the real one against moto's server.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem

SMALLEST_PART = 5 << 20


class AnswerError(Exception):
    """What botocore raises: an answer with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def refused(status: int, kind: type[OSError] = OSError) -> OSError:
    """As s3fs translates it."""
    error = kind(f"status {status}")
    error.__cause__ = AnswerError(status)
    return error


class BucketStorage(MemoryFileSystem):
    """Objects, and uploads of parts. ``faults`` are called before each call, ``afterwards`` when it has been done."""

    protocol = "bucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    uploads: ClassVar[dict[str, dict[str, Any]]] = {}
    metadata: ClassVar[dict[str, dict[str, str]]] = {}
    faults: ClassVar[list[Callable[[str, dict[str, Any]], None]]] = []
    afterwards: ClassVar[list[Callable[[str, dict[str, Any]], None]]] = []
    calls: ClassVar[list[str]] = []
    smallest_part = SMALLEST_PART
    _lock = threading.RLock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = str(path).removeprefix("bucket://").strip("/")
        return f"/{path}" if path else ""

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = self._strip_protocol(path).strip("/").partition("/")
        return bucket, key, None

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        told = super().info(path, **given)
        if told["type"] == "file":
            told["ETag"] = self.etag(self.store[self._strip_protocol(path)].getvalue())
        return told

    @staticmethod
    def etag(content: bytes) -> str:
        return f'"{hashlib.md5(content).hexdigest()}"'

    @classmethod
    def clear(cls) -> None:
        for held in (cls.store, cls.uploads, cls.metadata, cls.faults, cls.afterwards, cls.calls):
            held.clear()
        cls.smallest_part = SMALLEST_PART

    @classmethod
    def content(cls, url: str) -> bytes | None:
        found = cls.store.get(cls._strip_protocol(url))
        return None if found is None else found.getvalue()

    def call_s3(self, method: str, **given: Any) -> Any:
        for fault in list(self.faults):
            fault(method, given)
        with self._lock:
            self.calls.append(method)
            told = getattr(self, f"_{method}")(**given)
        for fault in list(self.afterwards):
            fault(method, given)
        return told

    def _get_object(self, Bucket: str, Key: str, Range: str, IfMatch: str) -> Any:  # noqa: N803
        content = self.content(f"{Bucket}/{Key}")
        if content is None:
            raise FileNotFoundError(Key)
        if self.etag(content) != IfMatch:
            raise refused(412)
        begin, end = map(int, Range.removeprefix("bytes=").split("-"))

        class Body:
            async def read(self) -> bytes:
                return content[begin : end + 1]

        return {"Body": Body()}

    def _head_object(self, Bucket: str, Key: str) -> Any:  # noqa: N803
        content = self.content(f"{Bucket}/{Key}")
        if content is None:
            raise FileNotFoundError(Key)
        return {"ContentLength": len(content), "Metadata": self.metadata.get(f"{Bucket}/{Key}", {})}

    def _delete_object(self, Bucket: str, Key: str) -> None:  # noqa: N803
        self.store.pop(f"/{Bucket}/{Key}", None)

    def _create_multipart_upload(self, Bucket: str, Key: str, Metadata: dict[str, str]) -> Any:  # noqa: N803
        name = f"upload{len(self.calls)}"
        self.uploads[name] = {"Bucket": Bucket, "Key": Key, "Metadata": Metadata, "parts": {}}
        return {"UploadId": name}

    def _upload_part(self, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> Any:  # noqa: N803
        if UploadId not in self.uploads:
            raise FileNotFoundError(UploadId)
        self.uploads[UploadId]["parts"][PartNumber] = bytes(Body)
        return {"ETag": self.etag(Body)}

    def _complete_multipart_upload(
        self,
        Bucket: str,  # noqa: N803
        Key: str,  # noqa: N803
        UploadId: str,  # noqa: N803
        MultipartUpload: Any,  # noqa: N803
        IfNoneMatch: str | None = None,  # noqa: N803
    ) -> None:
        if UploadId not in self.uploads:
            raise FileNotFoundError(UploadId)
        if IfNoneMatch == "*" and self.content(f"{Bucket}/{Key}") is not None:
            raise refused(412, FileExistsError)
        parts, listed = self.uploads[UploadId]["parts"], MultipartUpload["Parts"]
        numbers = [one["PartNumber"] for one in listed]
        assert numbers == sorted(numbers) and numbers
        assert all(one["ETag"] == self.etag(parts[one["PartNumber"]]) for one in listed)
        assert all(len(parts[number]) >= self.smallest_part for number in numbers[:-1]), "parts too small"
        self.metadata[f"{Bucket}/{Key}"] = self.uploads.pop(UploadId)["Metadata"]
        self.pipe_file(f"/{Bucket}/{Key}", b"".join(parts[number] for number in numbers))

    def _abort_multipart_upload(self, Bucket: str, Key: str, UploadId: str) -> None:  # noqa: N803
        if self.uploads.pop(UploadId, None) is None:
            raise FileNotFoundError(UploadId)

    def _list_multipart_uploads(self, Bucket: str, Prefix: str) -> Any:  # noqa: N803
        found = [
            {"Key": one["Key"], "UploadId": name, "Initiated": "2026-01-01"}
            for name, one in self.uploads.items()
            if one["Bucket"] == Bucket and one["Key"].startswith(Prefix)
        ]
        return {"Uploads": found, "IsTruncated": False}


fsspec.register_implementation("bucket", BucketStorage, clobber=True)
