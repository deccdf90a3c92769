"""Merging PEFT models: against PEFT's own ``merge_and_unload`` where PEFT is installed (ci/peft.sh installs it)."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from refusals import refused
from snippets import snippets
from torch import nn

import ltx2c


def test_importing_it_imports_neither_torch_nor_peft():
    program = "import ltx2c, sys; ltx2c.peft.merge; print({'torch', 'peft', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "set()"


def test_what_is_no_peft_model_is_refused():
    with refused("peft-model", "Linear", "not a PeftModel"):
        ltx2c.peft.merge(nn.Linear(2, 2))


try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
except ImportError:
    peft = None

needs_peft = pytest.mark.skipif(peft is None, reason="PEFT is not installed; ci/peft.sh runs these with it")


class Model(nn.Module):
    """One module of each kind that is merged, and some that are not touched."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(33, 24)
        self.first = nn.Linear(24, 40)
        self.block = nn.ModuleDict({"proj": nn.Linear(40, 24, bias=False), "norm": nn.LayerNorm(24)})
        self.conv1 = nn.Conv1d(6, 5, 3)
        self.conv2 = nn.Conv2d(6, 5, (3, 2))
        self.point = nn.Conv2d(6, 5, 1)
        self.conv3 = nn.Conv3d(4, 3, 2)
        self.head = nn.Linear(24, 7)


EVERY = ["embed", "first", "proj", "conv1", "conv2", "point", "conv3"]


def integers(model: nn.Module, seed: int = 0) -> None:
    """Values of which every sum is exact in any order, in bfloat16 too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=generator).to(parameter.dtype))


def normals(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(0.05).to(parameter.dtype))


def wrapped(base: nn.Module, fill=integers, adapters: int = 1, autocast: bool = True, **options) -> peft.PeftModel:
    options = {"r": 4, "lora_alpha": 8, "target_modules": EVERY} | options
    model = peft.get_peft_model(base, peft.LoraConfig(**options), autocast_adapter_dtype=autocast)
    for number in range(1, adapters):
        model.add_adapter(f"a{number}", peft.LoraConfig(**options | {"r": 4 << number}))
    if adapters > 1:
        model.base_model.set_adapter(["default", *(f"a{number}" for number in range(1, adapters))])
    fill(model)
    return model


def both_merged(model: peft.PeftModel) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The state dictionaries of the base: merged by us, merged by PEFT."""
    other = copy.deepcopy(model)
    ours, theirs = ltx2c.peft.merge(model), other.merge_and_unload()
    assert type(ours) is type(theirs)
    assert not any(isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer) for module in ours.modules())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    return ours.state_dict(), theirs.state_dict()


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        assert torch.equal(ours[key], value), key


def steps(one: torch.Tensor, other: torch.Tensor) -> np.ndarray:
    """How many numbers of their dtype lie between."""
    integer = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}[one.dtype]
    counts = [each.contiguous().view(integer).numpy().astype(np.int64) for each in (one, other)]
    most = np.int64(1) << (8 * one.element_size() - 1)
    ordered = [np.where(each < 0, -(each + most), each) for each in counts]
    return np.abs(ordered[0] - ordered[1])


@needs_peft
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("adapters", [1, 3])
@pytest.mark.parametrize("autocast", [True, False])
def test_equals_merge_and_unload_where_sums_are_exact(dtype, adapters, autocast):
    ours, theirs = both_merged(wrapped(Model().to(dtype), adapters=adapters, autocast=autocast))
    assert_equal(ours, theirs)


@needs_peft
@pytest.mark.parametrize("dtype, most, share", [(torch.bfloat16, 1, 0.001), (torch.float32, 4, 0.6)], ids=str)
def test_is_within_a_step_of_merge_and_unload_elsewhere(dtype, most, share):
    model = wrapped(nn.Sequential(nn.Linear(256, 192)).to(dtype), normals, r=200, target_modules=["0"])
    layer = model.base_model.model[0]
    parameters = layer.lora_A.default.weight, layer.lora_B.default.weight, layer.base_layer.weight
    a, b, weight = (parameter.detach().double() for parameter in parameters)
    magnitude = weight.abs() + layer.scaling["default"] * (b.abs() @ a.abs())
    ours, theirs = both_merged(model)
    apart = steps(ours["0.weight"], theirs["0.weight"])
    # Where the terms cancel, a step of the result is finer than the float32 sums that both make in their own order.
    cancelled = (ours["0.weight"].double() - theirs["0.weight"].double()).abs() <= 2**-24 * 200 * magnitude
    assert np.all((apart <= most) | cancelled.numpy())
    assert (apart > 0).mean() < share


