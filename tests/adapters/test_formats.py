"""Every way of spelling an adapter: one generated file each, fused, and equal to the reference fed with its pairs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from refusals import refused
from tensor_files import weight, write

from ltx2c import Checkpoint, fuse_checkpoint, reference

OUT, RANK, INTO = 12, 4, 10
A, B = weight(RANK, INTO, seed=1), weight(OUT, RANK, seed=2)
Q = "transformer_blocks.0.attn1.to_q"


class Format(NamedTuple):
    """How one writer spells a pair of ``module``, and what its alpha makes of strength 0.5."""

    a: str
    b: str
    base: str = f"model.diffusion_model.{Q}"
    alpha: str | None = None
    config: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    scale: float = 1.0


def _ab(prefix: str, module: str = Q, suffix: str = "weight") -> tuple[str, str]:
    return f"{prefix}{module}.lora_A.{suffix}", f"{prefix}{module}.lora_B.{suffix}"


def _kohya(name: str) -> tuple[str, str]:
    return f"{name}.lora_down.weight", f"{name}.lora_up.weight"


def _packed(**config: object) -> dict[str, str]:
    return {"lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in config.items()})}


_TABLE = "transformer_blocks.0.attn1.q_norm"
FORMATS = {
    "Lightricks": Format(*_ab("diffusion_model.")),
    "ComfyUI": Format(*_ab("model.diffusion_model."), base=Q),
    "ai-toolkit, SimpleTuner": Format(*_ab("diffusion_model."), alpha=f"diffusion_model.{Q}.alpha", scale=2 / RANK),
    "SimpleTuner, connectors": Format(*_ab("", "connectors.x.to_q"), base="connectors.x.to_q"),
    "SimpleTuner, text projection": Format(
        *_ab("", "text_embedding_projection.aggregate_embed"), base="text_embedding_projection.aggregate_embed"
    ),
    "DiffSynth": Format(*_ab("", Q, "default.weight")),
    "diffusers": Format(*_ab("transformer."), base=Q),
    "diffusers, metadata": Format(*_ab("transformer."), base=Q, metadata=_packed(r=4, lora_alpha=8), scale=2.0),
    "diffusers, rsLoRA": Format(
        *_ab("transformer."), base=Q, metadata=_packed(r=4, lora_alpha=8, use_rslora=True), scale=4.0
    ),
    "diffusers, pattern": Format(
        *_ab("transformer."),
        base=Q,
        metadata=_packed(r=9, lora_alpha=9, alpha_pattern={"attn1.to_q": 1}, rank_pattern={"attn1.to_q": 4}),
        scale=1 / 4,
    ),
    "PEFT": Format(*_ab("base_model.model."), base=Q, config={"r": 4, "lora_alpha": 16}, scale=4.0),
    "PEFT, rsLoRA": Format(
        *_ab("base_model.model."), base=Q, config={"r": 4, "lora_alpha": 16, "use_rslora": True}, scale=8.0
    ),
    "PEFT, doubled": Format(*_ab("base_model.model.transformer."), base=Q, config={"lora_alpha": 2}, scale=0.5),
    "kohya": Format(
        *_kohya(f"lora_unet_{Q.replace('.', '_')}"), alpha=f"lora_unet_{Q.replace('.', '_')}.alpha", scale=0.5
    ),
    "LyCORIS": Format(*_kohya(f"lycoris_{Q.replace('.', '_')}")),
    "OneTrainer": Format(*_kohya(f"lora_transformer_{Q.replace('.', '_')}")),
    "kohya, an underscored name": Format(
        *_kohya("lora_unet_audio_adaln_single_linear"), base="audio_adaln_single.linear"
    ),
    "kohya, diffusers names": Format(*_kohya("lora_unet_audio_time_embed_linear"), base="audio_adaln_single.linear"),
    "lightx2v": Format(*_kohya(f"diffusion_model.{Q}")),
    "lora_down.default": Format(f"{Q}.lora_down.default.weight", f"{Q}.lora_up.default.weight"),
    "older 1": Format(f"{Q}_lora.down.weight", f"{Q}_lora.up.weight"),
    "older 2": Format(f"{Q}.lora.down.weight", f"{Q}.lora.up.weight"),
    "older 3": Format(f"{Q}.lora_linear_layer.down.weight", f"{Q}.lora_linear_layer.up.weight"),
    "older 4": Format(f"{Q}.lora_A", f"{Q}.lora_B"),
    "older, processors": Format(
        "unet.m.attn1.processor.to_out_lora.down.weight",
        "unet.m.attn1.processor.to_out_lora.up.weight",
        base="unet.m.attn1.to_out.0",
    ),
    "diffusers names, original base": Format(*_ab("transformer.", "time_embed.linear"), base="adaln_single.linear"),
    "original names, diffusers base": Format(*_ab("diffusion_model.", "adaln_single.linear"), base="time_embed.linear"),
    "names inside a block": Format(*_ab("diffusion_model.", _TABLE), base="transformer_blocks.0.attn1.norm_q"),
    "gates": Format(
        *_ab("transformer.", "av_cross_attn_video_a2v_gate.linear"),
        base="model.diffusion_model.av_ca_a2v_gate_adaln_single.linear",
    ),
}


def write_adapter(folder: Path, spelling: Format) -> Path:
    tensors: dict[str, Any] = {spelling.a: A, spelling.b: B}
    if spelling.alpha is not None:
        tensors[spelling.alpha] = np.full((), 2, np.float32)
    if spelling.config is None:
        return write(folder / "lora.safetensors", tensors, spelling.metadata)
    (folder / "peft").mkdir()
    (folder / "peft" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **spelling.config}))
    write(folder / "peft" / "adapter_model.safetensors", tensors)
    return folder / "peft"


def read(path: Path) -> dict[str, np.ndarray]:
    with Checkpoint.open(path) as checkpoint:
        return {key: tensor.read() for key, tensor in checkpoint.tensors.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_is_fused_as_its_pair_at_its_strength(tmp_path: Path, name: str) -> None:
    spelling = FORMATS[name]
    base = {f"{spelling.base}.weight": weight(OUT, INTO), "model.diffusion_model.other.weight": weight(OUT, INTO)}
    path = write(tmp_path / "base.safetensors", base)
    report = fuse_checkpoint(path, [(write_adapter(tmp_path, spelling), 0.5)], tmp_path / "out.safetensors")
    assert report.tensors_fused == 1
    fused = read(tmp_path / "out.safetensors")
    strength = float(np.float32(0.5 * spelling.scale))
    key, other = base
    assert fused[key].tobytes() == reference.fuse_tensor(base[key], [(A, B, strength)]).tobytes()
    assert fused[key].tobytes() != base[key].tobytes()
    assert fused[other].tobytes() == base[other].tobytes()


def test_prefixes_are_removed_at_the_start_alone(tmp_path: Path) -> None:
    inside = "blocks.0.transformer.unet.x"
    path = write(tmp_path / "base.safetensors", {f"{inside}.weight": weight(OUT, INTO), "blocks.0.x.weight": weight(2)})
    lora = write(tmp_path / "lora.safetensors", dict(zip(_ab("transformer.", inside), (A, B), strict=True)))
    assert fuse_checkpoint(path, [(lora, 1.0)], tmp_path / "out.safetensors").tensors_fused == 1


def test_a_file_of_several_formats_is_read_key_by_key(tmp_path: Path) -> None:
    names = [name for name, one in FORMATS.items() if one.config is None and one.metadata is None]
    base: dict[str, np.ndarray] = {}
    tensors: dict[str, np.ndarray] = {}
    strengths = {}
    for number, name in enumerate(names):
        spelling = FORMATS[name]

        def own(key: str, number: int = number) -> str:
            return (
                key.replace("to_q", f"to_q{number}")
                .replace("to_out", f"to_q{number}.to_out")
                .replace("norm", f"n{number}")
            )

        if spelling.base.split(".")[-1] != "to_q":
            continue
        base[f"{own(spelling.base)}.weight"] = weight(OUT, INTO, seed=number)
        tensors |= {own(spelling.a): A, own(spelling.b): B}
        if spelling.alpha is not None:
            tensors[own(spelling.alpha)] = np.full((), 2, np.float32)
        strengths[f"{own(spelling.base)}.weight"] = spelling.scale
    assert len(base) >= 12
    path = write(tmp_path / "base.safetensors", base)
    fuse_checkpoint(path, [(write(tmp_path / "l.safetensors", tensors), 1.0)], tmp_path / "out.safetensors")
    for key, values in read(tmp_path / "out.safetensors").items():
        assert values.tobytes() == reference.fuse_tensor(base[key], [(A, B, strengths[key])]).tobytes(), key


class TestUnderscores:
    BASE = ("a_b.c", "a.b_c")

    def test_that_fit_two_modules_are_refused_naming_both(self, tmp_path: Path) -> None:
        path = write(tmp_path / "base.safetensors", {f"{name}.weight": weight(OUT, INTO) for name in self.BASE})
        lora = write(tmp_path / "l.safetensors", dict(zip(_kohya("lora_unet_a_b_c"), (A, B), strict=True)))
        with refused("ambiguous-weight", "lora_unet_a_b_c", "a_b.c.weight", "a.b_c.weight"):
            fuse_checkpoint(path, [(lora, 1.0)], tmp_path / "out.safetensors", unmatched="warn")

    def test_are_resolved_against_the_base(self, tmp_path: Path) -> None:
        path = write(tmp_path / "base.safetensors", {"a.b_c.weight": weight(OUT, INTO), "a.b.d.weight": weight(3)})
        lora = write(tmp_path / "l.safetensors", dict(zip(_kohya("lora_unet_a_b_c"), (A, B), strict=True)))
        assert fuse_checkpoint(path, [(lora, 1.0)], tmp_path / "out.safetensors").tensors_fused == 1


class TestFusedProjections:
    """q, k, v in one weight and three pairs, or the other way round: a pair's rows, A shared."""

    @pytest.mark.parametrize(
        ("prefix", "dot", "whole", "parts"),
        [
            ("diffusion_model.", ".", "qkv", "qkv"),
            ("lora_unet_", "_", "qkv", "qkv"),
            ("transformer.", ".", "to_qkv", ("to_q", "to_k", "to_v")),
            ("lycoris_", "_", "to_qkv", ("to_q", "to_k", "to_v")),
        ],
    )
    def test_a_fused_pair_for_weights_apart(
        self, tmp_path: Path, prefix: str, dot: str, whole: str, parts: tuple[str, ...]
    ) -> None:
        rows = (OUT, 8, 6)
        base = {f"b.attn.{part}.weight": weight(n, INTO, seed=n) for part, n in zip(parts, rows, strict=True)}
        b = weight(sum(rows), RANK, seed=5)
        name = f"{prefix}b{dot}attn{dot}{whole}"
        lora = write(tmp_path / "l.safetensors", {f"{name}.lora_down.weight": A, f"{name}.lora_up.weight": b})
        fuse_checkpoint(write(tmp_path / "b.safetensors", base), [(lora, 0.7)], tmp_path / "out.safetensors")
        fused = read(tmp_path / "out.safetensors")
        ends = np.cumsum([0, *rows])
        for (key, values), begin, end in zip(base.items(), ends, ends[1:], strict=False):
            assert fused[key].tobytes() == reference.fuse_tensor(values, [(A, b[begin:end], 0.7)]).tobytes()

    @pytest.mark.parametrize(("prefix", "dot"), [("diffusion_model.", "."), ("lora_unet_", "_")])
    @pytest.mark.parametrize("given", ["qkv", "qv", "k"])
    def test_pairs_apart_for_a_fused_weight(self, tmp_path: Path, prefix: str, dot: str, given: str) -> None:
        base = weight(3 * OUT, INTO)
        tensors, expected = {}, base.copy()
        for part in given:
            at = "qkv".index(part) * OUT
            a, b = weight(RANK, INTO, seed=ord(part)), weight(OUT, RANK, seed=ord(part) + 1)
            alpha = np.full((), 2 + at, np.float32)
            name = f"{prefix}b{dot}attn{dot}{part}"
            tensors |= {f"{name}.lora_down.weight": a, f"{name}.lora_up.weight": b, f"{name}.alpha": alpha}
            strength = float(np.float32(0.7 * (2 + at) / RANK))
            expected[at : at + OUT] = reference.fuse_tensor(base[at : at + OUT], [(a, b, strength)])
        path = write(tmp_path / "b.safetensors", {"b.attn.qkv.weight": base})
        lora = write(tmp_path / "l.safetensors", tensors)
        fuse_checkpoint(path, [(lora, 0.7)], tmp_path / "out.safetensors")
        assert read(tmp_path / "out.safetensors")["b.attn.qkv.weight"].tobytes() == expected.tobytes()

    def test_that_do_not_fit_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "b.safetensors", {"b.qkv.weight": weight(3 * OUT + 3, INTO)})
        lora = write(tmp_path / "l.safetensors", dict(zip(_ab("", "b.q"), (A, B), strict=True)))
        with refused("shape-mismatch", "b.q.lora_A", f"[{OUT}, {INTO}]", f"[{3 * OUT + 3}, {INTO}]"):
            fuse_checkpoint(path, [(lora, 1.0)], tmp_path / "out.safetensors")


