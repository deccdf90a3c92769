"""Folders in, folders out, with the real diffusers: a tiny random LTX-2, on a CPU, with sockets blocked.

Single, sharded, variant and cache-of-links pipelines are fused by the command line and loaded by ``from_pretrained``, a
file with upstream's names by ``from_single_file``; every tensor must be the reference's, byte for byte, all other
components identical, and the cache as it was. Then a fuse of a folder is killed at random moments.

It makes an environment of its own with pinned versions, beside the torch that runs this; where that cannot be had it
says NOT RUN and why.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1] / "tests")  # and not ci/, where this file would be taken for diffusers
from tiny_ltx2 import TINY  # noqa: E402

PINNED = ["diffusers==0.42.1", "transformers==5.24.0", "peft==0.21.2", "accelerate==1.15.0"]
INSIDE = "LTX2C_CI_DIFFUSERS"
STRENGTH = 0.8
KILLS = 40
# Components too large to make up: a pipeline that is given them as None goes on without.
MISSING = (
    "vae",
    "audio_vae",
    "text_encoder",
    "vocoder",
    "tokenizer",
    "processor",
    "prompt_enhancer",
    "duration_head",
)
CONNECTORS = {
    "caption_channels": 12,
    "text_proj_in_factor": 2,
    "video_connector_num_attention_heads": 2,
    "video_connector_attention_head_dim": 6,
    "video_connector_num_layers": 1,
    "video_connector_num_learnable_registers": 4,
    "audio_connector_num_attention_heads": 2,
    "audio_connector_attention_head_dim": 6,
    "audio_connector_num_layers": 1,
    "audio_connector_num_learnable_registers": 4,
}


def main() -> int:
    """Make the environment; in it run this file again, and the round trip of an adapter."""
    with tempfile.TemporaryDirectory(prefix="ltx2c-diffusers-") as name:
        home = Path(name) / "venv"
        venv.create(home, with_pip=True)
        python = home / "bin" / "python"
        pth = next(home.glob("lib/python*/site-packages")) / "outer.pth"
        outer = [path for path in sys.path if path.endswith("site-packages")]
        pth.write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in outer))
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINNED],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            print(f"diffusers: NOT RUN: {' '.join(PINNED)} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
            return 0
        environment = {**os.environ, INSIDE: name, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": f"{name}/cache"}
        environment |= {"TQDM_DISABLE": "1", "DIFFUSERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        scripts = (Path(__file__), Path(__file__).with_name("round_trip.py"))
        return max(subprocess.run([python, script], env=environment, timeout=600).returncode for script in scripts)


def inside(home: Path) -> int:
    import torch

    _block_sockets()
    torch.manual_seed(0)
    lora = _adapter(home / "lora.safetensors")
    cases = {
        "single": {},
        "sharded": {"max_shard_size": "50KB"},
        "variant": {"variant": "bf16"},
        "sharded variant": {"variant": "bf16", "max_shard_size": "50KB"},
    }
    for case, saved in cases.items():
        folder = home / case.replace(" ", "-")
        _save_pipeline(folder, **saved)
        _check(case, folder, str(folder), home / f"{folder.name}-out", lora, saved.get("variant"))
    _check_cache(home, lora)
    _check_side_by_side(home, lora)
    _check_single_file(home, lora)
    _check_kills(home / "sharded", home / "killed", lora)
    return 0


def _block_sockets() -> None:
    def blocked(*words: object, **named: object) -> Any:
        raise AssertionError("a socket was asked for")

    socket.socket.connect = socket.create_connection = socket.getaddrinfo = blocked  # type: ignore[assignment,method-assign]


def _models() -> tuple[Any, Any]:
    import torch
    from diffusers import LTX2VideoTransformer3DModel
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    torch.manual_seed(1)
    return LTX2VideoTransformer3DModel(**TINY).bfloat16(), LTX2TextConnectors(**CONNECTORS).bfloat16()


def _save_pipeline(folder: Path, **saved: Any) -> None:
    """As ``save_pretrained`` lays it out, with the components that are small enough to make up."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    transformer, connectors = _models()
    transformer.save_pretrained(folder / "transformer", **saved)
    connectors.save_pretrained(folder / "connectors", **saved)
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_bytes(os.urandom(100_000))
    index = {
        "_class_name": "LTX2Pipeline",
        "_diffusers_version": "0.42.1",
        "transformer": ["diffusers", "LTX2VideoTransformer3DModel"],
        "connectors": ["ltx2", "LTX2TextConnectors"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        **dict.fromkeys(MISSING, (None, None)),
    }
    (folder / "model_index.json").write_text(json.dumps(index))


def _adapter(path: Path) -> Path:
    """For some of the transformer and one of the connectors, as diffusers names them."""
    import torch
    from safetensors.torch import save_file

    factors = {}
    for prefix, model in zip(("transformer", "connectors"), _models(), strict=True):
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name.endswith(("to_q", "to_v", "net.2", "text_proj_in")):
                out, into = module.weight.shape
                factors[f"{prefix}.{name}.lora_A.weight"] = (torch.randn(4, into) * 0.1).bfloat16()
                factors[f"{prefix}.{name}.lora_B.weight"] = (torch.randn(out, 4) * 0.1).bfloat16()
    save_file(factors, path)
    return path


def _expected(prefix: str, tensors: dict[str, Any], lora: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    from ltx2c import reference

    factors = load_file(lora)
    made = {}
    for key, weight in tensors.items():
        module = f"{prefix}.{key.removesuffix('.weight')}"
        a, b = factors.get(f"{module}.lora_A.weight"), factors.get(f"{module}.lora_B.weight")
        made[key] = weight if a is None else reference.fuse_tensor(_array(weight), [(_array(a), _array(b), STRENGTH)])
    return made


def _array(tensor: Any) -> Any:
    import ml_dtypes
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _bytes(value: Any) -> bytes:
    return value.tobytes() if hasattr(value, "tobytes") else _array(value).tobytes()


def _fuse(base: str, out: Path, lora: Path, *words: str) -> None:
    from ltx2c.cli import main as command

    code = command(["fuse", base, "--lora", str(lora), str(STRENGTH), "-o", str(out), "--quiet", *words])
    assert code == 0, f"ltx2c fuse ended with {code}"


def _check(case: str, folder: Path, base: str, out: Path, lora: Path, variant: str | None, *words: str) -> None:
    """Fuse ``base``, which holds what ``folder`` does, and load what came out."""
    import torch
    from diffusers import LTX2VideoTransformer3DModel
    from diffusers.pipelines.ltx2 import LTX2Pipeline, LTX2TextConnectors

    _fuse(base, out, lora, *words)
    compared = 0
    options = {"dtype": torch.bfloat16, "variant": variant, "local_files_only": True}
    loaded = LTX2Pipeline.from_pretrained(out, **options, **dict.fromkeys(MISSING))
    classes = {"transformer": LTX2VideoTransformer3DModel, "connectors": LTX2TextConnectors}
    for part, kind in classes.items():
        given = kind.from_pretrained(folder, subfolder=part, **options).state_dict()
        wanted = _expected(part, given, lora)
        got = getattr(loaded, part).state_dict()
        assert got.keys() == wanted.keys(), case
        for key in wanted:
            assert _bytes(got[key]) == _bytes(wanted[key]), f"{case}: {part}: {key}"
        changed = sum(_bytes(given[key]) != _bytes(got[key]) for key in got)
        assert changed, f"{case}: nothing was fused into {part}"
        compared += len(got)
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in classes:
            assert (out / name).read_bytes() == path.read_bytes(), f"{case}: {name}"
    assert not any(path.is_symlink() for path in out.rglob("*")), case
    print(f"diffusers, {case}: {compared} tensors loaded by from_pretrained are the reference's, siblings identical")


def _check_cache(home: Path, lora: Path) -> None:
    from model_folders import in_a_cache, tree

    in_a_cache(home / "sharded", home / "cache")
    before = tree(home / "cache")
    _check("a cache of links", home / "sharded", "hf://org/model", home / "cache-out", lora, None)
    assert tree(home / "cache") == before, "the cache changed"


def _check_side_by_side(home: Path, lora: Path) -> None:
    from ltx2c.cli import main as command

    folder = home / "both"
    _save_pipeline(folder)
    for part, model in zip(("transformer", "connectors"), _models(), strict=True):
        model.save_pretrained(folder / part, variant="bf16")
    assert command(["fuse", str(folder), "--lora", str(lora), "-o", str(home / "x"), "--quiet"]) == 2
    _check("side by side", folder, str(folder), home / "both-out", lora, "bf16", "--variant", "bf16")


def _check_single_file(home: Path, lora: Path) -> None:
    import torch
    from diffusers import LTX2VideoTransformer3DModel
    from safetensors.torch import load_file, save_file

    from ltx2c.adapters.names import to_original

    transformer, _ = _models()
    tensors = {f"model.diffusion_model.{to_original(key)}": value for key, value in transformer.state_dict().items()}
    save_file(tensors, home / "monolith.safetensors")
    factors = {key: value for key, value in load_file(lora).items() if key.startswith("transformer.")}
    save_file(factors, home / "transformer-lora.safetensors")
    _fuse(str(home / "monolith.safetensors"), home / "fused.safetensors", home / "transformer-lora.safetensors")
    loaded = LTX2VideoTransformer3DModel.from_single_file(
        str(home / "fused.safetensors"),
        config=str(home / "single"),
        subfolder="transformer",
        torch_dtype=torch.bfloat16,
        local_files_only=True,
    ).state_dict()
    wanted = _expected("transformer", transformer.state_dict(), lora)
    assert loaded.keys() == wanted.keys()
    for key in wanted:
        assert _bytes(loaded[key]) == _bytes(wanted[key]), f"monolith: {key}"
    print(f"diffusers, monolith: {len(wanted)} tensors loaded by from_single_file are the reference's")


def _check_kills(base: Path, out: Path, lora: Path) -> None:
    from destinations import temporaries
    from model_folders import tree

    from ltx2c.api import fuse_checkpoint

    def start() -> int:
        child = os.fork()
        if child == 0:
            try:
                fuse_checkpoint(base, [(lora, STRENGTH)], out, threads=1)
            finally:
                os._exit(0)
        return child

    began = time.perf_counter()
    os.waitpid(start(), 0)
    seconds, whole = time.perf_counter() - began, tree(out)
    counts = {"absent": 0, "whole": 0}
    for _ in range(KILLS):
        if out.exists():
            subprocess.run(["rm", "-r", str(out)], check=True)
        child = start()
        time.sleep(random.uniform(0, 1.1 * seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not out.exists() or tree(out) == whole, "a part of the folder is there"
        counts["whole" if out.exists() else "absent"] += 1
    if not out.exists():
        os.waitpid(start(), 0)
    assert tree(out) == whole and not temporaries(out), "something is left of killed runs"
    print(f"diffusers: {KILLS} kills while a folder was made: {counts}, and nothing left")


if __name__ == "__main__":
    sys.exit(inside(Path(os.environ[INSIDE])) if INSIDE in os.environ else main())
