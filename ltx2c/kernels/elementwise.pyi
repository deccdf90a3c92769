import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]

# Arrays are contiguous. `ltx2c.dora` states the roundings and the order of the sums.

def rescale_rows(values: _Floats, magnitudes: _Floats, step: float | None, threads: int) -> None:
    """Bring each row of values [rows, columns] to the length magnitudes[row]; with LyCORIS' step, or None."""

def rescale_columns(values: _Floats, magnitudes: _Floats, step: float | None, threads: int) -> None:
    """The same for the columns of each input: values [rows, inputs * places]."""

def multiply(first: _Floats, second: _Floats, threads: int) -> None:
    """first[i] = f32(first[i] * second[i])"""

def store(values: _Floats, out: npt.NDArray[np.uint8], dtype: int, through_bf16: bool, threads: int) -> int:
    """Round values [rows, columns] to the dtype, numbered as in core.h, and store them in the bytes of as many.

    Returns how many are infinite or NaN, which is stored as the canonical one, where what stood there was finite.
    """
