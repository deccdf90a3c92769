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

def encode_fp8(
    values: _Bytes, codes: _Bytes, wide: bool, kind: int, scales: _Scales, granule: tuple[int, int], threads: int
) -> tuple[int, int, int]:
    """codes = values over new scales, which are set.

    Returns how many codes changed, how many results are infinite or NaN where the code before was finite, and how many
    values have no scale, so that their codes are as before.
    """