class TestAlpha:
    def fused(self, tmp_path: Path, alpha: str, **metadata: str) -> tuple[np.ndarray, dict[str, Any]]:
        tensors = {**dict(zip(_ab("diffusion_model."), (A, B), strict=True))}
        if not metadata:
            tensors[f"diffusion_model.{Q}.alpha"] = np.full((1,), 2, np.float16)
        path = write(tmp_path / "b.safetensors", {f"{Q}.weight": weight(OUT, INTO)})
        lora = write(tmp_path / "l.safetensors", tensors, metadata)
        fuse_checkpoint(path, [(lora, 0.5)], tmp_path / "out.safetensors", alpha=alpha)
        with Checkpoint.open(tmp_path / "out.safetensors") as out:
            return out.tensors[f"{Q}.weight"].read(), json.loads(out.metadata["ltx2c"])

    @pytest.mark.parametrize(("alpha", "strength"), [("stated", 0.25), ("file", 0.25), ("ignore", 0.5)])
    def test_of_a_tensor(self, tmp_path: Path, alpha: str, strength: float) -> None:
        values, entry = self.fused(tmp_path, alpha)
        assert values.tobytes() == reference.fuse_tensor(weight(OUT, INTO), [(A, B, strength)]).tobytes()
        assert entry.get("alpha", "stated") == alpha

    @pytest.mark.parametrize(("alpha", "strength"), [("stated", 0.5), ("file", 1.0), ("ignore", 0.5)])
    def test_of_other_metadata(self, tmp_path: Path, alpha: str, strength: float) -> None:
        values, _ = self.fused(tmp_path, alpha, ss_network_alpha="8", ss_network_dim="4")
        assert values.tobytes() == reference.fuse_tensor(weight(OUT, INTO), [(A, B, strength)]).tobytes()

    def test_there_is_no_other_way(self, tmp_path: Path) -> None:
        with refused("bad-alpha-mode", "sometimes"):
            self.fused(tmp_path, "sometimes")

    def test_of_a_configuration_that_is_no_number(self, tmp_path: Path) -> None:
        spelling = FORMATS["PEFT"]._replace(config={"r": 4, "lora_alpha": "much"})
        with refused("bad-adapter-config", "adapter_config.json", "lora_alpha", "much"):
            fuse_checkpoint(
                write(tmp_path / "b.safetensors", {f"{Q}.weight": weight(OUT, INTO)}),
                [(write_adapter(tmp_path, spelling), 1.0)],
                tmp_path / "out.safetensors",
            )

    def test_that_peft_lost_is_noted(self, tmp_path: Path) -> None:
        lora = write(tmp_path / "l.safetensors", dict(zip(_ab("base_model.model."), (A, B), strict=True)))
        path = write(tmp_path / "b.safetensors", {f"{Q}.weight": weight(OUT, INTO)})
        report = fuse_checkpoint(path, [(lora, 1.0)], tmp_path / "out.safetensors")
        assert any("adapter_config.json" in note for note in report.notes)


