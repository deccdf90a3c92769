"""Files that say what ``fuse-many`` is to make: a table for each output, in TOML."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ltx2c.errors import RefusedError, printable
from ltx2c.files.hub import is_hub_name
from ltx2c.files.url import is_url

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_jobs(path: str | os.PathLike[str]) -> dict[str, list[tuple[str, float]]]:
    """What a file of jobs says: where each result goes -> its adapters with their strengths.

    A table's name is the result's path; ``loras`` lists ``[path, strength]``, ``[path]`` or ``path``. Paths that are
    not absolute are meant from the file's folder; URLs and ``hf://`` names are themselves.

    Raises:
        OSError: it cannot be read.
        RefusedError: ``bad-jobs``: it is no TOML, or says something else; the line names the file and the table.
    """
    file = Path(path)
    try:
        document = tomllib.loads(file.read_bytes().decode())
    except ValueError as error:  # of TOML, or of UTF-8
        raise RefusedError(f"{printable(file)}: no TOML: {printable(error)}", code="bad-jobs") from None
    if not document:
        raise RefusedError(f"{printable(file)}: it names no output", code="bad-jobs")
    return {_placed(file, out): _loras(file, out, table) for out, table in document.items()}


def _placed(file: Path, name: str) -> str:
    # Not by way of Path, which would drop the slash that says a folder is meant.
    if not name or is_hub_name(name) or is_url(name):
        return name
    return os.path.join(file.parent, name)  # noqa: PTH118


def _loras(file: Path, out: str, table: Any) -> list[tuple[str, float]]:
    where = f'{printable(file)}: ["{printable(out)}"]'
    if not isinstance(table, dict):
        raise RefusedError(f"{where} is no table of an output", code="bad-jobs")
    unknown = [name for name in table if name != "loras"]
    if unknown or not isinstance(table.get("loras"), list) or not table["loras"]:
        what = f"has {printable(unknown[0])}, which means nothing here" if unknown else "lacks a list of loras"
        raise RefusedError(f"{where} {what}", code="bad-jobs")
    return [_lora(file, where, one) for one in table["loras"]]


def _lora(file: Path, where: str, given: Any) -> tuple[str, float]:
    path, strength = given if isinstance(given, list) and len(given) == 2 else (given, 1.0)
    if isinstance(path, list) and len(path) == 1:
        (path,) = path
    if not isinstance(path, str) or not path or isinstance(strength, bool) or not isinstance(strength, (int, float)):
        shown = printable(repr(given))
        raise RefusedError(f"{where}: a lora is [path, strength], [path] or path, not {shown}", code="bad-jobs")
    return _placed(file, path), float(strength)
