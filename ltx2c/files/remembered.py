"""sha256 of files' content, remembered in the user's cache as long as a file is what it was.

Kept by path, size, modification time, time of last status change and inode, one small file each; the folder may be
deleted at any time. What is damaged there, or cannot be read or written, is as if it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from ltx2c.errors import RefusedError, printable
from ltx2c.files.naming import naming

_CHUNK_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")

# The system's clock for files ticks every few milliseconds: of a file that has just changed, the times could stay what
# they are through another change. So nothing is remembered of one that changed less than this ago.
SETTLED_NS = 2_000_000_000


def digests_folder() -> Path:
    """Where they are kept: ``$XDG_CACHE_HOME/ltx2c/sha256``, by default below ``~/.cache``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(given) if Path(given).is_absolute() else Path("~/.cache").expanduser()
    return caches / "ltx2c" / "sha256"


def remembered_sha256(path: Path, each: Callable[[], None] = lambda: None) -> str:
    """The hex digest of a file's content; read only where it is not remembered, with a call of ``each`` per 8 MB.

    Raises:
        OSError: as the system says.
        RefusedError: ``file-changed``: it changed while it was read.
    """
    path = path.absolute()
    with naming(path), open(path, "rb", buffering=0) as file:  # noqa: PTH123
        before = _facts(path, os.fstat(file.fileno()))
        known = _recall(path, before)
        if known is not None:
            return known
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            each()
        after = _facts(path, os.fstat(file.fileno()))
    if before != after:
        raise RefusedError(f"{printable(path)}: changed while it was read", code="file-changed")
    if time.time_ns() - int(after["ctime_ns"]) > SETTLED_NS:
        _remember(path, after, digest.hexdigest())
    return digest.hexdigest()


def _facts(path: Path, status: os.stat_result) -> dict[str, str | int]:
    return {
        "path": str(path),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _entry(path: Path) -> Path:
    return digests_folder() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def _recall(path: Path, facts: dict[str, str | int]) -> str | None:
    try:
        kept = json.loads(_entry(path).read_bytes())
        digest = kept.pop("sha256")
        return digest if kept == facts and _SHA256.fullmatch(digest) else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None


def _remember(path: Path, facts: dict[str, str | int], digest: str) -> None:
    entry = _entry(path)
    fresh = entry.with_name(f".{secrets.token_hex(16)}")
    with contextlib.suppress(OSError, UnicodeEncodeError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(json.dumps({**facts, "sha256": digest}))
            fresh.replace(entry)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
