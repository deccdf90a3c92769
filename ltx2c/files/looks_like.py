"""What a file that is not a safetensors file looks like instead, from its first bytes."""

from __future__ import annotations

import re

HEAD_BYTES = 512

# Each: what a person would call it, and a pattern for the first bytes. The first that matches is meant.
_KINDS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("a Git LFS pointer (fetch the file itself with `git lfs pull`)", re.compile(rb"version https://git-lfs")),
    (
        "an HTML page (a failed download?)",
        re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head|\?xml|!--)", re.I),
    ),
    ("a PyTorch or other zip archive (.pt, .ckpt, .zip)", re.compile(rb"PK\x03\x04")),
    ("a pickle (.pt, .ckpt, .pkl)", re.compile(rb"\x80[\x02-\x05][\x00-\xff]")),
    ("a GGUF file (fuse the bf16 .safetensors file, then quantise the result)", re.compile(rb"GGUF")),
    ("a GGML file", re.compile(rb"lmgg|tjgg|fmgg")),
    ("a NumPy array (.npy)", re.compile(rb"\x93NUMPY")),
    ("an HDF5 file", re.compile(rb"\x89HDF\r\n\x1a\n")),
    ("a gzip archive", re.compile(rb"\x1f\x8b")),
    ("a zstd archive", re.compile(rb"\x28\xb5\x2f\xfd")),
    ("an xz archive", re.compile(rb"\xfd7zXZ\x00")),
    ("a 7z archive", re.compile(rb"7z\xbc\xaf\x27\x1c")),
    ("a tar archive", re.compile(rb"[\x00-\xff]{257}ustar")),
    ("an image (PNG)", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("the attributes that macOS keeps beside a file (AppleDouble)", re.compile(rb"\x00\x05\x16\x07")),
    ("JSON text", re.compile(rb'\s*[{\[]\s*["\]}\[{]')),
    ("a file of zeros (an unfinished download?)", re.compile(rb"\x00{64}")),
    ("text", re.compile(rb"[\t\n\r\x20-\x7e]{16,}\Z")),
)


def looks_like(head: bytes) -> str | None:
    """What ``head``, the first ``HEAD_BYTES`` bytes of a file, is the beginning of; None when nothing known."""
    return next((kind for kind, pattern in _KINDS if pattern.match(head)), None)
