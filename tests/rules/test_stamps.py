"""The stamps of a job."""

from datetime import timedelta
from typing import Any

import attrs
import pytest

from alkstore_trio._rules.stamps import OUTBOX, PLAIN, Stamps, overridden, stamps


def test_the_stamps_that_need_no_handle() -> None:
    assert attrs.astuple(PLAIN) == (300.0, 3, 5.0, None)
    assert attrs.astuple(OUTBOX) == (60.0, 5, 5.0, None)


def test_a_handles_options_are_kept_as_seconds() -> None:
    assert stamps(timedelta(minutes=1), 2, 0.5, timedelta(days=1)) == Stamps(60.0, 2, 0.5, 86_400.0)
    assert stamps(0.9, 2**63 - 1, 0, 0) == Stamps(0.9, 2**63 - 1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((0, 3, 5, None), "visibility_timeout"),
        ((-1, 3, 5, None), "visibility_timeout"),
        ((300, 0, 5, None), "max_attempts"),
        ((300, 2**63, 5, None), "max_attempts"),
        ((300, 3, -0.1, None), "base_backoff"),
        ((300, 3, 5, -0.1), "dead_retention"),
    ],
)
def test_an_option_out_of_range_is_named(options: tuple[Any, Any, Any, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        stamps(*options)


@pytest.mark.parametrize(
    "options", [("300", 3, 5, None), (300, 3.0, 5, None), (300, True, 5, None), (300, 3, True, None), (300, 3, 5, "1")]
)
def test_an_option_of_the_wrong_type_is_a_type_error(options: tuple[Any, Any, Any, Any]) -> None:
    with pytest.raises(TypeError):
        stamps(*options)


def test_a_call_overrides_the_attempts_and_nothing_else() -> None:
    assert overridden(PLAIN, None) == PLAIN
    assert overridden(OUTBOX, 1) == Stamps(60.0, 1, 5.0, None)


@pytest.mark.parametrize(
    ("attempts", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.0, TypeError)]
)
def test_an_override_is_checked_as_the_option_is(attempts: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_attempts"):
        overridden(PLAIN, attempts)