@needs_peft
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gives_the_bytes_of_the_reference(dtype):
    base = nn.Sequential(nn.Linear(31, 17)).to(dtype)
    model = wrapped(base, normals, adapters=2, target_modules=["0"], use_rslora=True)
    layer = model.base_model.model[0]
    weight = as_numpy(layer.base_layer.weight)
    for name in layer.active_adapters:
        pair = as_numpy(layer.lora_A[name].weight), as_numpy(layer.lora_B[name].weight), layer.scaling[name]
        weight = ltx2c.reference.fuse_tensor(weight, [pair], arithmetic="f32")
    merged = as_numpy(ltx2c.peft.merge(model)[0].weight)
    assert merged.tobytes() == weight.tobytes()


@needs_peft
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_dora_equals_merge_and_unload_where_sums_are_exact(dtype):
    """Sums of squares are exact too; of what follows, a root, a quotient and a product, each has one rounding."""
    ours, theirs = both_merged(wrapped(Model().to(dtype), integers_and_lengths, use_dora=True, target_modules=EVERY))
    assert_equal(ours, theirs)


def integers_and_lengths(model: nn.Module) -> None:
    """A weight without a zero in any row or column of a dimension: of no length there is no direction."""
    integers(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter += 3.0
            parameter += (parameter == 0).to(parameter.dtype)


@needs_peft
@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 1), (torch.float32, 4)], ids=str)
def test_dora_is_within_a_step_of_merge_and_unload_elsewhere(dtype, most):
    base = nn.Sequential(nn.Linear(256, 192)).to(dtype)
    model = wrapped(base, normals, r=8, target_modules=["0"], use_dora=True)
    ours, theirs = (merged["0.weight"] for merged in both_merged(model))
    apart = steps(ours, theirs)
    # Where the terms cancel, a step of the result is finer than the sums that both make in their own order.
    cancelled = ((ours.double() - theirs.double()).abs() <= 2**-22 * theirs.double().abs().max()).numpy()
    assert np.all((apart <= most) | cancelled)


@needs_peft
def test_dora_then_plain_adapters_transposed_and_with_a_bias():
    conv1d = sys.modules["transformers.pytorch_utils"].Conv1D
    base = nn.Sequential(conv1d(12, 20), nn.Linear(12, 8)).bfloat16()
    model = wrapped(base, integers, target_modules=["0"], fan_in_fan_out=True, use_dora=True)
    model.add_adapter("late", peft.LoraConfig(target_modules=["0"], fan_in_fan_out=True))
    model.base_model.set_adapter(["default", "late"])
    integers_and_lengths(model)
    assert_equal(*both_merged(model))


def lycoris(kind: str, base: nn.Module, modules: list[str], **options) -> peft.PeftModel:
    config = {"loha": peft.LoHaConfig, "lokr": peft.LoKrConfig}[kind]
    return peft.get_peft_model(base, config(target_modules=modules, **{"r": 3, "alpha": 6} | options))


@needs_peft
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "kind, modules, options",
    [
        ("loha", ["first", "proj", "conv1", "conv2", "point"], {}),
        ("loha", ["conv1", "conv2"], {"use_effective_conv2d": True, "r": 2}),
        ("lokr", ["first", "proj", "conv2", "point"], {}),
        ("lokr", ["first", "conv2"], {"r": 1, "alpha": 2, "decompose_both": True, "use_effective_conv2d": True}),
        ("lokr", ["first"], {"r": 64, "alpha": 64}),
    ],
)
def test_loha_and_lokr_equal_merge_and_unload_where_sums_are_exact(kind, modules, options, dtype):
    model = lycoris(kind, Model().to(dtype), modules, **options)
    model.add_adapter("more", model.peft_config["default"])
    model.base_model.set_adapter(["default", "more"])
    integers(model)
    assert_equal(*both_merged(model))


