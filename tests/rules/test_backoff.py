"""The retry curve."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alkstore_trio._rules.backoff import delay

HUGE = sys.float_info.max
DAY = 86_400.0


@pytest.mark.parametrize("base", [5.0, 0.25, 100_000.0])
def test_every_attempt_of_ten_thousand_is_within_its_range(base: float) -> None:
    ceiling = min(base, DAY)
    for attempts in range(1, 10_001):
        assert delay(base, attempts, 0.0) == ceiling / 2
        assert delay(base, attempts, 1.0) == ceiling
        ceiling = min(ceiling * 2, DAY)


@pytest.mark.parametrize("attempts", range(1, 6))
def test_the_curve_doubles(attempts: int) -> None:
    assert delay(5, attempts, 1.0) == 5 * 2 ** (attempts - 1)


@pytest.mark.parametrize("attempts", [1, 2, 1_000, 10_000, 2**63 - 1])
def test_no_base_is_no_delay(attempts: int) -> None:
    assert delay(0.0, attempts, 1.0) == 0.0


@given(
    st.floats(0, HUGE, exclude_min=True),
    st.integers(1, 2**63 - 1),
    st.floats(0, 1),
)
@example(sys.float_info.min, 10_000, 1.0)
@example(5e-324, 2**63 - 1, 0.0)
@example(HUGE, 2**63 - 1, 1.0)
def test_it_never_overflows_nor_passes_a_day(base: float, attempts: int, jitter: float) -> None:
    assert 0 <= delay(base, attempts, jitter) <= DAY


@pytest.mark.parametrize("base", [5e-324, 1e-300, 1e-9])
def test_even_the_least_base_reaches_the_top(base: float) -> None:
    assert delay(base, 10_000, 1.0) == DAY


@given(st.floats(1e-6, 1e6), st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_more_jitter_is_no_less_delay(base: float, attempts: int, one: float, other: float) -> None:
    less, more = sorted([one, other])
    assert delay(base, attempts, less) <= delay(base, attempts, more)
