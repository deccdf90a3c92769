"""Key formats as data: every way of spelling a module and a tensor of it that adapter files use.

A new namespace is a row in ``PREFIXES``, a new spelling of a tensor one in ``ENDINGS``, another name for the same
module one in ``TOP_NAMES`` or ``PART_NAMES``. ``LOOKALIKES`` names what is recognised and not fused.
"""

from __future__ import annotations

from typing import Literal

Role = Literal[
    "A",
    "B",
    "mid",
    "B.bias",
    "alpha",
    "dora_scale",
    "magnitude",
    "hada_w1_a",
    "hada_w1_b",
    "hada_w2_a",
    "hada_w2_b",
    "hada_t1",
    "hada_t2",
    "lokr_w1",
    "lokr_w1_a",
    "lokr_w1_b",
    "lokr_w2",
    "lokr_w2_a",
    "lokr_w2_b",
    "lokr_t2",
    "diff",
    "diff_b",
    "diff_m",
    "w_norm",
    "b_norm",
    "whole_weight",
    "whole_bias",
]

# Namespaces before a module's name, in adapters and in bases. Removed at a key's start only, again and again: PEFT's
# is seen before diffusers'.
PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "connectors.", "unet.")

# Namespaces after which the path's dots are written as underscores: kohya, musubi-tuner, OneTrainer, LyCORIS.
UNDERSCORED_PREFIXES = ("lora_unet_", "lora_transformer_", "lycoris_")

# PEFT stores what it trained whole under its own namespace.
PEFT_PREFIX = "base_model.model."

