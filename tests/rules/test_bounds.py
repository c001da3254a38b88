"""Numbers: extents, durations, boundaries, offsets, counts."""

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alkstore_trio._rules import bounds

HUGE = sys.float_info.max
FINITE = st.floats(allow_nan=False, allow_infinity=False)

Check = Callable[[Any, str], Any]

OF_SECONDS = [bounds.span, bounds.instant, bounds.duration, bounds.not_negative]
WHOLE = [bounds.extent, bounds.offset, bounds.stored]


@pytest.mark.parametrize("check", OF_SECONDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_time_is_finite(check: Check, value: float) -> None:
    with pytest.raises(ValueError, match=f"ttl must be finite, not {value}"):
        check(value, "ttl")


@pytest.mark.parametrize("check", OF_SECONDS)
@pytest.mark.parametrize("value", [True, False, "1", None, 1j, b"1", [1]])
def test_time_is_a_number(check: Check, value: object) -> None:
    with pytest.raises(TypeError, match=f"ttl must be .* not {type(value).__name__}"):
        check(value, "ttl")


@pytest.mark.parametrize("check", OF_SECONDS)
@pytest.mark.parametrize("value", [1, 1.0, 0.25, 2**63, HUGE, sys.float_info.min])
def test_time_is_kept_as_a_float_of_the_same_value(check: Check, value: float) -> None:
    seconds = check(value, "ttl")
    assert type(seconds) is float
    assert seconds == value


@pytest.mark.parametrize("check", OF_SECONDS)
def test_time_beyond_the_range_of_a_float_saturates(check: Check) -> None:
    assert check(10**400, "ttl") == HUGE


@pytest.mark.parametrize("check", [bounds.span, bounds.instant])
def test_a_boundary_far_in_the_past_saturates_too(check: Check) -> None:
    assert check(-(10**400), "delay") == -HUGE


@pytest.mark.parametrize("check", [bounds.span, bounds.duration, bounds.not_negative])
def test_a_length_of_time_may_be_a_timedelta(check: Check) -> None:
    assert check(timedelta(minutes=1, milliseconds=250), "ttl") == 60.25


@pytest.mark.parametrize("check", [bounds.span, bounds.duration, bounds.not_negative])
def test_a_length_of_time_is_no_datetime(check: Check) -> None:
    with pytest.raises(TypeError):
        check(datetime.now(UTC), "ttl")


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-3))])
def test_an_instant_may_be_an_aware_datetime(zone: timezone) -> None:
    assert bounds.instant(datetime.fromtimestamp(1_700_000_000.5, zone), "run_at") == 1_700_000_000.5


def test_an_instant_is_no_naive_datetime() -> None:
    with pytest.raises(ValueError, match="aware"):
        bounds.instant(datetime(2030, 1, 1), "run_at")  # noqa: DTZ001 the very thing that is refused


def test_an_instant_is_no_timedelta() -> None:
    with pytest.raises(TypeError):
        bounds.instant(timedelta(seconds=1), "run_at")  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, -1e-9, timedelta(0), timedelta(seconds=-1), -(10**400)])
def test_a_lease_that_has_expired_at_once_is_refused(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="ttl must be above zero"):
        bounds.duration(value, "ttl")


@pytest.mark.parametrize("value", [-1, -1e-9, timedelta(seconds=-1)])
def test_less_than_nothing_is_refused(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="base_backoff must not be below zero"):
        bounds.not_negative(value, "base_backoff")


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)])
def test_nothing_is_not_below_zero(value: float | timedelta) -> None:
    assert bounds.not_negative(value, "base_backoff") == 0


@given(FINITE, FINITE)
@example(HUGE, HUGE)
@example(-HUGE, -HUGE)
def test_a_shifted_instant_is_always_finite(now: float, seconds: float) -> None:
    then = bounds.shifted(now, seconds)
    assert math.isfinite(then)
    assert then >= now if seconds >= 0 else then <= now


@given(FINITE.filter(lambda now: now < HUGE), st.floats(min_value=0, exclude_min=True, allow_infinity=False))
@example(1.7e9, sys.float_info.min)
@example(1.7e9, HUGE)
def test_the_end_of_a_lease_is_finite_and_later_than_now(now: float, seconds: float) -> None:
    assert now < bounds.deadline(now, seconds) <= HUGE


@given(FINITE.filter(lambda moment: moment < HUGE))
def test_after_is_the_next_float(moment: float) -> None:
    then = bounds.after(moment)
    assert moment < then <= HUGE
    assert math.nextafter(then, -math.inf) == moment


def test_after_the_last_float_is_the_last_float() -> None:
    assert bounds.after(HUGE) == HUGE


@pytest.mark.parametrize("check", WHOLE)
@pytest.mark.parametrize("value", [True, 1.0, "1", None, math.nan])
def test_a_count_is_an_int(check: Check, value: object) -> None:
    with pytest.raises(TypeError, match=f"n must be an int, not {type(value).__name__}"):
        check(value, "n")


@pytest.mark.parametrize(
    ("value", "kept"), [(-(2**70), 0), (-1, 0), (0, 0), (1, 1), (100, 100), (2**63 - 1, 2**63 - 1), (2**70, 2**63 - 1)]
)
def test_an_extent_clamps(value: int, kept: int) -> None:
    assert bounds.extent(value, "n") == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [(-(2**70), -(2**63)), (-(2**63), -(2**63)), (-1, -1), (0, 0), (2**63 - 1, 2**63 - 1), (2**70, 2**63 - 1)],
)
def test_an_offset_is_total(value: int, kept: int) -> None:
    assert bounds.offset(value, "offset") == kept


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**63 - 1])
def test_a_kept_int_fits_64_bits(value: int) -> None:
    assert bounds.stored(value, "priority") == value


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**200])
def test_a_kept_int_beyond_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"priority must fit 64 bits signed, not {value}"):
        bounds.stored(value, "priority")


def test_an_int_too_long_to_print_is_refused_all_the_same() -> None:
    with pytest.raises(ValueError, match="priority must fit 64 bits signed"):
        bounds.stored(10 ** (sys.get_int_max_str_digits() + 1), "priority")


@pytest.mark.parametrize(("least", "value"), [(1, 1), (1, 2**63 - 1), (0, 0)])
def test_a_count_may_be_its_least(least: int, value: int) -> None:
    assert bounds.at_least(least, value, "concurrency") == value


@pytest.mark.parametrize(("least", "value"), [(1, 0), (1, -1), (0, -1), (1, 2**63)])
def test_a_count_below_its_least_or_beyond_64_bits_is_refused(least: int, value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        bounds.at_least(least, value, "concurrency")


def test_ids_are_taken_once_each_in_order_and_clamped() -> None:
    assert bounds.ids([3, 1, 3, -5, 2**70]) == (3, 1, -5, 2**63 - 1)
    assert bounds.ids(iter(())) == ()


@pytest.mark.parametrize("values", ["12", b"12", [1.0], [True], ["1"], 5, None])
def test_ids_are_an_iterable_of_ints(values: Any) -> None:
    with pytest.raises(TypeError):
        bounds.ids(values)
