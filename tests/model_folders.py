"""Folders as diffusers and transformers save models, small and made by hand; and as a hub's cache holds them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from fusing import BF16, Tensors, adapter, expected, save, values

STEM = "diffusion_pytorch_model"
CONNECTORS = {"text_proj_in.weight": values(70, 24, 40), "text_proj_in.bias": values(71, 24)}


def transformer(seed: int = 0) -> dict[str, np.ndarray]:
    return {
        "proj_in.weight": values(seed + 1, 33, 65),
        "transformer_blocks.0.attn1.to_q.weight": values(seed + 2, 300, 128),
        "transformer_blocks.0.attn1.to_q.bias": values(seed + 3, 300),
        "transformer_blocks.1.attn1.to_q.weight": values(seed + 4, 300, 128, dtype=np.dtype(np.float16)),
    }


TARGETS = {"proj_in": (33, 7, 65), "transformer_blocks.0.attn1.to_q": (300, 16, 128)}


def make_adapter(path: Path, *, connectors: bool = False, seed: int = 100) -> tuple[Path, Tensors]:
    """An adapter in diffusers' spelling; its factors under the names that ``fusing.expected`` looks for."""
    factors = adapter(TARGETS, seed)
    named = {key.replace("diffusion_model.", "transformer."): value for key, value in factors.items()}
    if connectors:
        more = adapter({"text_proj_in": (24, 3, 40)}, seed + 50)
        named |= {key.replace("diffusion_model.", "connectors."): value for key, value in more.items()}
        factors |= more
    return save(path, named), factors


def component(folder: Path, tensors: Tensors, *, shards: int = 1, variant: str = "") -> Path:
    """A component's folder, as ``save_pretrained`` writes one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"_class_name": folder.name}))
    dotted = f".{variant}" if variant else ""
    if shards == 1:
        save(folder / f"{STEM}{dotted}.safetensors", tensors, {"format": "pt"})
        return folder
    names = [f"{STEM}{dotted}-{at + 1:05}-of-{shards:05}.safetensors" for at in range(shards)]
    weight_map = {key: names[at % shards] for at, key in enumerate(tensors)}
    for name in names:
        save(folder / name, {key: tensors[key] for key in tensors if weight_map[key] == name}, {"format": "pt"})
    index = {"metadata": {"total_size": sum(one.nbytes for one in tensors.values())}, "weight_map": weight_map}
    (folder / f"{STEM}.safetensors.index{dotted}.json").write_text(json.dumps(index))
    return folder


def pipeline(folder: Path, *, shards: int = 1, variant: str = "", plain_too: bool = False) -> Path:
    """A pipeline's folder with other components, an empty file, one of megabytes, and nested folders."""
    component(folder / "transformer", transformer(), shards=shards, variant=variant)
    if plain_too:
        component(folder / "transformer", transformer(5), shards=shards)
    component(folder / "connectors", CONNECTORS)
    component(folder / "vae", {"x": values(80, 9, 9, dtype=BF16)}, shards=2)
    names = ("transformer", "connectors", "vae", "tokenizer", "scheduler")
    index = {"_class_name": "LTX2Pipeline"} | {name: ["diffusers", "X"] for name in names}
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "tokenizer" / "deep" / "er").mkdir(parents=True)
    (folder / "tokenizer" / "deep" / "er" / "empty.txt").write_bytes(b"")
    (folder / "tokenizer" / "tokenizer.json").write_bytes(os.urandom(3 << 20))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    (folder / "README.md").write_text("---\nlicense: other\n---\n")
    return folder


def in_a_cache(folder: Path, cache: Path, repo: str = "org/model") -> Path:
    """A copy of a folder as huggingface_hub keeps it: a snapshot of links to blobs. The snapshot's path."""
    home = cache / f"models--{repo.replace('/', '--')}"
    commit = "c" * 40
    (home / "blobs").mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    snapshot = home / "snapshots" / commit
    for number, path in enumerate(sorted(one for one in folder.rglob("*") if one.is_file())):
        blob = home / "blobs" / f"{number:064x}"
        blob.write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: files' contents, where links lead."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def fused(factors: Tensors, strength: float = 0.8, tensors: Tensors | None = None) -> dict[str, np.ndarray]:
    """What fusing must give, by the reference."""
    return expected(transformer() if tensors is None else tensors, [(factors, strength)])
