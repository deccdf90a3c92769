"""A cluster that is played: by hand-derived times, by bounds, and nothing lost or made up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltx2c.cluster import Cluster, UnitWork, bottleneck, play

GB = 10**9


def alike(count: int, *, read: int = 0, written: int = 0, seconds: float = 0.0, result: int = 0) -> list[UnitWork]:
    return [UnitWork(result, read, written, seconds)] * count


def test_one_worker_is_as_fast_as_the_slowest_of_what_it_needs() -> None:
    # by hand, 10 units: arithmetic 2 s each; 1 GB read at 1 GB/s; storage 1.5 GB at 0.5 GB/s is 3 s each
    units = alike(10, read=GB, written=GB // 2, seconds=2.0)
    assert play(units, [], Cluster(1, 1e9, 1e12)).seconds == pytest.approx(20)  # arithmetic
    assert play(units, [], Cluster(1, 0.25e9, 1e12)).seconds == pytest.approx(40)  # network: 4 s to read
    assert play(units, [], Cluster(1, 1e9, 0.5e9)).seconds == pytest.approx(30)  # storage
    assert play(units, [], Cluster(1, 1e9, 1e12, start=0.5)).seconds == pytest.approx(25)


def test_storage_is_shared_and_bounds_any_number_of_workers() -> None:
    units = alike(100, read=GB, written=GB)
    for workers in (1, 10, 1000):
        played = play(units, [], Cluster(workers, 1e9, 4e9))
        # by hand: 200 GB through 4 GB/s are 50 s; a worker alone moves 1 GB each way in a second
        assert played.seconds == pytest.approx(max(50, 100 / workers))


def test_who_needs_less_than_an_even_share_leaves_the_rest_to_others() -> None:
    # by hand, storage 3 GB/s: one wants 1 GB/s (10 GB in 10 s), the other gets 2 GB/s: 20 GB in 10 s
    units = [UnitWork(0, 10 * GB, 0, 10.0), UnitWork(0, 20 * GB, 0, 0.0)]
    assert play(units, [], Cluster(2, 100e9, 3e9)).seconds == pytest.approx(10)


def test_the_last_units_are_a_tail() -> None:
    units = alike(9, seconds=1.0)
    assert [play(units, [], Cluster(count, 1, 1)).seconds for count in (1, 2, 4, 8, 9, 99)] == [9, 5, 3, 2, 1, 1]


def test_a_result_is_checked_when_its_units_are_done_and_before_others_units_are_begun() -> None:
    # by hand, one worker: result 0's two units (2 s), its check (3 s), then result 1's unit (1 s) and check (3 s)
    units = alike(2, seconds=1.0) + alike(1, seconds=1.0, result=1)
    checks = alike(1, seconds=3.0) + alike(1, seconds=3.0, result=1)
    played = play(units, checks, Cluster(1, 1, 1))
    assert (played.seconds, played.units_done) == (9, 6)
    many = play(units, checks, Cluster(50, 1, 1))
    assert (many.seconds, many.units_done) == (4, 1)


@pytest.mark.parametrize(
    ("cluster", "wanted"),
    [
        (Cluster(1, 1e12, 1e12), "compute"),
        (Cluster(1, 0.1e9, 1e12), "network"),
        (Cluster(100, 1e9, 1e9), "storage"),
        (Cluster(1000, 1e12, 1e12), "units"),
        (Cluster(1, 1e12, 1e12, start=60.0), "units"),
    ],
)
def test_the_bottleneck_is_what_would_help_most(cluster: Cluster, wanted: str) -> None:
    assert bottleneck(alike(100, read=GB, written=GB, seconds=1.0), [], cluster) == wanted


@st.composite
def work(draw: st.DrawFn) -> list[UnitWork]:
    number = st.integers(0, 5)
    return [
        UnitWork(0, draw(number) * GB, draw(number) * GB, float(draw(number))) for _ in range(draw(st.integers(1, 12)))
    ]


@settings(max_examples=150, deadline=None)
@given(work(), st.integers(1, 15), st.sampled_from([0.3e9, 1e9, 1e12]), st.sampled_from([0.5e9, 3e9, 1e12]))
def test_no_byte_is_lost_and_no_bound_broken(
    units: list[UnitWork], workers: int, network: float, storage: float
) -> None:
    cluster = Cluster(workers, network, storage, 0.25)
    played = play(units, [], cluster)
    read, written = sum(unit.read for unit in units), sum(unit.written for unit in units)
    assert (sum(played.read), sum(played.written)) == (read, written)
    assert len(played.read) == len(played.written) == workers
    alone = [0.25 + max(unit.seconds, unit.read / network, unit.written / network) for unit in units]
    lower = max((read + written) / storage, max(alone), sum(alone) / workers)
    upper = sum(alone) + (read + written) / storage
    assert lower * (1 - 1e-6) <= played.seconds <= upper * (1 + 1e-6)


@settings(max_examples=100, deadline=None)
@given(work(), st.sampled_from([0.3e9, 1e9, 1e12]))
def test_where_storage_is_no_bound_more_and_faster_workers_never_take_longer(
    units: list[UnitWork], network: float
) -> None:
    times = [play(units, [], Cluster(workers, network, 1e15, 0.1)).seconds for workers in range(1, 15)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(times))
    faster = [play(units, [], Cluster(workers, 2 * network, 1e15, 0.1)).seconds for workers in range(1, 15)]
    assert all(fast <= slow * (1 + 1e-6) for fast, slow in zip(faster, times, strict=True))


def test_where_storage_is_shared_one_worker_more_can_take_longer() -> None:
    # by hand: two workers, two rounds of 1.1 s; three share 5 GB/s: a round of 1.3 s, and one unit is left
    units = alike(4, read=GB, written=GB)
    two, three = (play(units, [], Cluster(count, 1e9, 5e9, 0.1)).seconds for count in (2, 3))
    assert (two, three) == (pytest.approx(2.2), pytest.approx(2.4))
