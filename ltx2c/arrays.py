"""The kinds of array that fusion takes: NumPy arrays, and torch tensors on the CPU, both used where they lie."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ltx2c.dtypes import FUSIBLE
from ltx2c.errors import RefusedError

Array = npt.NDArray[Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# The kernels' numbers for dtypes (core.h).
KERNEL_DTYPES: dict[np.dtype[Any], int] = {dtype.numpy: dtype.code for dtype in FUSIBLE.values()}

_TORCH_DTYPES = frozenset(f"torch.{dtype}" for dtype in KERNEL_DTYPES)


def numbered(array: Array) -> tuple[Array, int]:
    """An array's bytes ``[rows, columns * itemsize]``, without a copy, and the kernels' number of its dtype."""
    return array.view(np.uint8), KERNEL_DTYPES[array.dtype]


def as_array(given: Any, name: str) -> Array:
    """A 2-D NumPy array over the memory of an array or a torch tensor, of a dtype there are kernels for.

    Raises:
        RefusedError: anything else, called ``name`` in the message.
    """
    array = given if type(given) is np.ndarray else _as_plain(given, name)
    if array.ndim != 2:
        raise RefusedError(f"{name} must have 2 dimensions, not {array.ndim}: {list(array.shape)}", code="dimensions")
    if array.dtype not in KERNEL_DTYPES:
        raise _wrong_dtype(name, array.dtype)
    if array.shape[1] == 1 and array.strides[1] != array.itemsize:  # means nothing, and may be anything
        return np.lib.stride_tricks.as_strided(array, strides=(array.strides[0], array.itemsize))
    return array


def _as_plain(given: Any, name: str) -> Array:
    array = _from_torch(given, name) if _is_torch(given) else given
    if not isinstance(array, np.ndarray):
        raise RefusedError(f"{name} is neither a NumPy array nor a torch tensor: {type(given).__name__}", code="type")
    if isinstance(array, np.ma.MaskedArray):  # what is masked would be fused like the rest
        raise RefusedError(f"{name} is a masked array; filled() or .data makes it a plain one", code="type")
    return array


def empty_like(weight: Any) -> Any:
    """A new array of a weight's kind, shape and dtype, its rows next to each other."""
    if _is_torch(weight):
        return sys.modules["torch"].empty(weight.shape, dtype=weight.dtype, device="cpu")
    return np.empty(as_array(weight, "weight").shape, weight.dtype)


def _wrong_dtype(name: str, dtype: object) -> RefusedError:
    *most, last = map(str, KERNEL_DTYPES)
    return RefusedError(f"{name} is {dtype}; {', '.join(most)} and {last} can be fused", code="unsupported-dtype")


def _is_torch(given: Any) -> bool:
    """Whether this is a torch tensor; torch is never imported here, a tensor's owner has done that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def mark_written(out: Any) -> None:
    """Tell autograd, as torch's own in-place operations do: a graph that needs the old values then says so."""
    if _is_torch(out) and not out.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(out)


def _from_torch(tensor: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    _check_plain(tensor, name)
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise RefusedError(f"{name} is not a dense tensor on the CPU: {tensor.layout}, {tensor.device}", code="device")
    if str(tensor.dtype) not in _TORCH_DTYPES:
        raise _wrong_dtype(name, tensor.dtype)
    if tensor.is_neg():  # its memory holds other values than it shows: torch negates them when they are read
        raise RefusedError(f"{name} is the negative view of another tensor; resolve_neg() makes it one", code="type")
    _check_storage(tensor, name)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(_BFLOAT16)
        return array
    array = tensor.numpy()
    return array


def _check_plain(tensor: Any, name: str) -> None:
    """Refuse a tensor whose values are not simply in its memory: of FakeTensor, DTensor, quantised wrappers, vmap."""
    torch = sys.modules["torch"]
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise RefusedError(f"{name} is a {type(tensor).__name__}, which has no plain memory of its own", code="type")
    if tensor.is_cpu and tensor.layout is torch.strided:
        try:
            tensor.data_ptr()
        except RuntimeError:
            raise RefusedError(
                f"{name} is a tensor of a transform such as vmap or grad, without memory", code="type"
            ) from None


def _check_storage(tensor: Any, name: str) -> None:
    """Refuse a tensor whose memory was taken away, as FSDP does between two uses."""
    if not tensor.numel():
        return
    last = tensor.storage_offset()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    needed, there = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
    if there < needed:
        raise RefusedError(
            f"{name} needs {needed} bytes of its storage, which holds {there}: it was freed", code="storage"
        )
