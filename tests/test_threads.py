"""Thread counts: what is asked for, what the machine allows, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ltx2c import threads
from ltx2c.errors import RefusedError


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 8 CPUs without a quota, whose files can be written."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(threads, "_known", None)
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_given_number_is_taken(machine):
    assert threads.resolve_threads(3) == 3
    assert threads.resolve_threads(np.int64(20)) == 20


@pytest.mark.parametrize("given", [0, -1, 1.5, "2", 4097, 3_000_000_000, 10**400])
def test_anything_else_is_refused(given):
    with pytest.raises(RefusedError) as refusal:
        threads.resolve_threads(given)
    assert refusal.value.code == "threads"


def test_the_affinity_mask_is_the_default(machine):
    assert threads.resolve_threads(None) == 8


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("3", 3),
        ("2,4", 2),
        (" 5 ", 5),
        ("99", 8),
        ("0", 8),
        ("many", 8),
        ("", 8),
        ("-2", 8),
        ("9" * 5000, 8),
        ("\u0663", 8),
    ],
)
def test_openmps_variable(machine, monkeypatch, setting, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert threads.resolve_threads(None) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("250000 100000", 3), ("1000 100000", 1), ("rubbish", 8), ("0 0", 8)]
)
def test_cgroup_2_quota(machine, quota, expected):
    write(machine / "membership", "0::/user/job\n")
    write(machine / "cgroup" / "user" / "job" / "cpu.max", quota + "\n")
    assert threads.resolve_threads(None) == expected


def test_the_tightest_parent_counts(machine):
    write(machine / "membership", "0::/user/job\n")
    write(machine / "cgroup" / "user" / "job" / "cpu.max", "600000 100000")
    write(machine / "cgroup" / "user" / "cpu.max", "200000 100000")
    assert threads.resolve_threads(None) == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 2)])
def test_cgroup_1_quota(machine, quota, expected):
    write(machine / "membership", "4:cpuacct,cpu:/job\n7:memory:/other\n")
    write(machine / "cgroup" / "cpu" / "job" / "cpu.cfs_quota_us", quota)
    write(machine / "cgroup" / "cpu" / "job" / "cpu.cfs_period_us", "100000")
    assert threads.resolve_threads(None) == expected


def test_a_container_that_sees_only_its_own_group(machine):
    # The membership names a path of the host; the group's own files lie at the root.
    write(machine / "membership", "0::/docker/0123\n")
    write(machine / "cgroup" / "cpu.max", "100000 100000")
    assert threads.resolve_threads(None) == 1
