"""Marks of the units that are done: what was written where, its checksum, and what fusing came to."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from ltx2c.engines.fuser import Fused
from ltx2c.engines.units import Unit
from ltx2c.errors import RefusedError, printable
from ltx2c.layouts import DeltaSize, Encoded, Loss

_STEP_BYTES = 4 << 20


@dataclass(frozen=True)
class Mark:
    """A unit that is done.

    Attributes:
        unit: its number.
        ranges: what was written, in that order.
        xxh3: 128-bit XXH3 of those bytes, in hex: against mistakes and faults, not against forgery; None where none was
            asked for.
        nonfinite, unencodable, loss: as ``Fused`` has them.
    """

    unit: int
    ranges: tuple[Unit, ...]
    xxh3: str | None
    nonfinite: Mapping[str, int]
    unencodable: Mapping[str, int]
    loss: Loss

    @property
    def fused(self) -> Fused:
        """What fusing came to."""
        return Fused(Counter(self.nonfinite), Counter(self.unencodable), self.loss)

    def write(self, path: Path) -> None:
        """Put the mark in place, whole and durable. Raises OSError."""
        write_durably(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Mark:
        """What ``write`` wrote. Raises OSError; RefusedError (``bad-job``)."""
        try:
            told = json.loads(path.read_text())
            ranges = tuple(Unit(str(f), int(b), int(e)) for f, b, e in told.pop("ranges"))
            loss = told.pop("loss")
            lost = Loss(Encoded(**loss["encoded"]), DeltaSize(**loss["size"]))
            return cls(ranges=ranges, loss=lost, **told)
        except (KeyError, TypeError, ValueError) as error:
            raise RefusedError(f"{printable(path)}: no mark of a unit: {printable(error)}", code="bad-job") from None

    def check(self, parts: Path) -> None:
        """Make sure that the bytes are still those that were written.

        Raises:
            OSError: they cannot be read.
            RefusedError: ``job-damaged``, naming the unit.
        """
        digest = xxhash.xxh3_128()
        for file, begin, end in self.ranges:
            with (parts / file).open("rb", buffering=0) as stream:
                stream.seek(begin)
                while begin < end and (chunk := stream.read(min(_STEP_BYTES, end - begin))):
                    digest.update(chunk)
                    begin += len(chunk)
        if digest.hexdigest() != self.xxh3:
            raise RefusedError(
                f"{printable(parts)}: unit {self.unit} is not as it was written: its checksum is {digest.hexdigest()}, "
                f"its mark says {self.xxh3}",
                code="job-damaged",
            )


class Written:
    """Notes the ranges that are written, adjoining ones joined, and digests them where that is asked for."""

    def __init__(self, *, checksum: bool) -> None:
        self.ranges: list[Unit] = []
        self._digest = xxhash.xxh3_128() if checksum else None

    def add(self, file: str, begin: int, data: memoryview) -> None:
        """Take bytes as they are written."""
        if self._digest is not None:
            self._digest.update(data)
        end = begin + len(data)
        if self.ranges and self.ranges[-1].file == file and self.ranges[-1].end == begin:
            begin = self.ranges.pop().begin
        if end > begin:
            self.ranges.append(Unit(file, begin, end))

    def mark(self, unit: int, fused: Fused) -> Mark:
        """The mark of all that was taken."""
        counts = dict(fused.nonfinite), dict(fused.unencodable)
        checksum = self._digest.hexdigest() if self._digest is not None else None
        return Mark(unit, tuple(self.ranges), checksum, *counts, fused.loss)


def write_durably(path: Path, text: str) -> None:
    """Write a small file that is there whole or not at all. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
