"""What other people's writers make is read to the values that they decode, and what we write they decode to ours.

They run where they are installed: ``ci/writers.sh`` installs them.
"""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from goldens import bits

from ltx2c import layouts

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
SHAPES = [(128, 64), (200, 160)]


def writer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def stored(tensor, dtype=np.uint8):
    torch = pytest.importorskip("torch")
    return tensor.detach().contiguous().view(torch.uint8).numpy().view(dtype).copy()


def decoded(name, codes, companions, shape):
    values = np.empty(shape, np.float32)
    layouts.layout_named(name).decode(codes, companions, slice(0, shape[0]), values, 2)
    return values


def weight(shape):
    torch = pytest.importorskip("torch")
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.03).to(torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_comfy_kitchen_nvfp4(shape):
    torch, kitchen = pytest.importorskip("torch"), writer("comfy_kitchen.backends.eager.quantization")
    given = weight(shape)
    scale = given.float().abs().max() / 2688
    data, blocks = kitchen.quantize_nvfp4(given, scale)
    companions = {"scale": stored(blocks, E4M3), "scale_2": scale.numpy().copy()}
    theirs = kitchen.dequantize_nvfp4(data, scale, blocks, torch.float32).numpy()
    np.testing.assert_array_equal(decoded("nvfp4-swizzled", stored(data), companions, shape), theirs)

    codes, values = stored(data), given.view(torch.int16).numpy().view(BF16)
    layouts.layout_named("nvfp4-swizzled").encode(values, codes, companions, slice(0, shape[0]), 2)
    written = [torch.from_numpy(bits(companions["scale"])).view(torch.float8_e4m3fn), torch.float32]
    read = kitchen.dequantize_nvfp4(torch.from_numpy(codes), torch.from_numpy(companions["scale_2"]), *written)
    np.testing.assert_array_equal(decoded("nvfp4-swizzled", codes, companions, shape), read.numpy())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_comfy_kitchen_fp8(shape):
    torch, kitchen = pytest.importorskip("torch"), writer("comfy_kitchen.backends.eager.quantization")
    given = weight(shape).float()
    scale = given.abs().max() / 448
    data = kitchen.quantize_per_tensor_fp8(given, scale)
    ours = decoded("fp8-scaled", stored(data, E4M3), {"scale": scale.numpy().copy()}, shape)
    np.testing.assert_array_equal(ours, kitchen.dequantize_per_tensor_fp8(data, scale, torch.float32).numpy())


def test_torchao_fp8_rows():
    torch, torchao = pytest.importorskip("torch"), writer("torchao.quantization")
    linear = torch.nn.Linear(160, 200, bias=False, dtype=torch.bfloat16)
    torchao.quantize_(linear, torchao.Float8WeightOnlyConfig())
    theirs = linear.weight
    assert theirs.scale.shape == (200, 1) and theirs.scale.dtype == torch.float32
    ours = decoded("fp8-row", stored(theirs.qdata, E4M3), {"scale": theirs.scale.numpy().copy()}, (200, 160))
    np.testing.assert_array_equal(bits(ours.astype(BF16)), stored(theirs.dequantize(), np.uint16))


@pytest.mark.parametrize(
    ("strategy", "name", "block"),
    [("tensor", "fp8-scaled", None), ("channel", "fp8-row", None), ("block", "fp8-block", [128, 128])],
)
def test_compressed_tensors_fp8(strategy, name, block):
    """Of a float32 model. Of a bfloat16 one it stores bfloat16 scales, for which there is no rule: refused by name."""
    torch, compressors = pytest.importorskip("torch"), writer("compressed_tensors.compressors")
    quantization = writer("compressed_tensors.quantization")
    arguments = quantization.QuantizationArgs(num_bits=8, type="float", strategy=strategy, block_structure=block)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=arguments, format="float-quantized")
    linear = torch.nn.Linear(256, 384, bias=False)
    quantization.initialize_module_for_quantization(linear, scheme)
    grouped = {"tensor": (1, 384, 1, 256), "channel": (384, 1, 1, 256), "block": (3, 128, 2, 128)}[strategy]
    scales = linear.weight.data.reshape(grouped).abs().amax((1, 3)) / 448
    linear.weight_scale.data.copy_(scales.reshape(linear.weight_scale.shape))
    linear.quantization_status = quantization.QuantizationStatus.FROZEN
    compressors.compress_module(linear)
    made = linear.state_dict()
    assert set(made) == {"weight", "weight_scale"}
    ours = decoded(name, stored(made["weight"], E4M3), {"scale": made["weight_scale"].numpy().copy()}, (384, 256))
    compressors.decompress_module(linear)
    np.testing.assert_array_equal(ours, linear.weight.data.numpy())
