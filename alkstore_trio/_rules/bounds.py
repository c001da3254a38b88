"""What a number may be: extents, durations, boundaries, offsets, counts.

Time is seconds as ``float``; an instant is unix time. Nothing here reads a clock.
"""

import math
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta

from .._errors import shown

__all__ = [
    "LARGEST",
    "LATEST",
    "SMALLEST",
    "Instant",
    "Seconds",
    "after",
    "at_least",
    "deadline",
    "duration",
    "extent",
    "ids",
    "instant",
    "not_negative",
    "offset",
    "reading",
    "shifted",
    "span",
    "stored",
]

LARGEST = 2**63 - 1
SMALLEST = -(2**63)
LATEST = sys.float_info.max  # what exceeds the range of a float saturates

Seconds = float | int | timedelta
Instant = float | int | datetime


def _finite(value: float | int, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of a float saturates
        return LATEST if value > 0 else -LATEST
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, not {number}")
    return number


def span(value: Seconds, what: str) -> float:
    """A relative boundary in seconds: any finite number, or a ``timedelta``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _finite(value, what)


def instant(value: Instant, what: str) -> float:
    """An absolute boundary in unix time: any finite number, or an aware ``datetime``."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{what} must be an aware datetime, not the naive {value!r}")
        return value.timestamp()
    return _finite(value, what)


def duration(value: Seconds, what: str) -> float:
    """A lease's length in seconds: above zero."""
    seconds = span(value, what)
    if seconds <= 0:
        raise ValueError(f"{what} must be above zero, not {shown(value)}")
    return seconds


def not_negative(value: Seconds, what: str) -> float:
    """A number of seconds that is zero or more."""
    seconds = span(value, what)
    if seconds < 0:
        raise ValueError(f"{what} must not be below zero, not {shown(value)}")
    return seconds


def shifted(now: float, seconds: float) -> float:
    """``now + seconds``, saturating at the range of a float."""
    return min(max(now + seconds, -LATEST), LATEST)


def deadline(now: float, seconds: float) -> float:
    """The end of a lease: ``seconds`` from now, and never now itself however short it is."""
    end = now + seconds
    if now < end <= LATEST:
        return end
    return LATEST if end > now else math.nextafter(now, math.inf)


def after(moment: float) -> float:
    """The next float: when something that holds *until* ``moment`` has ended."""
    return math.nextafter(moment, math.inf) if moment < LATEST else moment


def reading(value: float) -> float:
    """What a given clock says, in unix seconds."""
    return instant(value, "a clock's reading")


def _whole(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    return value


def extent(value: int, what: str) -> int:
    """How many at most: zero or less means none."""
    return min(max(_whole(value, what), 0), LARGEST)


def offset(value: int, what: str) -> int:
    """An offset or an id to look for: any int, beyond 64 bits the extreme."""
    return min(max(_whole(value, what), SMALLEST), LARGEST)


def stored(value: int, what: str) -> int:
    """An int that is kept: 64 bits, signed."""
    if type(value) is int and SMALLEST <= value <= LARGEST:
        return value
    if not SMALLEST <= _whole(value, what) <= LARGEST:
        raise ValueError(f"{what} must fit 64 bits signed, not {shown(value)}")
    return int(value)


def at_least(least: int, value: int, what: str) -> int:
    """A kept int with a lower bound."""
    if stored(value, what) < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return value


def ids(values: Iterable[int]) -> tuple[int, ...]:
    """Job ids to look for, each once, in the order given."""
    if isinstance(values, str | bytes):
        raise TypeError(f"job_ids must be an iterable of ints, not {type(values).__name__}")
    return tuple(dict.fromkeys(offset(value, "a job id") for value in values))
