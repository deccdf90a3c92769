import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]
_Scales = npt.NDArray[np.float32] | None

# Codes are bytes [rows, columns] of kind 0 (e4m3fn) or 1 (e5m2). Values are the bytes of as many float32 where `wide`,
# else bfloat16. Scales: none; one, [1, 1]; or a row-major grid with one for each `granule` (rows, columns), those at
# the edges being smaller.

def decode_fp8(
    codes: _Bytes, values: _Bytes, wide: bool, kind: int, scales: _Scales, granule: tuple[int, int], threads: int
) -> None:
    """values = codes times their scales; bfloat16 is rounded to, once."""

def largest_magnitude(values: _Bytes, wide: bool, threads: int) -> int:
    """The bits of the largest magnitude as a float32; 0 where all are zeros, and those of a NaN where one is."""

def encode_fp8(
    values: _Bytes,
    codes: _Bytes,
    wide: bool,
    kind: int,
    scales: _Scales,
    granule: tuple[int, int],
    largest: int,
    threads: int,
) -> tuple[int, int, int]:
    """codes = values over new scales, which are set; of one scale, by the ``largest_magnitude`` of all of its values.

    Returns how many codes changed, how many results are infinite or NaN where the code before was finite, and how many
    values have no scale, so that their codes are as before.
    """

# NVFP4: codes are bytes [rows, columns / 2], the first of two codes in the high half. Block scales are e4m3 codes
# [rows of the weight or more, columns / 16 or more], row-major or `swizzled` in cuBLAS's tiles; `scale` is that of all.

def decode_nvfp4(
    codes: _Bytes,
    values: _Bytes,
    wide: bool,
    scales: _Bytes,
    scale: float,
    swizzled: bool,
    first_row: int,
    threads: int,
) -> None:
    """values = codes times block scale times scale; bfloat16 is rounded to, once."""

def encode_nvfp4(
    values: _Bytes,
    codes: _Bytes,
    wide: bool,
    scales: _Bytes,
    scale: float,
    swizzled: bool,
    first_row: int,
    largest: int,
    threads: int,
) -> tuple[float, int, int, int]:
    """codes and block scales of rows of a weight whose ``largest_magnitude`` is given; where that is 0, all scales stay
    as they are.

    Returns the new scale of all, then as ``encode_fp8`` does.
    """

def cast(values: _Bytes, source: int, out: _Bytes, target: int, columns: int, threads: int) -> int:
    """out = values, both bytes of [rows, columns] of a dtype that core.h numbers. Returns how many finite ones became
    infinite."""
