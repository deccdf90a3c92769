"""One bucket of S3, or of what speaks its language: the calls that put results there, through s3fs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from ltx2c.errors import RefusedError, printable
from ltx2c.files.objects import status_of
from ltx2c.files.url import Url, about

T = TypeVar("T")

# In an object's metadata: which upload made it.
TOKEN = "ltx2c-upload"

_ATTEMPTS = 3  # of our own, each with those of s3fs and botocore
_PAUSE = 0.5  # seconds before the second


class Unfinished(NamedTuple):
    """A multipart upload that was begun, and neither completed nor aborted."""

    key: str
    upload: str
    begun: str


class Standing(NamedTuple):
    """What is known of an object that is there."""

    size: int
    token: str


class Bucket:
    """Where results go. Every call may be made by several threads at once, and raises ``OSError`` as the storage says.

    Attributes:
        url: of the result, for messages.
    """

    def __init__(self, url: Url) -> None:
        """The bucket that ``url`` lies in.

        Raises:
            RefusedError: ``not-by-url``: the storage is not S3's kind; ``bad-url``, ``no-storage``.
            OSError: as the storage says.
        """
        self.url = url
        storage, path = url.located()
        if not hasattr(storage, "call_s3"):
            raise RefusedError(
                f"{printable(url)}: results are written to this disk and to s3:// alone", code="not-by-url"
            )
        self._storage = storage
        self._name, self.key, version = storage.split_path(path)
        if not self.key or version:
            raise RefusedError(f"{printable(url)}: a result needs s3://BUCKET/NAME", code="bad-url")

    def standing(self, key: str) -> Standing | None:
        """The object of that key; None where there is none."""
        try:
            told = self._call("head_object", Key=key)
        except FileNotFoundError:
            return None
        except OSError as error:
            if status_of(error) == 404:
                return None
            raise
        return Standing(int(told["ContentLength"]), told.get("Metadata", {}).get(TOKEN, ""))

    def begin(self, key: str, token: str) -> str:
        """Begin an upload; its name."""
        return str(self._call("create_multipart_upload", Key=key, Metadata={TOKEN: token})["UploadId"])

    def put(self, key: str, upload: str, number: int, data: bytes) -> str:
        """Upload a part, ``number`` from 1; what it is called when the upload is completed."""
        told = _again(lambda: self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data))
        return str(told["ETag"])

    def complete(self, key: str, upload: str, parts: Mapping[int, str], *, replace: bool) -> None:
        """Make the object of all parts. FileExistsError where one stands there that is not to be replaced."""
        listed = [{"PartNumber": number, "ETag": parts[number]} for number in sorted(parts)]
        unless = {} if replace else {"IfNoneMatch": "*"}
        self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": listed}, **unless)

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up, and what it holds. One that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            _again(lambda: self._call("abort_multipart_upload", Key=key, UploadId=upload))

    def remove(self, key: str) -> None:
        """Delete an object."""
        self._call("delete_object", Key=key)

    def unfinished(self) -> Iterator[Unfinished]:
        """The uploads to the result, and to what lies below it, that are neither completed nor aborted."""
        marker: dict[str, str] = {}
        while True:
            told = self._call("list_multipart_uploads", Prefix=self.key, **marker)
            for one in told.get("Uploads", ()):
                if one["Key"] == self.key or one["Key"].startswith(f"{self.key}/"):
                    yield Unfinished(one["Key"], one["UploadId"], str(one["Initiated"]))
            if not told.get("IsTruncated"):
                return
            marker = {"KeyMarker": told["NextKeyMarker"], "UploadIdMarker": told["NextUploadIdMarker"]}

    def _call(self, method: str, *, Key: str = "", **given: Any) -> Any:  # noqa: N803  (S3's own name)
        keyed = {"Key": Key} if Key else {}
        with about(self._url_of(Key)):
            return self._storage.call_s3(method, Bucket=self._name, **keyed, **given)

    def _url_of(self, key: str) -> Url:
        return Url(f"{self.url.scheme}://{self._name}/{key}") if key else self.url


def _again(call: Callable[[], T]) -> T:
    """Call, and again where it fails by no answer or by one that says that the server was at fault."""
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except OSError as error:
            status = status_of(error)
            if (status is not None and status < 500) or attempt == _ATTEMPTS - 1:
                raise
        time.sleep(_PAUSE * 2**attempt)
    raise AssertionError
