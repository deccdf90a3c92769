"""Forks, Python threads and floating-point settings around a fusion: none may hang it or change a byte."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
import torch
from goldens import bits
from values import BF16, values

import ltx2c
from ltx2c import fusion, reference


def problem(seed, rows=300, columns=600, rank=70):
    rng = np.random.default_rng(seed)
    shapes = [(rows, columns), (rank, columns), (rows, rank)]
    weight, a, b = (values(rng, shape, "trained", BF16) for shape in shapes)
    return weight, [(a, b, 0.5)]


WEIGHT, TERMS = problem(1)
EXPECTED = bits(reference.fuse_tensor(WEIGHT, TERMS))


def fuses_right() -> bool:
    return bool(np.array_equal(bits(ltx2c.fuse_tensor(WEIGHT, TERMS, threads=2)), EXPECTED))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_fused_may_fork_and_fuse():
    for _ in range(3):
        assert fuses_right()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a hang becomes a signal, which the parent sees
            os._exit(0 if fuses_right() and fuses_right() else 1)
        assert fuses_right()
        _, status = os.waitpid(child, 0)
        assert status == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_workers_of_multiprocessing():
    assert fuses_right()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap_async(fuses_right, [()] * 4).get(timeout=30) == [True] * 4


def test_python_threads_fuse_at_once():
    # Different sizes, so that each call's memory would be of no use to another.
    problems = [problem(seed, rows=100 + 60 * seed) for seed in range(4)]
    wanted = [bits(reference.fuse_tensor(weight, terms)) for weight, terms in problems]
    wrong = []

    def work(index):
        weight, terms = problems[index]
        for _ in range(20):
            if not np.array_equal(bits(ltx2c.fuse_tensor(weight, terms, threads=2)), wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_caller_that_flushes_denormals_still_gets_them():
    tiny, one = np.full((1, 3), 2.0**-133, BF16), np.ones((2, 1), BF16)
    if not torch.set_flush_denormal(True):
        pytest.fail("this CPU cannot flush denormals, so the test shows nothing")
    try:
        fused = ltx2c.fuse_tensor(np.zeros((2, 3), BF16), [(tiny, one, 1.0)], threads=1)
        assert torch.tensor(1e-39).mul(1.0).item() == 0.0  # and the caller's setting survives
    finally:
        torch.set_flush_denormal(False)
    assert (bits(fused) == 1).all()


def test_nothing_depends_on_the_number_of_threads():
    weight, terms = problem(9, rows=520, columns=1030)
    one = fusion.fuse_jobs([fusion.Job(weight, terms, first := np.empty_like(weight))], threads=1)
    many = fusion.fuse_jobs([fusion.Job(weight, terms, second := np.empty_like(weight))], threads=16)
    assert one == many and np.array_equal(bits(first), bits(second))
