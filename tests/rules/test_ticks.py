"""Which boundaries fire at a tick, and where the grid goes on."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alkstore_trio._rules.ticks import CATCH_UP, first_boundary, kept_boundary, tick

DAY = 86_400
INTERVALS = st.integers(1, 3_650 * DAY).map(float)
INSTANTS = st.floats(0, 4e9)  # a century and more of unix time


def test_nothing_fires_before_its_boundary() -> None:
    assert tick(100.0, 10.0, math.nextafter(100.0, 0)) == (0, 100.0)


@pytest.mark.parametrize(
    ("now", "times", "next_at"),
    [
        (100.0, 1, 110.0),  # at the boundary itself
        (109.9, 1, 110.0),
        (110.0, 2, 120.0),
        (111.0, 2, 120.0),
        (730.0, 64, 740.0),  # 64 boundaries, all made up for
        (740.0, 64, 750.0),  # 65: one is skipped
        (10_000.0, 64, 10_010.0),
    ],
)
def test_each_missed_boundary_fires_once_and_64_at_most(now: float, times: int, next_at: float) -> None:
    assert tick(100.0, 10.0, now) == (times, next_at)


@pytest.mark.parametrize("next_at", [0.1, 0.7, 1_700_000_000.3])
@pytest.mark.parametrize("periods", [1, 3, 7, 60])
def test_a_boundary_fires_at_its_float_and_not_at_the_one_before(next_at: float, periods: int) -> None:
    interval = 3.0
    boundary = next_at + periods * interval
    assert tick(next_at, interval, boundary)[0] == periods + 1
    assert tick(next_at, interval, math.nextafter(boundary, 0)) == (periods, boundary)


@pytest.mark.parametrize(
    ("next_at", "interval", "periods"),
    [(1_000.7, 60.0, 18), (1_000.1, 7.0, 28), (60.1, 2.0, 19), (60.2, 5.0, 25)],
)
def test_a_boundary_fires_at_its_float_though_its_distance_is_rounded_down(
    next_at: float, interval: float, periods: int
) -> None:
    boundary = next_at + periods * interval
    assert (boundary - next_at) // interval == periods - 1
    assert tick(next_at, interval, boundary) == (periods + 1, next_at + (periods + 1) * interval)


def test_600_seconds_behind_every_2_seconds() -> None:
    assert tick(1_000.0, 2.0, 1_600.0) == (64, 1_602.0)


@given(INSTANTS, INTERVALS, st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_every_boundary_up_to_the_cap_fires_and_the_next_is_ahead_on_the_grid(
    next_at: float, interval: float, periods: int, fraction: float
) -> None:
    now = next_at + interval * periods + interval * fraction
    times, following = tick(next_at, interval, now)
    step = (Fraction(following) - Fraction(next_at)) / Fraction(interval)
    assert following > now
    assert abs(step - round(step)) < Fraction(1, 1_000_000)  # on the grid, as floats go
    assert following - interval <= now  # no grid point between
    assert times == min(round(step), CATCH_UP)


@given(st.integers(0, 4 * 10**9), st.integers(1, 10**6), st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
@example(1_000, 2, [0, 600, 2, 1])
def test_over_any_run_of_ticks_no_boundary_fires_twice_and_none_is_missed_but_by_the_cap(
    start: int, interval: int, steps: list[int]
) -> None:
    now, next_at, skipped, fires = start, float(start), 0, 0
    for step in steps:
        now += step
        missed = max(0, (now - int(next_at)) // interval + 1)
        times, next_at = tick(next_at, float(interval), float(now))
        assert times == min(missed, CATCH_UP)
        fires += times
        skipped += missed - times
    assert next_at == start + (fires + skipped) * interval
    assert now < next_at <= now + interval


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    INTERVALS,
    st.floats(-1e300, 1e300),
)
@example(-1.7e308, 1.0, 1e300)
@example(0.0, 1.0, 1e16)  # where floats are sparser than the grid
@example(0.0, 1.0, 2.0**53)
def test_the_next_boundary_is_always_finite_and_ahead(next_at: float, interval: float, now: float) -> None:
    times, following = tick(next_at, interval, now)
    assert 0 <= times <= CATCH_UP
    assert math.isfinite(following)
    assert following > now
    assert (times == 0) == (next_at > now)
    assert (following == next_at) == (times == 0)


@given(INSTANTS, INTERVALS, INSTANTS)
def test_a_clock_that_steps_back_fires_nothing_again(next_at: float, interval: float, now: float) -> None:
    _, following = tick(next_at, interval, now)
    assert tick(following, interval, now) == (0, following)


def test_a_new_grid_begins_one_interval_from_now() -> None:
    assert first_boundary(1_000.0, 60.0) == 1_060.0


def test_an_unchanged_interval_keeps_its_grid_however_late() -> None:
    assert kept_boundary(1_060.0, 60.0, 60.0, 1_059.0) == 1_060.0
    assert kept_boundary(1_060.0, 60.0, 60.0, 5_000.0) == 1_060.0


def test_a_changed_interval_starts_a_new_grid() -> None:
    assert kept_boundary(1_060.0, 60.0, 30.0, 1_010.0) == 1_040.0
