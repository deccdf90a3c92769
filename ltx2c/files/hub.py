"""Hub names, ``hf://ORG/REPO[@REVISION][/FILE]``, found in the Hugging Face cache on this disk. Nothing is downloaded.

The cache's layout is the one that huggingface_hub documents ("Understand caching"): ``models--ORG--REPO/refs/NAME``
holds the commit that a branch or tag stood at, ``models--ORG--REPO/snapshots/COMMIT/`` the files of that commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from ltx2c.errors import RefusedError, printable

SCHEME = "hf://"

_NAME = r"(?!-|\.\.?(?:[/@]|\Z))[A-Za-z0-9._-]{1,96}"
# A Path has lost one of the slashes.
_URL = re.compile(rf"hf://?(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[^/]+))?(?:/(?P<file>.*))?", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"(?!/)(?:(?!\.\.?(?:/|\Z))[^/\0]+/?)+(?<!/)")


class HubName(NamedTuple):
    """A parsed name: repository ``ORG/REPO``, a branch, tag or full commit, and a file in it ("" for all of it)."""

    repo: str
    revision: str
    file: str

    @property
    def download_command(self) -> str:
        """The command that brings it into the cache."""
        revision = "" if self.revision == "main" else f" --revision {self.revision}"
        return f"hf download {self.repo}{f' {self.file}' if self.file else ''}{revision}"


def is_hub_name(given: str | os.PathLike[str]) -> bool:
    """Whether ``given`` names something on the hub and not on this disk."""
    return os.fspath(given).startswith(SCHEME[:-1])


def repository_of(folder_name: str) -> str | None:
    """The repository ``ORG/REPO`` that a cache keeps in a folder of this name; None where it is no such name."""
    match = re.fullmatch(rf"models--({_NAME}?)--({_NAME})", folder_name)
    return f"{match[1]}/{match[2]}" if match else None


def parse_hub_name(given: str) -> HubName:
    """Take a hub name apart. A revision with a slash is written with ``%2F``, as ``HfFileSystem`` does.

    Raises:
        RefusedError: ``hub-name``: it is not of that form, or its file would lie outside the repository.
    """
    match = _URL.fullmatch(given)
    if match is None:
        _refuse(given, "a hub name is hf://ORG/REPO[@REVISION][/FILE]")
    revision = "main" if match["revision"] is None else unquote(match["revision"])
    if not _REVISION.fullmatch(revision):
        _refuse(given, f"{printable(revision)} cannot be a revision")
    file = (match["file"] or "").rstrip("/")
    if "\0" in file or any(part in ("", ".", "..") for part in file.split("/") if file):
        _refuse(given, f"{printable(file)} is no file of a repository")
    return HubName(match["repo"], revision, file)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps its cache: ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else in the user's cache."""
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or f"{caches}/huggingface").expanduser() / "hub"


def cached_path(given: str) -> Path:
    """The file or snapshot folder that a hub name means, in the cache.

    Raises:
        RefusedError: ``hub-name``, as ``parse_hub_name`` says; ``not-in-cache``, saying which command brings it there.
        OSError: the cache cannot be read.
    """
    name = parse_hub_name(given)
    folder = cache_folder() / f"models--{name.repo.replace('/', '--')}"
    commit = _commit(folder, name.revision)
    path = folder / "snapshots" / commit / name.file if commit else None
    if path is None or not path.exists():
        raise RefusedError(
            f"{printable(given)}: not in the cache {printable(cache_folder())}; nothing is downloaded here: "
            f"{printable(name.download_command)}",
            code="not-in-cache",
        )
    return path


def _commit(folder: Path, revision: str) -> str | None:
    """The commit that a revision stood at when it was last downloaded; None where it never was."""
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        commit = folder.joinpath("refs", revision).read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _refuse(given: str, why: str) -> NoReturn:
    raise RefusedError(f"{printable(given)}: {why}", code="hub-name")
