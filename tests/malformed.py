"""Malformed files, each with the code it must be refused by: every header field wrong in each way we could think of."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

from rawfiles import entry, header_of, raw_file

FOUR = b"\1\2\3\4"


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", "x")
    return file.getvalue()


def _with_entry(text: str) -> bytes:
    return raw_file('{"a":' + text + "}", FOUR)


def _with(dtype: str = '"U8"', shape: str = "[4]", offsets: str = "[0,4]") -> bytes:
    return _with_entry(f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}')


def _many(*keys: str) -> str:
    """A header with an empty tensor at each key."""
    return "{" + ",".join(f'"{key}":{json.dumps(entry("U8", (0,), (0, 0)))}' for key in keys) + "}"


GOOD = _with()

CASES: dict[str, tuple[str, bytes]] = {
    # not safetensors at all
    "empty": ("empty", b""),
    "git-lfs": ("not-safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n"),
    "html": ("not-safetensors", b"<!DOCTYPE html><html><body>404</body></html>"),
    "html-bom": ("not-safetensors", b"\xef\xbb\xbf\n<html><body>sign in</body></html>"),
    "zip": ("not-safetensors", _zip()),
    "pickle": ("not-safetensors", pickle.dumps({"weight": [1.0] * 40}, protocol=2)),
    "gguf": ("not-safetensors", b"GGUF\3\0\0\0" + bytes(60)),
    "numpy": ("not-safetensors", b"\x93NUMPY\1\0v\0{'descr': '<f4'}" + bytes(99)),
    "hdf5": ("not-safetensors", b"\x89HDF\r\n\x1a\n" + bytes(99)),
    "gzip": ("not-safetensors", b"\x1f\x8b\x08\0" + bytes(99)),
    "json": ("not-safetensors", b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'),
    "text": ("not-safetensors", b"Entry not found, please log in\n"),
    "zeros": ("not-safetensors", bytes(4096)),
    # the length before the header
    "one-byte": ("header-too-short", b"\1"),
    "seven-bytes": ("header-too-short", b"\2\0\0\0\0\0\0"),
    "length-zero": ("header-length", raw_file("{}", length=0)),
    "length-one": ("header-length", raw_file("{}", length=1)),
    "length-past-end": ("header-length", raw_file("{}", length=3)),
    "length-limit": ("header-length", raw_file("{}", length=100_000_001)),
    "length-huge": ("header-length", raw_file("{}", length=(1 << 64) - 1)),
    "length-sign": ("header-length", raw_file("{}", length=1 << 63)),
    "cut-in-header": ("header-length", GOOD[:30]),
    "no-header-bytes": ("header-length", GOOD[:8]),
    # the JSON as such
    "not-json": ("header-json", raw_file("\xff\xfe\1\2 nothing of the sort".encode("latin-1"))),
    "array": ("header-json", raw_file("[]")),
    "number": ("header-json", raw_file("12")),
    "leading-space": ("header-json", raw_file(" {}")),
    "byte-order-mark": ("header-json", raw_file(b"\xef\xbb\xbf{}")),
    "unclosed": ("header-json", raw_file("{ ")),
    "two-objects": ("header-json", raw_file("{}{}")),
    "nul-padding": ("header-json", raw_file("{}\0\0")),
    "trailing-comma": ("header-json", raw_file(header_of(a=entry())[:-1] + ",}", FOUR)),
    "leading-comma": ("header-json", raw_file("{," + header_of(a=entry())[1:], FOUR)),
    "missing-comma": ("header-json", raw_file(header_of(a=entry())[:-1] + '"b":1}', FOUR)),
    "missing-colon": ("header-json", raw_file('{"a" 1}')),
    "bare-key": ("header-json", raw_file("{a: 1}")),
    "single-quotes": ("header-json", raw_file("{'a': 1}")),
    "comment": ("header-json", raw_file("{/* */}")),
    "raw-newline-in-key": ("header-json", raw_file('{"a\nb":' + json.dumps(entry()) + "}", FOUR)),
    "unclosed-key": ("header-json", raw_file('{"abc')),
    "bad-escape": ("header-json", raw_file(r'{"\q":1}')),
    "short-escape": ("header-json", raw_file(r'{"\u12":1}')),
    "escape-at-end": ("header-json", raw_file('{"a\\')),
    "latin-1-key": ("header-utf8", raw_file(b'{"\xe9":1}')),
    "overlong-utf8": ("header-utf8", raw_file(b'{"\xc0\xaf":1}')),
    "surrogate-utf8": ("header-utf8", raw_file(b'{"\xed\xa0\x80":1}')),
    "half-surrogate": ("header-utf8", raw_file(r'{"\ud800":1}')),
    "deep-arrays": ("header-json", raw_file("[" * 200_000)),
    "deep-objects": ("entry", raw_file('{"a":' * 200_000)),
    "deep-shape": ("shape", _with(shape="[" * 200_000)),
    # duplicate keys
    "duplicate-tensor": ("duplicate-key", raw_file('{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2), FOUR)),
    "duplicate-escaped": ("duplicate-key", raw_file(r'{"a":%s,"\u0061":%s}' % ((json.dumps(entry()),) * 2), FOUR)),
    "duplicate-metadata": ("duplicate-key", raw_file('{"__metadata__":{},"__metadata__":{}}')),
    "duplicate-metadata-escaped": ("duplicate-key", raw_file(r'{"__metadata__":{},"__metadat\u0061__":{}}')),
    "duplicate-in-metadata": ("duplicate-key", raw_file('{"__metadata__":{"k":"1","k":"1"}}')),
    "duplicate-in-metadata-escaped": ("duplicate-key", raw_file(r'{"__metadata__":{"/":"1","\/":"2"}}')),
    "duplicate-dtype": ("duplicate-key", _with_entry('{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}')),
    "duplicate-shape-escaped": ("duplicate-key", _with_entry(r'{"dtype":"U8","shape":[4],"sh\u0061pe":[4]}')),
    "duplicate-far-apart": ("duplicate-key", raw_file(_many("a", "b", "c", "d", "a"), FOUR)),
    "duplicate-of-metadata": ("metadata-type", raw_file(_many("a", "b", "__metadata__"), FOUR)),
    # metadata
    "metadata-nul": ("metadata-type", raw_file('{"__metadata__":nul}')),
    "metadata-null-and-more": ("header-json", raw_file('{"__metadata__":nullx}')),
    "metadata-list": ("metadata-type", raw_file('{"__metadata__":["a"]}')),
    "metadata-string": ("metadata-type", raw_file('{"__metadata__":"a"}')),
    "metadata-number": ("metadata-type", raw_file('{"__metadata__":{"k":1}}')),
    "metadata-value-null": ("metadata-type", raw_file('{"__metadata__":{"k":null}}')),
    "metadata-value-object": ("metadata-type", raw_file('{"__metadata__":{"k":{}}}')),
    "metadata-value-true": ("metadata-type", raw_file('{"__metadata__":{"k":true}}')),
    # a tensor's entry
    "entry-null": ("entry", _with_entry("null")),
    "entry-list": ("entry", _with_entry("[]")),
    "entry-string": ("entry", _with_entry('"U8"')),
    "entry-empty": ("entry", _with_entry("{}")),
    "entry-no-dtype": ("entry", _with_entry('{"shape":[4],"data_offsets":[0,4]}')),
    "entry-no-shape": ("entry", _with_entry('{"dtype":"U8","data_offsets":[0,4]}')),
    "entry-no-offsets": ("entry", _with_entry('{"dtype":"U8","shape":[4]}')),
    "entry-unknown-field": ("entry", _with_entry('{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}')),
    "dtype-unknown": ("unknown-dtype", _with(dtype='"F7"')),
    "dtype-lower-case": ("unknown-dtype", _with(dtype='"u8"')),
    "dtype-empty": ("unknown-dtype", _with(dtype='""')),
    "dtype-null": ("unknown-dtype", _with(dtype="null")),
    "dtype-number": ("unknown-dtype", _with(dtype="8")),
    "dtype-list": ("unknown-dtype", _with(dtype='["U8"]')),
    "shape-null": ("shape", _with(shape="null")),
    "shape-number": ("shape", _with(shape="4")),
    "shape-string": ("shape", _with(shape='"4"')),
    "shape-object": ("shape", _with(shape="{}")),
    "shape-negative": ("shape", _with(shape="[-4]")),
    "shape-float": ("shape", _with(shape="[4.0]")),
    "shape-exponent": ("shape", _with(shape="[4e0]")),
    "shape-nan": ("shape", _with(shape="[NaN]")),
    "shape-infinity": ("shape", _with(shape="[Infinity]")),
    "shape-true": ("shape", _with(shape="[true]")),
    "shape-text": ("shape", _with(shape='["4"]')),
    "shape-leading-zero": ("shape", _with(shape="[04]")),
    "shape-huge": ("shape", _with(shape="[18446744073709551616]")),
    "shape-endless-number": ("shape", _with(shape="[" + "9" * 100_000 + "]")),
    "shape-product-overflow": ("shape", _with(shape="[4294967296,4294967296,4]")),
    "shape-overflow-hidden-by-zero": (
        "shape",
        _with(shape="[18446744073709551615,18446744073709551615,0]", offsets="[0,0]"),
    ),
    "shape-of-no-array": ("shape", _with(shape="[0,18446744073709551615]", offsets="[0,0]")),
    "shape-of-no-array-second": (
        "shape",
        raw_file(header_of(a=entry(), b=entry("U8", (0, 1 << 63), (4, 4))), FOUR),
    ),
    "shape-product-wraps-to-size": ("shape", _with(shape="[4294967297,4294967296,4]")),
    "shape-trailing-comma": ("shape", _with(shape="[4,]")),
    "shape-too-many": ("shape", _with(shape="[4" + ",1" * 64 + "]")),
    "shape-half-byte": ("shape", _with(dtype='"F4"', shape="[7]")),
    "shape-quarter-bytes": ("shape", _with(dtype='"F6_E2M3"', shape="[5]")),
    "offsets-null": ("offsets", _with(offsets="null")),
    "offsets-empty": ("offsets", _with(offsets="[]")),
    "offsets-one": ("offsets", _with(offsets="[4]")),
    "offsets-three": ("offsets", _with(offsets="[0,4,4]")),
    "offsets-backwards": ("offsets", _with(offsets="[4,0]")),
    "offsets-negative": ("offsets", _with(offsets="[-4,0]")),
    "offsets-float": ("offsets", _with(offsets="[0,4.0]")),
    "offsets-true": ("offsets", _with(offsets="[false,true]")),
    "offsets-text": ("offsets", _with(offsets='["0","4"]')),
    "offsets-huge": ("offsets", _with(offsets="[0,18446744073709551616]")),
    "size-too-small": ("size-mismatch", _with(shape="[3]")),
    "size-too-large": ("size-mismatch", _with(shape="[5]")),
    "size-of-other-dtype": ("size-mismatch", _with(dtype='"F32"')),
    "size-zero": ("size-mismatch", _with(shape="[0]")),
    # where tensors lie
    "overlap": ("overlapping-tensors", raw_file(header_of(a=entry(), b=entry("U8", (4,), (2, 6))), FOUR + b"12")),
    "overlap-same-place": ("overlapping-tensors", raw_file(header_of(a=entry(), b=entry()), FOUR)),
    "overlap-empty-inside": ("overlapping-tensors", raw_file(header_of(a=entry(), b=entry("U8", (0,), (2, 2))), FOUR)),
    "hole-at-start": ("hole", raw_file(header_of(a=entry("U8", (4,), (1, 5))), b"0" + FOUR)),
    "hole-between": ("hole", raw_file(header_of(a=entry(), b=entry("U8", (1,), (5, 6))), FOUR + b"12")),
    "hole-before-empty": ("hole", raw_file(header_of(a=entry("U8", (0,), (4, 4))), FOUR)),
    "truncated": ("truncated", GOOD[:-1]),
    "truncated-no-data": ("truncated", GOOD[:-4]),
    "offsets-near-2^64": ("hole", _with(offsets="[18446744073709551611,18446744073709551615]")),
    "trailing-byte": ("trailing-bytes", GOOD + b"\0"),
    "trailing-data-no-tensors": ("trailing-bytes", raw_file("{}", FOUR)),
}