@needs_peft
@pytest.mark.parametrize("kind", ["loha", "lokr"])
@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 1), (torch.float32, 4)], ids=str)
def test_loha_and_lokr_are_within_a_step_elsewhere(kind, dtype, most):
    model = lycoris(kind, nn.Sequential(nn.Linear(256, 192)).to(dtype), ["0"], r=16, alpha=16)
    normals(model)
    ours, theirs = (merged["0.weight"] for merged in both_merged(model))
    cancelled = ((ours.double() - theirs.double()).abs() <= 2**-24 * theirs.double().abs().max()).numpy()
    assert np.all((steps(ours, theirs) <= most) | cancelled)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().clone()
    return (
        tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


@needs_peft
@pytest.mark.parametrize(
    "options",
    [
        {"lora_bias": True, "target_modules": ["first", "conv1", "conv2"], "init_lora_weights": False},
        {"modules_to_save": ["head"]},
        {"use_rslora": True, "r": 16, "lora_alpha": 16},
        {"rank_pattern": {"first": 2}, "alpha_pattern": {"proj": 2}},
        {"bias": "all"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_merges_what_the_config_says(options):
    assert_equal(*both_merged(wrapped(Model().bfloat16(), **options)))


@needs_peft
def test_weights_are_merged_in_place():
    model = wrapped(Model().bfloat16())
    places = {name: module.base_layer.weight.data_ptr() for name, module in lora_layers(model)}
    merged = ltx2c.peft.merge(model)
    assert {name: merged.get_submodule(name).weight.data_ptr() for name in places} == places


def lora_layers(model: peft.PeftModel) -> list[tuple[str, nn.Module]]:
    modules = model.base_model.model.named_modules()
    return [(name, module) for name, module in modules if isinstance(module, peft.tuners.lora.LoraLayer)]


@needs_peft
def test_a_transposed_weight():
    conv1d = sys.modules["transformers.pytorch_utils"].Conv1D
    model = wrapped(nn.Sequential(conv1d(12, 20)).bfloat16(), target_modules=["0"], fan_in_fan_out=True)
    assert model.base_model.model[0].base_layer.weight.shape == (20, 12)
    assert_equal(*both_merged(model))


@needs_peft
def test_tied_weights_take_the_delta_of_each_module():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(33, 24), nn.Linear(24, 33, bias=False)
            self.head.weight = self.embed.weight

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(Tied().bfloat16(), adapters=2, target_modules=["embed", "head"])
    ours, theirs = both_merged(model)
    assert_equal(ours, theirs)
    assert torch.equal(ours["embed.weight"], ours["head.weight"])


@needs_peft
def test_inactive_disabled_and_merged_adapters_as_in_peft():
    def model(prepare):
        made = wrapped(Model().bfloat16(), adapters=2)
        prepare(made)
        return made

    assert_equal(*both_merged(model(lambda made: made.set_adapter("a1"))))
    assert_equal(*both_merged(model(lambda made: made.base_model.set_adapter(["a1", "default"]))))
    assert_equal(*both_merged(model(lambda made: made.base_model.disable_adapter_layers())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT tells that some are merged already
        assert_equal(*both_merged(model(lambda made: made.merge_adapter(["default"]))))
        assert_equal(*both_merged(model(lambda made: made.merge_adapter())))


@needs_peft
def test_the_tuner_may_be_given_and_other_references_know_what_is_merged():
    model = wrapped(Model().bfloat16())
    layer = model.base_model.model.first
    ltx2c.peft.merge(model.base_model, threads=1)
    assert layer.merged_adapters == ["default"]


@needs_peft
def test_what_becomes_infinite_is_told():
    model = wrapped(nn.Sequential(nn.Linear(8, 8)).bfloat16(), target_modules=["0"])
    with torch.no_grad():
        model.base_model.model[0].lora_B["default"].weight.fill_(3e38)
        model.base_model.model[0].lora_A["default"].weight.fill_(1)
    with pytest.warns(UserWarning, match="64 weights are infinite or NaN"):
        ltx2c.peft.merge(model)


# ---- Refusals: by name, before the first byte changes ---------------------------------------------------------------


def _nested(model):
    model.base_model.model.first.base_layer = copy.deepcopy(model.base_model.model.first)


def _meta(model):
    model.base_model.model.block["proj"].base_layer.to("meta")


def _double(model):
    model.base_model.model.first.lora_A.double()


def _no_bias(model):
    model.base_model.model.first.base_layer.bias = None


def _channels_last(model):
    model.base_model.model.conv2.base_layer.to(memory_format=torch.channels_last)


def _infinite(model):
    model.base_model.model.first.scaling["default"] = float("inf")


def _dora_second(model):
    model.add_adapter("late", peft.LoraConfig(use_dora=True, target_modules=["first"]))
    model.base_model.set_adapter(["default", "late"])


def _short_magnitude(model):
    magnitude = model.base_model.model.first.lora_magnitude_vector["default"]
    magnitude.weight = nn.Parameter(magnitude.weight[:39].detach())


def _overlapping(model):
    both = nn.Parameter(model.base_model.model.first.base_layer.weight.detach().clone().repeat(2, 1))
    model.base_model.model.first.base_layer.weight = nn.Parameter(both[:40])
    model.base_model.model.block["proj"].base_layer.weight = nn.Parameter(both.view(-1)[480:1440].view(24, 40))


REFUSED = {
    "another variant": (
        {"alora_invocation_tokens": [1], "target_modules": ["first"]},
        None,
        "peft-kind",
        ["first", "ALoraLinearVariant"],
    ),
    "dora second": ({"target_modules": ["first"]}, _dora_second, "peft-kind", ["first", "'late'", "DoRA after"]),
    "dora's lengths": (
        {"use_dora": True, "target_modules": ["first"]},
        _short_magnitude,
        "shape-mismatch",
        ["first", "39 magnitudes for 40"],
    ),
    "grouped": ({"target_modules": ["grouped"]}, None, "peft-kind", ["grouped", "2 groups"]),
    "attention": ({"target_modules": ["attention"]}, None, "peft-kind", ["attention", "MultiheadAttention"]),
    "parameters": ({"target_modules": [], "target_parameters": ["first.weight"]}, None, "peft-kind", ["ParamWrapper"]),
    "tokens": (
        {"target_modules": ["first"], "trainable_token_indices": {"embed": [1]}},
        None,
        "peft-kind",
        ["embed", "TrainableTokens"],
    ),
    "nested": ({}, _nested, "peft-kind", ["first", "lora"]),
    "device": ({}, _meta, "device", ["block.proj", "meta"]),
    "dtype": ({}, _double, "unsupported-dtype", ["first", "float64"]),
    "no bias": ({"lora_bias": True, "target_modules": ["first"]}, _no_bias, "peft-kind", ["first", "lora_bias"]),
    "memory format": ({}, _channels_last, "layout", ["conv2", "contiguous"]),
    "strength": ({}, _infinite, "bad-strength", ["first", "inf"]),
    "overlap": ({}, _overlapping, "overlap", ["first", "proj"]),
}


@needs_peft
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused_by_name_and_nothing_changes(case):
    options, spoil, code, words = REFUSED[case]
    base = Model().bfloat16()
    base.grouped = nn.Conv1d(4, 4, 3, groups=2)
    base.attention = nn.MultiheadAttention(8, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(base, **options)
    if spoil:
        spoil(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with refused(code, *words):
        ltx2c.peft.merge(model)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(tensor.is_meta or torch.equal(tensor, after[name]) for name, tensor in before.items())


@needs_peft
@pytest.mark.parametrize(
    "kind, spoil, code, words",
    [
        ("loha", {"hada_w2_a": (39, 3), "hada_w1_a": (39, 3)}, "shape-mismatch", ["first", "[39, 24]", "[40, 24]"]),
        ("loha", {"hada_w2_b": (2, 24)}, "rank-mismatch", ["first", "[40, 3]", "[2, 24]"]),
        ("lokr", {"lokr_w1": (4, 4)}, "shape-mismatch", ["first", "[40, 24]"]),
    ],
)
def test_factors_that_do_not_fit_are_refused(kind, spoil, code, words):
    model = lycoris(kind, Model(), ["first"])
    for name, shape in spoil.items():
        getattr(model.base_model.model.first, name)["default"] = nn.Parameter(torch.ones(shape))
    before = model.base_model.model.first.base_layer.weight.clone()
    with refused(code, *words):
        ltx2c.peft.merge(model)
    assert torch.equal(before, model.base_model.model.first.base_layer.weight)


@needs_peft
def test_other_methods_and_other_versions_are_refused(monkeypatch):
    with refused("peft-kind", "IA3Model", "LoraModel"):
        ltx2c.peft.merge(peft.get_peft_model(Model(), peft.IA3Config(target_modules=["first"], feedforward_modules=[])))
    with refused("peft-kind", "conv1", "lokr.layer.Conv1d"):
        ltx2c.peft.merge(lycoris("lokr", Model(), ["conv1"]))
    model = wrapped(Model())
    model.peft_config["default"].layer_replication = [(0, 1)]
    with refused("peft-kind", "layer_replication"):
        ltx2c.peft.merge(model)
    monkeypatch.setattr(peft.tuners.lora.layer, "LoraLayer", SimpleNamespace())
    with refused("peft-version", peft.__version__):
        ltx2c.peft.merge(model)


@needs_peft
def test_the_docs_block_merges_a_model():
    (block,) = (one for one in snippets() if one.told == "ci/peft.sh")
    names = {"model": wrapped(nn.Sequential(nn.Linear(9, 7)), target_modules=["0"])}
    exec(compile(block.code, block.name, "exec"), names)
    assert type(names["base_model"]) is nn.Sequential and type(names["base_model"][0]) is nn.Linear
