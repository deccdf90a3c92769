"""Sound safetensors files, and files and JSON with something wrong, by chance."""

from __future__ import annotations

import json
import random
from typing import Any

from ltx2c.dtypes import DTYPES

_ODD_VALUES = [
    "null", "true", "-1", "0", "1.5", "1e3", "NaN", "18446744073709551615", "18446744073709551616", "9" * 400, '""',
    '"U8"', "[]", "{}", "[[]]", '[0,"1"]', '{"a":1}', '"\\ud800"', '"\\u0000"', '"\x7f"', "[" * 50,
]  # fmt: skip
_TOKENS = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\u0061", b"\xff", b"\0", b" ", b"\n", b"e", b"-", b"."]


def sound_file(chance: random.Random) -> bytes:
    """A file that every reader must accept."""
    header: dict[str, Any] = {}
    if chance.random() < 0.5:
        header["__metadata__"] = {f"k{at}": chance.choice(["", "v", 'é\n"', "{}"]) for at in range(chance.randrange(4))}
    at = 0
    for number in range(chance.randrange(5)):
        dtype = chance.choice(sorted(DTYPES))
        shape = [*(chance.randrange(4) for _ in range(chance.randrange(3))), 8]
        size = DTYPES[dtype].bits
        for extent in shape[:-1]:
            size *= extent
        header[chance.choice(["w", "é", "a.b", "\n", "\\"]) + str(number)] = {
            "dtype": dtype, "shape": shape, "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    text = json.dumps(header, ensure_ascii=chance.random() < 0.5).encode()
    text += b" " * chance.randrange(9)
    return len(text).to_bytes(8, "little") + text + chance.randbytes(at)


def mutated(file: bytes, chance: random.Random) -> bytes:
    """``file`` with one thing wrong, or several, or none."""
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        file = chance.choice([_value, _token, _byte, _cut, _grow, _length, _repeat, _shift])(file, chance)
    return file


def _value(file: bytes, chance: random.Random) -> bytes:
    """Another value in the header, its length put right."""
    text = file[8 : 8 + int.from_bytes(file[:8], "little")]
    colons = [at for at, byte in enumerate(text) if byte == ord(":")]
    if not colons:
        return file
    at = chance.choice(colons) + 1
    end = next((end for end in range(at + 1, len(text)) if text[end] in b",}"), len(text))
    new = text[:at] + chance.choice(_ODD_VALUES).encode("utf-8", "surrogatepass") + text[end:]
    return len(new).to_bytes(8, "little") + new + file[8 + len(text) :]


def _token(file: bytes, chance: random.Random) -> bytes:
    text = file[8 : 8 + int.from_bytes(file[:8], "little")]
    at = chance.randrange(len(text) + 1)
    new = text[:at] + chance.choice(_TOKENS) + text[at + chance.randrange(2) :]
    return len(new).to_bytes(8, "little") + new + file[8 + len(text) :]


def _byte(file: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(max(1, len(file)))
    return file[:at] + chance.randbytes(1) + file[at + 1 :]


def _cut(file: bytes, chance: random.Random) -> bytes:
    return file[: chance.randrange(len(file) + 1)]


def _grow(file: bytes, chance: random.Random) -> bytes:
    return file + chance.randbytes(chance.randrange(20))


def _length(file: bytes, chance: random.Random) -> bytes:
    length = int.from_bytes(file[:8], "little") + chance.choice([-1, 1, 8, 1 << 20, 1 << 40, 1 << 63])
    return (length % (1 << 64)).to_bytes(8, "little") + file[8:]


def _repeat(file: bytes, chance: random.Random) -> bytes:
    """Part of the header twice: duplicate keys, overlaps."""
    text = file[8 : 8 + int.from_bytes(file[:8], "little")]
    commas = [at for at, byte in enumerate(text) if byte in b",{"]
    if len(commas) < 2:
        return file
    begin, end = sorted(chance.sample(commas, 2))
    new = text[:end] + text[begin:end].replace(b"{", b",", 1) + text[end:]
    return len(new).to_bytes(8, "little") + new + file[8 + len(text) :]


def _shift(file: bytes, chance: random.Random) -> bytes:
    """One tensor's place moved, its size kept: overlaps, holes, truncation."""
    length = int.from_bytes(file[:8], "little")
    try:
        header = json.loads(file[8 : 8 + length])
        entry = header[chance.choice([key for key in header if key != "__metadata__"])]
        by = chance.choice([-8, -1, 1, 8, 4096])
        entry["data_offsets"] = [max(0, offset + by) for offset in entry["data_offsets"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        return file
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + file[8 + length :]


def mutated_text(text: bytes, chance: random.Random) -> bytes:
    """JSON with one thing wrong, or several, or none."""
    file = len(text).to_bytes(8, "little") + text
    for _ in range(chance.choice([1, 1, 2, 4])):
        file = chance.choice([_value, _token, _repeat])(file, chance)
    return file[8:]
