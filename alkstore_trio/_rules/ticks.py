"""Which boundaries of a schedule fire at a tick, and where its grid goes on."""

import math

from .bounds import shifted

__all__ = ["CATCH_UP", "first_boundary", "kept_boundary", "tick"]

CATCH_UP = 64  # boundaries that one tick makes up for; the rest are skipped for good


def first_boundary(now: float, interval: float) -> float:
    """The first boundary of a new grid."""
    return shifted(now, interval)


def kept_boundary(next_at: float, interval: float, registered: float, now: float) -> float:
    """The next boundary after a registration: an unchanged interval keeps its grid, a changed one starts anew."""
    return next_at if interval == registered else first_boundary(now, registered)


def tick(next_at: float, interval: float, now: float) -> tuple[int, float]:
    """How many times a schedule fires at ``now``, and its first grid point after it."""
    if next_at > now:
        return 0, next_at
    steps = (now - next_at) // interval
    if shifted(next_at, steps * interval) > now:  # the difference was rounded up onto a grid point
        steps -= 1
    following = shifted(next_at, (steps + 1) * interval)
    if following <= now:  # or down from one
        steps += 1
        following = shifted(next_at, (steps + 1) * interval)
    if following <= now:  # where floats are sparser than the grid
        following = math.nextafter(now, math.inf)
    return int(min(steps + 1, CATCH_UP)), following
