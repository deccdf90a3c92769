"""Where models, LoRAs and fused files are, by ComfyUI's folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import folder_paths

# ComfyUI's folders of models that LoRAs are for; a base's name begins with its folder's.
KINDS = ("checkpoints", "diffusion_models")

_SUFFIXES = (".safetensors", ".sft")
_READABLE = 150  # bytes of a name, before those that tell it from others; 255 are what file systems take


def choices(kinds: Sequence[str]) -> list[str]:
    """The files that ltx2c reads in ComfyUI's folders of these kinds; of several, with the kind before the name."""
    before = {kind: f"{kind}/" if len(kinds) > 1 else "" for kind in kinds}
    return [
        before[kind] + name
        for kind in kinds
        for name in folder_paths.get_filename_list(kind)
        if name.lower().endswith(_SUFFIXES)
    ]


def lora_path(name: str) -> Path:
    """A LoRA's file. Raises FileNotFoundError as ComfyUI does."""
    return Path(folder_paths.get_full_path_or_raise("loras", name))


def base_path(base: str) -> Path:
    """A base's file. Raises FileNotFoundError as ComfyUI does."""
    return Path(folder_paths.get_full_path_or_raise(*base.split("/", 1)))


def state(path: Path) -> str:
    """What changes when the file does: ComfyUI then runs the node again."""
    now = path.stat()
    return f"{now.st_size} {now.st_mtime_ns} {now.st_ino}"


def fused_path(
    base: str, loras: Sequence[tuple[str, float]], arithmetic: str, folder: str = "ltx2c", name: str = ""
) -> Path:
    """Where the fused file is or is to be.

    Raises:
        ValueError: ``folder`` is none that ComfyUI knows for such models, or ``name`` no plain name.
    """
    kind = base.split("/", 1)[0]
    folders = [Path(one) for one in folder_paths.get_folder_paths(kind)]
    of_base = next(one for one in folders if base_path(base).is_relative_to(one))
    known = [one.resolve() for one in folders]
    place = (of_base / folder.strip()).resolve()
    # A workflow may come from anybody: like ComfyUI's own savers, this writes in ComfyUI's folders only.
    if not any(place.is_relative_to(one) for one in known):
        raise ValueError(
            f"folder: '{folder}' is in none of ComfyUI's folders for {kind} ({', '.join(map(str, known))}); "
            "extra_model_paths.yaml adds folders"
        )
    name = name.strip() or _name(base, loras, arithmetic)
    if name in (".", "..") or {"/", "\\", "\0"} & set(name):
        raise ValueError(f"name: '{name}' is no plain file name")
    return place / (name if name.lower().endswith(_SUFFIXES) else f"{name}.safetensors")


def _name(base: str, loras: Sequence[tuple[str, float]], arithmetic: str) -> str:
    """For people to read, and unlike that of any other choice of files, strengths and arithmetic."""
    parts = [PurePosixPath(base).stem, *(f"{PurePosixPath(lora).stem}@{strength:g}" for lora, strength in loras)]
    exact = hashlib.sha256(json.dumps([base, loras, arithmetic]).encode()).hexdigest()
    readable = "+".join(parts).encode()[:_READABLE].decode(errors="ignore")
    return f"{readable}-{exact[:12]}"
