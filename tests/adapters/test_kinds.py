"""Kinds of deltas that are not a plain pair: byte for byte their reference, on every kernel and thread count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refusals import refused
from tensor_files import pair, weight, write

from ltx2c import Adapter, Checkpoint, execute, plan_fuse, reference, verify_checkpoint
from ltx2c.adapters.deltas import reference as deltas
from ltx2c.arithmetic import LTX_WIDE
from ltx2c.terms import FullTerm

BF16 = np.dtype(ml_dtypes.bfloat16)
Tensors = dict[str, np.ndarray]
ALPHA = np.full((), 2, np.float32)


def loha(rng: int, dtype: Any) -> tuple[Tensors, np.ndarray]:
    a1, b1, a2, b2 = (weight(*s, seed=rng + n, dtype=dtype) for n, s in enumerate([(24, 3), (3, 70), (24, 3), (3, 70)]))
    return {"hada_w1_a": a1, "hada_w1_b": b1, "hada_w2_a": a2, "hada_w2_b": b2}, deltas.loha(a1, b1, a2, b2)


def loha_tucker(rng: int, dtype: Any) -> tuple[Tensors, np.ndarray]:
    shapes = [(3, 24), (3, 7), (3, 24), (3, 7), (3, 3, 5, 2), (3, 3, 5, 2)]
    a1, b1, a2, b2, t1, t2 = (weight(*s, seed=rng + n, dtype=dtype) for n, s in enumerate(shapes))
    named = {"hada_w1_a": a1, "hada_w1_b": b1, "hada_w2_a": a2, "hada_w2_b": b2, "hada_t1": t1, "hada_t2": t2}
    return named, deltas.loha(a1, b1, a2, b2, t1, t2)


def lokr(one: bool, two: str) -> Any:
    """``one``: whether w1 is a product; ``two``: how w2 is stored."""

    def make(rng: int, dtype: Any) -> tuple[Tensors, np.ndarray]:
        named: Tensors = {}
        if one:
            named |= {
                "lokr_w1_a": weight(4, 2, seed=rng, dtype=dtype),
                "lokr_w1_b": weight(2, 7, seed=rng + 1, dtype=dtype),
            }
            w1 = deltas.side(named["lokr_w1_a"], named["lokr_w1_b"])
        else:
            w1 = named["lokr_w1"] = weight(4, 7, seed=rng, dtype=dtype)
        if two == "whole":
            w2 = named["lokr_w2"] = weight(6, 10, seed=rng + 2, dtype=dtype)
        elif two == "product":
            named |= {
                "lokr_w2_a": weight(6, 3, seed=rng + 2, dtype=dtype),
                "lokr_w2_b": weight(3, 10, seed=rng + 3, dtype=dtype),
            }
            w2 = deltas.side(named["lokr_w2_a"], named["lokr_w2_b"])
        else:
            named |= {
                "lokr_w2_a": weight(3, 6, seed=rng + 2, dtype=dtype),
                "lokr_w2_b": weight(3, 5, seed=rng + 3, dtype=dtype),
            }
            named["lokr_t2"] = weight(3, 3, 1, 2, seed=rng + 4, dtype=dtype)
            w2 = deltas.side(named["lokr_w2_a"], named["lokr_w2_b"], named["lokr_t2"])
        return named, deltas.lokr(w1, w2)

    return make


def diff(rng: int, dtype: Any) -> tuple[Tensors, np.ndarray]:
    values = weight(24, 70, seed=rng, dtype=dtype)
    return {"diff": values}, values


# Kind -> what makes its tensors and its difference, the rank that alpha is divided by (None: alpha has no part in it),
# and the shape of the weight.
KINDS: dict[str, tuple[Any, int | None, tuple[int, ...]]] = {
    "loha": (loha, 3, (24, 70)),
    "loha, convolution as a matrix": (loha, 3, (24, 7, 5, 2)),
    "loha, Tucker": (loha_tucker, 3, (24, 7, 5, 2)),
    "lokr, both whole": (lokr(False, "whole"), None, (24, 70)),
    "lokr, w1 a product": (lokr(True, "whole"), 2, (24, 70)),
    "lokr, w2 a product": (lokr(False, "product"), 3, (24, 70)),
    "lokr, both products": (lokr(True, "product"), 3, (24, 70)),
    "lokr, Tucker": (lokr(False, "tucker"), 3, (24, 35, 1, 2)),
    "diff": (diff, None, (24, 70)),
}


def run(
    folder: Path, base: Tensors, adapters: list[tuple[Tensors, float]], arithmetic: str, threads: int = 1
) -> Tensors:
    path = write(folder / "base.safetensors", base)
    given = [(write(folder / f"{n}.safetensors", tensors), s) for n, (tensors, s) in enumerate(adapters)]
    execute(plan_fuse(path, given, arithmetic=arithmetic), folder / "out.safetensors", threads=threads, force=True)
    with Checkpoint.open(folder / "out.safetensors") as out:
        return {key: tensor.read() for key, tensor in out.tensors.items()}


def strength(given: float, rank: int | None) -> float:
    return float(np.float32(given if rank is None else given * 2 / rank))


@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16), np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_is_its_reference(tmp_path: Path, kind: str, dtype: Any, arithmetic: str) -> None:
    make, rank, shape = KINDS[kind]
    one, first = make(1, dtype)
    two, second = make(100, dtype)
    base = weight(*shape, seed=50, dtype=dtype)
    given = [
        ({f"m.{role}": tensor for role, tensor in named.items()} | {"m.alpha": ALPHA}, s)
        for named, s in ((one, 0.7), (two, -1.3))
    ]
    if kind == "diff":
        given = [({key: tensor for key, tensor in tensors.items() if "alpha" not in key}, s) for tensors, s in given]
    fused = run(tmp_path, {"m.weight": base}, given, arithmetic)["m.weight"]
    terms = [FullTerm(first, strength(0.7, rank)), FullTerm(second, strength(-1.3, rank))]
    expected = reference.fuse_tensor(base.reshape(24, -1), terms, arithmetic=arithmetic)
    assert fused.shape == shape and fused.tobytes() == expected.tobytes() != base.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bytes_are_the_same_on_every_kernel_and_thread_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, threads: int
) -> None:
    base, tensors = {}, {}
    for kind, (make, _, shape) in KINDS.items():
        name = kind.replace(",", "").replace(" ", "")
        base[f"{name}.weight"] = weight(*shape, seed=9)
        tensors |= {f"{name}.{role}": tensor for role, tensor in make(4, BF16)[0].items()}
    base["dora.weight"] = weight(24, 70)
    tensors |= {**pair("dora", 24, 3, 70), "dora.dora_scale": weight(24, 1)}
    monkeypatch.setenv("LTX2C_KERNEL", "serial")
    plain = run(tmp_path, base, [(tensors, 0.9)], "ltx")
    monkeypatch.setenv("LTX2C_KERNEL", kernel)
    other = run(tmp_path, base, [(tensors, 0.9)], "ltx", threads)
    assert {key: value.tobytes() for key, value in other.items()} == {
        key: value.tobytes() for key, value in plain.items()
    }


@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
@pytest.mark.parametrize("mid", [False, True])
def test_a_convolution_takes_its_pair_flattened(tmp_path: Path, mid: bool, arithmetic: str) -> None:
    base, b = weight(8, 5, 3, 2), weight(8, 4, 1, 1, seed=1)
    a = weight(4, 5, *((1, 1) if mid else (3, 2)), seed=2)
    tensors = {"m.lora_down.weight": a, "m.lora_up.weight": b, "m.alpha": ALPHA}
    flat: np.ndarray = a.reshape(4, -1)
    if mid:
        tensors["m.lora_mid.weight"] = weight(4, 4, 3, 2, seed=3)
        flat = deltas.folded(tensors["m.lora_mid.weight"], flat)
    fused = run(tmp_path, {"m.weight": base}, [(tensors, 0.5)], arithmetic)["m.weight"]
    expected = reference.fuse_tensor(base.reshape(8, -1), [(flat, b.reshape(8, 4), 0.25)], arithmetic=arithmetic)
    assert fused.tobytes() == expected.tobytes()


@pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
@pytest.mark.parametrize(
    ("role", "target"), [("diff_b", "bias"), ("b_norm", "bias"), ("w_norm", "weight"), ("diff_m", "modulation")]
)
def test_differences_of_biases_norms_and_modulations(tmp_path: Path, role: str, target: str, arithmetic: str) -> None:
    shape = (1, 6, 5) if target == "modulation" else (9,)
    base, d = weight(*shape, dtype=np.float32), weight(*shape, seed=1)
    fused = run(tmp_path, {f"m.{target}": base}, [({f"m.{role}": d}, 0.5)], arithmetic)[f"m.{target}"]
    expected = reference.fuse_tensor(base.reshape(1, -1), [FullTerm(d.reshape(1, -1), 0.5)], arithmetic=arithmetic)
    assert fused.shape == shape and fused.tobytes() == expected.tobytes()


class TestDoRA:
    """On top of a pair, by rows and by columns, both ways of scaling."""

    @pytest.mark.parametrize("arithmetic", ["ltx", "f32"])
    @pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32)], ids=str)
    @pytest.mark.parametrize("shape", [(20, 20), (20, 130), (6, 4, 3, 3)])
    @pytest.mark.parametrize("way", ["peft", "lycoris out", "lycoris in"])
    def test_is_its_reference(
        self, tmp_path: Path, way: str, shape: tuple[int, ...], dtype: Any, arithmetic: str
    ) -> None:
        base = weight(*shape, dtype=dtype)
        wide = int(np.prod(shape[1:]))
        a, b = weight(3, *shape[1:], seed=1), weight(shape[0], 3, *(1,) * (len(shape) - 2), seed=2)
        tensors = {"m.lora_down.weight": a, "m.lora_up.weight": b, "m.alpha": ALPHA}
        ones = (1,) * (len(shape) - 2)
        length = shape[1] if way == "lycoris in" else shape[0]
        m = np.abs(weight(length, seed=3, dtype=np.float32)) + np.float32(0.1)
        if way == "peft":
            tensors["m.lora_magnitude_vector"] = m.reshape(1, length, *ones) if ones else m
        else:
            tensors["m.dora_scale"] = (
                m.reshape(1, length, *ones) if way == "lycoris in" else m.reshape(length, 1, *ones)
            )
        fused = run(tmp_path, {"m.weight": base}, [(tensors, 0.8)], arithmetic)["m.weight"]
        own = strength(0.8 if way == "peft" else 1.0, 3)
        kind = LTX_WIDE if arithmetic == "ltx" else "f32"
        v = reference.fuse_tensor(
            base.reshape(shape[0], wide).astype(np.float32),
            [(a.reshape(3, wide), b.reshape(-1, 3), own)],
            arithmetic=kind,
        )
        v = deltas.rescaled(v, m, by_column=way == "lycoris in", step=None if way == "peft" else 0.8)
        expected = (v.astype(BF16) if arithmetic == "ltx" else v).astype(dtype)
        assert fused.tobytes() == expected.tobytes()

    def test_of_columns_takes_the_whole_weight_however_large(self, tmp_path: Path) -> None:
        rows, columns = 3000, 3000  # more than one block
        base = weight(rows, columns)
        m = np.abs(weight(1, columns, seed=3, dtype=np.float32)) + np.float32(0.1)
        tensors = {**pair("m", rows, 1, columns), "m.dora_scale": m}
        fused = run(tmp_path, {"m.weight": base}, [(tensors, 1.0)], "ltx", 2)["m.weight"].astype(np.float32)
        norms = np.sqrt((fused.astype(np.float64) ** 2).sum(axis=0))
        assert np.allclose(norms, np.abs(m.ravel()), rtol=2e-2)

    def test_of_columns_is_verified_by_whole_weights_though_rows_are_sampled(self, tmp_path: Path) -> None:
        tensors = {**pair("m", 300, 2, 20), "m.dora_scale": np.abs(weight(1, 20, seed=3, dtype=np.float32))}
        run(tmp_path, {"m.weight": weight(300, 20)}, [(tensors, 1.0)], "ltx")
        base, lora, out = (tmp_path / f"{name}.safetensors" for name in ("base", "0", "out"))
        assert verify_checkpoint(out, base, [(lora, 1.0)], sample=0.3).equal

    def test_nothing_follows_it(self, tmp_path: Path) -> None:
        dora = {**pair("m", 4, 2, 4), "m.dora_scale": weight(4, 1)}
        with refused("delta-after-dora", "0.safetensors", "1.safetensors", "DoRA", "last"):
            run(tmp_path, {"m.weight": weight(4, 4)}, [(dora, 1.0), (pair("m", 4, 2, 4), 1.0)], "ltx")
        run(tmp_path, {"m.weight": weight(4, 4)}, [(pair("m", 4, 2, 4), 1.0), (dora, 1.0)], "ltx")

    @pytest.mark.parametrize("shape", [(3, 1), (1, 3), (3,), (2, 2)])
    def test_of_another_length_is_refused(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        with refused("bad-factor" if shape == (2, 2) else "shape-mismatch", "m.dora_scale", f"{list(shape)}"):
            run(
                tmp_path,
                {"m.weight": weight(4, 4)},
                [({**pair("m", 4, 2, 4), "m.dora_scale": weight(*shape)}, 1.0)],
                "ltx",
            )

    def test_alone_is_refused(self, tmp_path: Path) -> None:
        with refused("missing-factor", "no A and no B", "y.dora_scale"):
            Adapter.open(write(tmp_path / "a.safetensors", {**pair("x", 4, 2, 4), "y.dora_scale": weight(4, 1)}))


class TestWhole:
    PREFIX = "base_model.model."

    def test_replaces_at_strength_1(self, tmp_path: Path) -> None:
        head, bias = weight(5, 4, seed=7, dtype=np.float32), weight(6, seed=8, dtype=np.float32)
        base = {"head.weight": weight(5, 4), "q.weight": weight(6, 4), "q.bias": weight(6)}
        tensors = {
            f"{self.PREFIX}head.weight": head,
            f"{self.PREFIX}q.base_layer.bias": bias,
            **pair(f"{self.PREFIX}q", 6, 2, 4),
        }
        fused = run(tmp_path, base, [(tensors, 1.0)], "ltx")
        assert fused["head.weight"].tobytes() == head.astype(BF16).tobytes()
        assert fused["q.bias"].tobytes() == bias.astype(BF16).tobytes()

    @pytest.mark.parametrize("given", [0.5, -1.0, 0.999])
    def test_is_refused_at_any_other(self, tmp_path: Path, given: float) -> None:
        tensors = {f"{self.PREFIX}head.weight": weight(5, 4), **pair(f"{self.PREFIX}q", 6, 2, 4)}
        with refused("whole-strength", "head.weight", "strength 1 alone", given):
            run(tmp_path, {"head.weight": weight(5, 4), "q.weight": weight(6, 4)}, [(tensors, given)], "ltx")

    def test_takes_no_delta(self, tmp_path: Path) -> None:
        tensors = {f"{self.PREFIX}q.weight": weight(6, 4), **pair(f"{self.PREFIX}r", 6, 2, 4)}
        with refused("whole-and-delta", "0.safetensors", "1.safetensors", "q.weight"):
            run(
                tmp_path,
                dict.fromkeys(("q.weight", "r.weight"), weight(6, 4)),
                [(tensors, 1.0), (pair("q", 6, 2, 4), 1.0)],
                "ltx",
            )


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("m.glora_a", "GLoRA"),
        ("m.a1.weight", "GLoRA"),
        ("m.ia3_l", "IA3"),
        ("m.on_input", "IA3"),
        ("m.oft_blocks", "OFT"),
        ("m.boft_R", "BOFT"),
        ("m.vera_lambda_d", "VeRA"),
        ("m.lora_embedding_A", "LoRA of an embedding"),
        ("m.lora_E", "AdaLoRA"),
        ("emb_params", "textual-inversion"),
    ],
)
def test_what_is_not_fused_is_refused_by_its_name_whatever_else_there_is(tmp_path: Path, key: str, kind: str) -> None:
    lora = write(tmp_path / "l.safetensors", {**pair("x", 4, 2, 4), key: weight(4)})
    base = write(tmp_path / "b.safetensors", {"x.weight": weight(4, 4)})
    with refused("unsupported-delta", "l.safetensors", key, kind, "1 such"):
        plan_fuse(base, [(lora, 1.0)], unmatched="warn")


@pytest.mark.parametrize("kind", ["OFT", "VERA", "IA3", "X\nY"])
def test_peft_kinds_that_are_not_fused_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "adapter_config.json").write_text(f'{{"peft_type": "{kind}"}}'.replace("\n", "\\n"))
    write(tmp_path / "adapter_model.safetensors", pair("base_model.model.x", 4, 2, 4))
    with refused("unsupported-delta", tmp_path, kind.split("\n")[0]):
        Adapter.open(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "code", "said"),
    [
        ({"m.hada_w1_a": weight(4, 2)}, "missing-factor", "no hada_w1_b and no hada_w2_a"),
        ({"m.lokr_w1": weight(4, 2)}, "missing-factor", "no lokr_w2"),
        ({"m.lokr_w1": weight(4, 2), "m.lokr_w2_a": weight(4, 2)}, "missing-factor", "no lokr_w2_b"),
        ({"m.lokr_w1": weight(2, 2), "m.lokr_w2": weight(2), "m.alpha": ALPHA}, "bad-factor", "m.lokr_w2"),
        ({f"m.lokr_{name}": weight(2, 2) for name in ("w1", "w2", "w2_a")}, "duplicate-factor", "lokr_w2_a"),
        ({f"m.hada_w{n}_{s}": weight(2, 3) for n in (1, 2) for s in "ab"}, "rank-mismatch", "has 3"),
        ({"m.lora_down.weight": weight(2, 4), "m.lora_up.weight": weight(3, 2, 3, 3)}, "bad-factor", "another kernel"),
        ({"m.diff": ("I64", [2, 2])}, "bad-factor", "I64"),
    ],
)  # fmt: skip
def test_what_is_not_complete_or_does_not_multiply(tmp_path: Path, tensors: Any, code: str, said: str) -> None:
    with refused(code, "a.safetensors", said):
        Adapter.open(write(tmp_path / "a.safetensors", tensors))