# How a key ends -> the role of that tensor for its module. The first that fits counts.
ENDINGS: dict[str, Role] = {
    # Lightricks' trainer, ai-toolkit, SimpleTuner, diffusers, PEFT; DiffSynth and PEFT name the adapter "default".
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_A.default.weight": "A",
    ".lora_B.default.weight": "B",
    ".lora_B.bias": "B.bias",
    ".lora_B.default.bias": "B.bias",
    # kohya's sd-scripts, musubi-tuner, lightx2v, LyCORIS
    ".lora_down.weight": "A",
    ".lora_up.weight": "B",
    ".lora_down.default.weight": "A",
    ".lora_up.default.weight": "B",
    ".lora_mid.weight": "mid",
    # older diffusers and others
    "_lora.down.weight": "A",
    "_lora.up.weight": "B",
    ".lora.down.weight": "A",
    ".lora.up.weight": "B",
    ".lora_linear_layer.down.weight": "A",
    ".lora_linear_layer.up.weight": "B",
    ".lora_A": "A",
    ".lora_B": "B",
    ".alpha": "alpha",
    # LyCORIS
    ".dora_scale": "dora_scale",
    **{f".{role}": role for role in ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")},
    **{f".{role}": role for role in ("lokr_w1", "lokr_w1_a", "lokr_w1_b")},
    **{f".{role}": role for role in ("lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2")},
    **{f".{role}": role for role in ("diff", "diff_b", "diff_m", "w_norm", "b_norm")},
    # PEFT
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector.default.weight": "magnitude",
    ".base_layer.weight": "whole_weight",
    ".base_layer.bias": "whole_bias",
    ".modules_to_save.default.weight": "whole_weight",
    ".modules_to_save.default.bias": "whole_bias",
}

# Under PEFT's namespace, and nowhere else, these are tensors that were trained whole (modules_to_save, bias).
WHOLE_ENDINGS: dict[str, Role] = {".weight": "whole_weight", ".bias": "whole_bias"}

# What ``TARGETS`` does not name enters the weight.
TARGETS: dict[Role, str] = {
    "B.bias": "bias",
    "diff_b": "bias",
    "diff_m": "modulation",
    "b_norm": "bias",
    "whole_bias": "bias",
}

# Part of a key, between dots -> the kind that is recognised and not fused, whatever else the file holds.
NOT_FUSED = {
    ".glora_": "GLoRA",
    ".a1.weight.": "GLoRA",
    ".a2.weight.": "GLoRA",
    ".b1.weight.": "GLoRA",
    ".b2.weight.": "GLoRA",
    ".bm.weight.": "GLoRA",
    ".ia3_": "IA3",
    ".on_input.": "IA3",
    ".boft_": "BOFT",
    ".oft_": "OFT",
    ".vera_": "VeRA",
    ".lora_embedding_": "LoRA of an embedding",
    ".lora_E.": "AdaLoRA",
    ".ranknum.": "AdaLoRA",
    ".emb_params.": "a textual-inversion embedding",
    ".string_to_param.": "a textual-inversion embedding",
    ".trainable_tokens_": "trainable tokens of an embedding",
    ".randlora_": "RandLoRA",
    ".hra_": "HRA",
    ".set_weight.": "a whole weight to set",
    ".reshape_weight.": "a weight to be reshaped",
}

WHOLE_WEIGHT = "a whole weight"

# Part of a key, closed with a dot -> what a reader should be told it is. The first that fits speaks.
LOOKALIKES = {
    "lora_te": "a factor for a text encoder",
    "text_encoder": "a factor for a text encoder",
    ".lora_A": "a factor in another spelling",
    ".lora_B": "a factor or bias in another spelling",
    ".lora_down": "a factor in another spelling",
    ".lora_up": "a factor in another spelling",
    "_lora.": "a factor in an older spelling",
    ".lora.": "a factor in an older spelling",
    ".hada_": "a part of LoHa in another spelling",
    ".lokr_": "a part of LoKr in another spelling",
    ".weight.": WHOLE_WEIGHT,
    ".bias.": "a whole bias",
}

# One model, two sets of names: LTX-2's own and diffusers'. Of a name's first component,
TOP_NAMES = {
    "patchify_proj": "proj_in",
    "audio_patchify_proj": "audio_proj_in",
    "adaln_single": "time_embed",
    "audio_adaln_single": "audio_time_embed",
    "prompt_adaln_single": "prompt_adaln",
    "audio_prompt_adaln_single": "audio_prompt_adaln",
    "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
    "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
    "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
    "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
}
# of any component,
PART_NAMES = {
    "q_norm": "norm_q",
    "k_norm": "norm_k",
    "scale_shift_table_a2v_ca_video": "video_a2v_cross_attn_scale_shift_table",
    "scale_shift_table_a2v_ca_audio": "audio_a2v_cross_attn_scale_shift_table",
}
# and of a whole name.
WHOLE_NAMES = {"text_embedding_projection.aggregate_embed": "text_proj_in"}

# A fused projection -> the projections whose rows it holds, in this order.
FUSED_NAMES = {
    "qkv": ("q", "k", "v"),
    "to_qkv": ("to_q", "to_k", "to_v"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
    "kv": ("k", "v"),
    "to_kv": ("to_k", "to_v"),
}

# What tells who wrote a file: a pattern that is searched for in its keys -> the writer, and in words, why.
WRITERS = (
    (r"^base_model\.model\.", "PEFT", "its keys begin with base_model.model."),
    (r"^lycoris_", "LyCORIS", "its keys begin with lycoris_"),
    (r"^lora_transformer_", "OneTrainer", "its keys begin with lora_transformer_"),
    (r"^lora_unet_", "kohya's sd-scripts, musubi-tuner or LyCORIS", "its keys begin with lora_unet_"),
    (r"\.lora_[AB]\.default\.weight$", "DiffSynth", "its keys hold .default."),
    (r"^diffusion_model\..*\.diff(_[bm])?$", "lightx2v", "it holds full differences under diffusion_model."),
    (r"^transformer\..*\.lora_[AB]\.weight$", "diffusers or finetrainers", "its keys begin with transformer."),
    (r"^diffusion_model\..*\.lora_down\.weight$", "lightx2v", "lora_down under diffusion_model."),
    (r"^diffusion_model\..*\.alpha$", "ai-toolkit or SimpleTuner", ".alpha beside lora_A under diffusion_model."),
    (r"^diffusion_model\..*\.lora_A\.weight$", "Lightricks' trainer", "lora_A under diffusion_model., no alpha"),
    (r"(_lora|\.lora|lora_linear_layer)\.(up|down)\.weight$", "an older diffusers", "its factors are called up, down"),
)