class TestBlockWeights:
    KEYS = ("model.diffusion_model.blocks.0.to_q", "model.diffusion_model.blocks.1.to_q")

    def fused(self, tmp_path: Path, block_weights: Any) -> dict[str, np.ndarray]:
        base = {f"{key}.weight": weight(OUT, INTO) for key in self.KEYS}
        pairs = {name: one for key in self.KEYS for name, one in zip(_ab("", key), (A, B), strict=True)}
        path = write(tmp_path / "b.safetensors", base)
        lora = write(tmp_path / "l.safetensors", pairs)
        fuse_checkpoint(path, [(lora, 0.5)], tmp_path / "out.safetensors", block_weights=block_weights)
        with Checkpoint.open(tmp_path / "out.safetensors") as out:
            given = json.loads(out.metadata["ltx2c"])["block_weights"]
            assert given == [list(pair) for pair in dict(block_weights).items()]
        return read(tmp_path / "out.safetensors")

    @pytest.mark.parametrize(
        ("block_weights", "factors"),
        [
            ([("*", 2.0)], (2, 2)),
            ([("blocks.0.*", 0.25)], (0.25, 1)),
            ([("model.diffusion_model.blocks.1.to_q", -1.0), ("*.to_q", 3.0)], (3, -3)),
            ({"blocks.[01].*": 0.0}, (0, 0)),
        ],
    )
    def test_multiply_the_strength(self, tmp_path: Path, block_weights: Any, factors: tuple[float, float]) -> None:
        fused = self.fused(tmp_path, block_weights)
        for key, factor in zip(self.KEYS, factors, strict=True):
            expected = reference.fuse_tensor(weight(OUT, INTO), [(A, B, 0.5 * factor)])
            assert fused[f"{key}.weight"].tobytes() == expected.tobytes()

    def test_that_fit_nothing_are_refused(self, tmp_path: Path) -> None:
        with refused("block-weight-unused", "blocks.2.*", "b.safetensors"):
            self.fused(tmp_path, [("*", 1.0), ("blocks.2.*", 1.0)])

    @pytest.mark.parametrize("factor", [math.nan, math.inf, "1", True, None])
    def test_that_are_no_number_are_refused(self, tmp_path: Path, factor: Any) -> None:
        with refused("bad-block-weight", "*"):
            self.fused(tmp_path, [("*", factor)])
