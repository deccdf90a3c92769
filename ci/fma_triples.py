"""The reference's fused multiply-add against libm's: ``python ci/fma_triples.py [COUNT [SEED]]``, by default 10^7.

A quarter of the triples are random bits; the others are made to be rounded wrongly: sums near a tie that a product of
48 bits decides, sums that cancel but for the product's last bits, and results among the denormals or at the edge of
overflow. Bytes must be equal, any NaN to any NaN.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ltx2c import reference

Floats = npt.NDArray[np.float32]
Triple = tuple[Floats, Floats, Floats]

_SHARE = 250_000  # triples at a time

# 0, 1, 2, 2^64, 2^-75; the largest, the smallest normal, the one below it, the smallest; inf and NaN.
SPECIAL = np.array(
    [0, 0x3F800000, 0x40000000, 0x5F800000, 0x1A000000, 0x7F7FFFFF, 0x800000, 0x7FFFFF, 1, 0x7F800000, 0x7FC00000],
    np.uint32,
).view(np.float32)


def random_bits(rng: np.random.Generator, count: int) -> Floats:
    """Every float32 as likely as any other, NaNs and infinities among them."""
    return rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)


def near_one(rng: np.random.Generator, count: int) -> Floats:
    """Of either sign, from 1 to 2, with many ones or zeros at the end of their significands."""
    low = rng.integers(0, 8, count, np.uint32)
    bits = np.where(rng.random(count) < 0.5, low, 0x7FFFFF - low)
    bits = np.where(rng.random(count) < 0.5, rng.integers(0, 1 << 23, count, np.uint32), bits).astype(np.uint32)
    return (bits | 0x3F800000 | rng.integers(0, 2, count, np.uint32) << 31).view(np.float32)


def anywhere(rng: np.random.Generator, count: int) -> Triple:
    """Random bits, and one in eight of each a special value."""
    values = [random_bits(rng, count) for _ in range(3)]
    for one in values:
        chosen = rng.random(count) < 1 / 8
        one[chosen] = rng.choice(SPECIAL, int(chosen.sum())) * rng.choice(
            np.array([1, -1], np.float32), int(chosen.sum())
        )
    return values[0], values[1], values[2]


def near_a_tie(rng: np.random.Generator, count: int) -> Triple:
    """A product about half a unit in the addend's last place, which its lower bits push over or not."""
    b, a, c = (near_one(rng, count) for _ in range(3))
    return np.ldexp(b, -rng.integers(22, 27, count, np.int32)), a, c


def cancelling(rng: np.random.Generator, count: int) -> Triple:
    """The addend is the product's negative, rounded, or a unit or two beside it."""
    b, a = (np.ldexp(near_one(rng, count), rng.integers(-60, 60, count, np.int32)) for _ in range(2))
    c = -(b * a)
    return b, a, (c.view(np.int32) + rng.integers(-2, 3, count, np.int32)).view(np.float32)


def at_an_edge(rng: np.random.Generator, count: int) -> Triple:
    """Products that end below the smallest normal number, or sums about the largest finite one."""
    b, a, c = (near_one(rng, count) for _ in range(3))
    low = rng.random(count) < 0.5
    exponents = np.where(low, rng.integers(-152, -120, count), rng.integers(126, 129, count)).astype(np.int32)
    parts = (exponents // 2, exponents - exponents // 2)
    beside = exponents + rng.integers(-26, 3, count, np.int32)
    return np.ldexp(b, parts[0]), np.ldexp(a, parts[1]), np.ldexp(c, np.minimum(beside, 127))


KINDS: tuple[Callable[[np.random.Generator, int], Triple], ...] = (anywhere, near_a_tie, cancelling, at_an_edge)


def libm_fma() -> Callable[[float, float, float], float]:
    """``fmaf`` of the system's libm."""
    found: Any = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    found.argtypes = [ctypes.c_float] * 3
    found.restype = ctypes.c_float
    return found  # type: ignore[no-any-return]


def main(count: int = 10_000_000, seed: int | None = None) -> int:
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    print(f"{count} triples, seed {seed}")
    rng = np.random.default_rng(seed)
    fmaf = libm_fma()
    for done in range(0, count, _SHARE):
        kind = KINDS[done // _SHARE % len(KINDS)]
        with np.errstate(all="ignore"):
            b, a, c = kind(rng, min(_SHARE, count - done))
            ours = reference.fma(b, a, c)
        theirs = np.array(list(map(fmaf, b.tolist(), a.tolist(), c.tolist())), np.float32)
        wrong = (ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))
        if wrong.any():
            at = int(wrong.argmax())
            given = ", ".join(float(one[at]).hex() for one in (b, a, c))
            print(f"{kind.__name__}: fma({given}) is {float(theirs[at]).hex()}, not {float(ours[at]).hex()}")
            return 1
    print("all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
