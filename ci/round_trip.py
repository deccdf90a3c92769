"""An adapter round through other tools: diffusers and PEFT save it for a tiny LTX-2, diffusers runs what is fused.

The output of the model loaded from ltx2c's file, on one random input, must be that of diffusers' own fused model, up to
rounding. Of a base in one file and of one in shards. Needs the extra ``clients``; says NOT RUN without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ltx2c import execute, plan_fuse

sys.path[0] = str(Path(__file__).parents[1] / "tests")  # and not ci/, which has a diffusers.py
from tiny_ltx2 import TINY  # noqa: E402

TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "net.2"]
STRENGTH = 0.8


def main() -> int:
    try:
        import torch
        from diffusers import LTX2VideoTransformer3DModel
        from peft import LoraConfig
    except ImportError as error:
        print(f"round trip: NOT RUN: {error}; pip install '.[clients]'")
        return 0
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        model = LTX2VideoTransformer3DModel(**TINY).eval()
        model.save_pretrained(folder / "single")
        model.save_pretrained(folder / "sharded", max_shard_size="50KB")
        model.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
        for key, values in model.named_parameters():
            if "lora_" in key:
                values.normal_(std=0.2)
        model.save_lora_adapter(folder / "lora")
        before = _output(model, scale=0.0)
        model.fuse_lora(lora_scale=STRENGTH)
        expected = _output(model)
        for base in ("single", "sharded"):
            _check(LTX2VideoTransformer3DModel, folder, base, before, expected)
    return 0


def _check(model_class: Any, folder: Path, base: str, before: Any, expected: Any) -> None:
    (adapter,) = (folder / "lora").glob("*.safetensors")
    out = folder / f"{base}-fused"
    out.mkdir()
    (out / "config.json").write_text((folder / base / "config.json").read_text())
    weights = folder / base / "diffusion_pytorch_model.safetensors"
    if weights.exists():
        execute(plan_fuse(weights, [(adapter, STRENGTH)], arithmetic="f32"), out / weights.name)
    else:
        written = folder / f"{base}-written"
        execute(plan_fuse(folder / base, [(adapter, STRENGTH)], arithmetic="f32"), written)
        for path in written.iterdir():
            path.rename(out / path.name)
    fused = _output(model_class.from_pretrained(out).eval())
    largest = max(float(one.abs().max()) for one in expected)
    error = max(float((one - other).abs().max()) for one, other in zip(fused, expected, strict=True))
    effect = max(float((one - other).abs().max()) for one, other in zip(before, expected, strict=True))
    share, change = f"{error / largest:.1e}", f"{effect / largest:.1e}"
    print(f"round trip, {base}: largest difference {share} of the output; the adapter changes it by {change}")
    if not error < 1e-4 * largest < effect:
        raise SystemExit(f"round trip, {base}: the fused model's output is not diffusers' own")


def _output(model: Any, scale: float = 1.0) -> tuple[Any, Any]:
    import torch

    if scale == 0.0:
        model.disable_adapters()
    noise = torch.Generator().manual_seed(1)
    frames, height, width, audio = 2, 2, 2, 3
    video_tokens = frames * height * width
    found = model(
        hidden_states=torch.randn(1, video_tokens, 8, generator=noise),
        audio_hidden_states=torch.randn(1, audio, 8, generator=noise),
        encoder_hidden_states=torch.randn(1, 4, 12, generator=noise),
        audio_encoder_hidden_states=torch.randn(1, 4, 12, generator=noise),
        timestep=torch.full((1, video_tokens), 500.0),
        audio_timestep=torch.full((1, audio), 500.0),
        num_frames=frames,
        height=height,
        width=width,
        audio_num_frames=audio,
        return_dict=False,
    )
    if scale == 0.0:
        model.enable_adapters()
    return found[0], found[1]


if __name__ == "__main__":
    sys.exit(main())
