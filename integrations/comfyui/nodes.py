"""The nodes: a LoRA with its strength, and the model that a list of them is fused into."""

from __future__ import annotations

import comfy.sd
from comfy_api.latest import io

from .places import KINDS, base_path, choices, fused_path, lora_path, state
from .work import fuse

# A list of (LoRA, strength), in fusion order.
Loras = io.Custom("LTX2C_LORAS")

DESCRIPTION = (
    "Fuses LoRAs into a model's weights with ltx2c, on the CPU, into a file that the next run finds and reuses, and "
    "loads that file as ComfyUI loads any other. The bytes are not those of ComfyUI's own LoRA loaders: on most GPUs "
    "these patch in float16, where bfloat16 weights below 6e-5 lose bits and values above 65504 become infinite, so "
    "what comes out depends on the device. Here every byte follows from a written contract, the same on every machine, "
    "and ComfyUI has nothing left to patch each time it loads the model."
)


class LoraToFuse(io.ComfyNode):
    """Appends a LoRA with a strength to a list."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Ltx2cLoraToFuse",
            display_name="LoRA to fuse (ltx2c)",
            category="loaders/ltx2c",
            description="A LoRA with its strength, for the node that fuses. Chain several: the order counts.",
            inputs=[
                io.Combo.Input("lora", options=choices(["loras"])),
                # Not rounded to steps, as ComfyUI rounds by default: 0.0625 is to be 0.0625.
                io.Float.Input("strength", default=1.0, min=-100.0, max=100.0, step=0.01, round=0.000001),
                Loras.Input("before", optional=True, tooltip="LoRAs that are fused before this one"),
            ],
            outputs=[Loras.Output(display_name="loras")],
        )

    @classmethod
    def execute(cls, lora: str, strength: float, before: tuple[tuple[str, float], ...] = ()) -> io.NodeOutput:
        return io.NodeOutput((*before, (lora, strength)))

    @classmethod
    def fingerprint_inputs(cls, lora: str, **others: object) -> str:
        return state(lora_path(lora))


class FusedModel(io.ComfyNode):
    """Makes the fused file, or finds it, and loads it."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Ltx2cFusedModel",
            display_name="Load model with LoRAs fused (ltx2c)",
            category="loaders/ltx2c",
            description=DESCRIPTION,
            inputs=[
                io.Combo.Input("base", options=choices(KINDS), tooltip="The model to fuse into; it stays as it is"),
                Loras.Input("loras"),
                io.Combo.Input(
                    "arithmetic",
                    options=["ltx", "f32"],
                    default="ltx",
                    tooltip="ltx: with the roundings of LTX's own code, through bfloat16. f32: rounded once, which is "
                    "what ComfyUI means where it patches in float32",
                ),
                io.Combo.Input(
                    "unmatched",
                    options=["error", "warn"],
                    default="error",
                    tooltip="A LoRA's key without a weight in the base: refuse, or go on and say so in the log",
                ),
                io.String.Input(
                    "folder",
                    default="ltx2c",
                    tooltip="Where fused files are kept: a folder in the one that ComfyUI has for the base's kind of "
                    "model, or the full path of another that it knows for it (see extra_model_paths.yaml)",
                ),
                io.String.Input(
                    "name",
                    default="",
                    tooltip="The fused file's name; empty: made of the base's, the LoRAs' and their strengths, so each "
                    "choice of these has a file of its own",
                ),
                io.Boolean.Input(
                    "replace",
                    default=False,
                    tooltip="Make the file anew where one of that name stands and was made of something else; "
                    "otherwise that is refused",
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        base: str,
        loras: tuple[tuple[str, float], ...],
        arithmetic: str,
        unmatched: str,
        folder: str,
        name: str,
        replace: bool,
    ) -> io.NodeOutput:
        path = fused_path(base, loras, arithmetic, folder, name)
        adapters = [(lora_path(lora), strength) for lora, strength in loras]
        fuse(base_path(base), adapters, path, arithmetic=arithmetic, unmatched=unmatched, replace=replace)
        return io.NodeOutput(_load(base, str(path)))

    @classmethod
    def fingerprint_inputs(cls, base: str, **others: object) -> str:
        return state(base_path(base))


def _load(base: str, path: str) -> object:
    """As ComfyUI's own loader for the base's kind of model does."""
    if base.startswith("checkpoints/"):
        return comfy.sd.load_checkpoint_guess_config(path, output_vae=False, output_clip=False)[0]
    return comfy.sd.load_diffusion_model(path)
