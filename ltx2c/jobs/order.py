"""What a job is to make: a value that lies in its folder, as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltx2c.engines.units import Unit
from ltx2c.errors import RefusedError, printable
from ltx2c.files.layout import OutputLayout
from ltx2c.plan import Plan
from ltx2c.prepare import OutputForm
from ltx2c.version import __version__

VERSION_KEY = "ltx2c_job"
VERSION = 1


@dataclass(frozen=True)
class Order:
    """A fuse, cut into units.

    Attributes:
        plan: what to fuse into what.
        out: where the result goes, absolute.
        force, allow_nonfinite: as for ``fuse_checkpoint``.
        form: of the result.
        checksums: whether units are marked with checksums of their bytes, for others to compare.
        units: that together make the result, but for its headers.
        headers_sha256: hex digest of those, which another version of the program would write otherwise.
    """

    plan: Plan
    out: Path
    force: bool
    allow_nonfinite: bool
    form: OutputForm
    checksums: bool
    units: tuple[Unit, ...]
    headers_sha256: str

    def unit_bytes(self, number: int) -> int:
        """How large a unit is."""
        _, begin, end = self.units[number]
        return end - begin

    def to_json(self) -> str:
        """As a JSON text."""
        return json.dumps({VERSION_KEY: VERSION, "program": __version__, **self._as_json()})

    def _as_json(self) -> dict[str, Any]:
        own = {"plan": json.loads(self.plan.to_json()), "out": str(self.out), "form": asdict(self.form)}
        return {**vars(self), **own}

    def difference(self, asked: Order) -> str | None:
        """Where another order asks for another result, with both values; None where it asks for the same.

        Units, and what may be done with the result, are no part of it; nor are numbers of inodes, which some file
        systems change by themselves.
        """
        ours, theirs = dict(_leaves(self._as_json())), dict(_leaves(asked._as_json()))
        for name in (*ours, *theirs):
            if ours.get(name) != theirs.get(name):
                path = ours.get(f"{name.rpartition('.')[0]}.path")  # of a file that is another now
                where = f"{printable(path)}: " if path else ""
                return f"{where}{name} was {printable(ours.get(name))}, is {printable(theirs.get(name))}"
        return None

    @classmethod
    def from_json(cls, text: str, where: Path) -> Order:
        """What ``to_json`` wrote.

        Raises:
            RefusedError: ``bad-job``, naming the file; ``bad-plan``.
        """
        try:
            told = json.loads(text)
            if told.pop(VERSION_KEY) != VERSION:
                raise ValueError("it is of another version")
            told.pop("program")
            plan = Plan.from_json(json.dumps(told.pop("plan")))
            form = told.pop("form")
            form = OutputForm(**{**form, "adapter_sha256": form["adapter_sha256"] and tuple(form["adapter_sha256"])})
            out, units = Path(told.pop("out")), tuple(Unit(str(f), int(b), int(e)) for f, b, e in told.pop("units"))
            return cls(plan=plan, out=out, form=form, units=units, **told)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RefusedError(f"{printable(where)}: no order of a job: {printable(error)}", code="bad-job") from None

    @classmethod
    def read(cls, path: Path) -> Order:
        """From a job's file.

        Raises:
            OSError: it cannot be read.
            RefusedError: ``no-job``: there is none; ``bad-job``.
        """
        try:
            return cls.from_json(path.read_text(), path)
        except FileNotFoundError:
            raise RefusedError(f"{printable(path.parent)}: no job: it has no {path.name}", code="no-job") from None

    def check_layout(self, layout: OutputLayout) -> None:
        """Make sure that this program lays the result out as the one that made the order. Raises RefusedError."""
        if headers_digest(layout) != self.headers_sha256:
            raise RefusedError(
                f"the job was created by another version of ltx2c than {__version__}, which lays its result out "
                "otherwise",
                code="job-other-version",
            )


_NOT_COMPARED = ("device", "inode", "units", "force", "allow_nonfinite", "headers_sha256")


def _leaves(told: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The single values in a JSON value, each with its place."""
    if isinstance(told, Mapping):
        inner = [(f"{name}.{key}" if name else str(key), one) for key, one in told.items() if key not in _NOT_COMPARED]
    elif isinstance(told, (list, tuple)):
        inner = [(f"{name}[{number}]", one) for number, one in enumerate(told)]
    else:
        yield name, told
        return
    for place, one in inner:
        yield from _leaves(one, place)


def headers_digest(layout: OutputLayout) -> str:
    """Of the headers of all files."""
    return hashlib.sha256(b"".join(file.header for file in layout.files)).hexdigest()
