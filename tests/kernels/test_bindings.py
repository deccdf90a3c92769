"""What the bindings refuse by themselves, whoever calls them."""

from __future__ import annotations

import numpy as np
import pytest

from ltx2c.kernels import fuse

ONES = np.ones((2, 3), np.float32)
F32 = 1


def test_what_is_written_must_be_writable() -> None:
    kept = ONES.copy()
    kept.flags.writeable = False
    for weight, out in ((ONES, kept), (kept, kept)):
        with pytest.raises(ValueError, match="read-only"):
            fuse.Jobs(1, 0).add_job(weight, out, F32, 0)
    fuse.Jobs(1, 0).add_job(kept, ONES.copy(), F32, 0)


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3)])
def test_arrays_are_matrices(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    for weight, out in ((array, ONES), (ONES, array)):
        with pytest.raises(ValueError, match=f"{len(shape)} dimensions"):
            fuse.Jobs(1, 0).add_job(weight, out, F32, 0)
    jobs = fuse.Jobs(1, 2)
    jobs.add_job(ONES, ONES, F32, 0)
    with pytest.raises(ValueError, match="dimensions"):
        jobs.add_term(array, F32, ONES, F32, 1.0)
    with pytest.raises(ValueError, match="dimensions"):
        jobs.add_full_term(array, F32, 1.0)


def test_no_more_than_was_announced() -> None:
    jobs = fuse.Jobs(1, 1)
    with pytest.raises(IndexError):
        jobs.add_full_term(ONES, F32, 1.0)  # before its job
    jobs.add_job(ONES, ONES, F32, 0)
    jobs.add_full_term(ONES, F32, 1.0)
    with pytest.raises(IndexError):
        jobs.add_full_term(ONES, F32, 1.0)
    with pytest.raises(IndexError):
        jobs.add_job(ONES, ONES, F32, 0)


def test_arrays_live_as_long_as_their_jobs() -> None:
    weight = np.zeros((64, 64), np.float32)
    jobs = fuse.Jobs(1, 1)
    jobs.add_job(weight, weight, F32, 0)
    jobs.add_full_term(np.full((64, 64), 0.5, np.float32), F32, 1.0)
    rubbish = [np.full((64, 64), 7, np.float32) for _ in range(20)]
    jobs.run("serial", 1)
    assert (weight == 0.5).all() and len(rubbish) == 20
