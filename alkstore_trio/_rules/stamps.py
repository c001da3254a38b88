"""The four numbers that a job carries from its enqueue into its grave."""

import attrs

from .bounds import Seconds, at_least, duration, not_negative

__all__ = ["OUTBOX", "PLAIN", "Stamps", "overridden", "stamps"]


@attrs.frozen
class Stamps:
    """A lease's seconds, the attempts, the first backoff's seconds, and those a dead row is kept (``None``: ever)."""

    visibility_timeout: float
    max_attempts: int
    base_backoff: float
    dead_retention: float | None


PLAIN = Stamps(300.0, 3, 5.0, None)
OUTBOX = Stamps(60.0, 5, 5.0, None)


def stamps(
    visibility_timeout: Seconds, max_attempts: int, base_backoff: Seconds, dead_retention: Seconds | None
) -> Stamps:
    """A queue handle's options, checked."""
    return Stamps(
        duration(visibility_timeout, "visibility_timeout"),
        at_least(1, max_attempts, "max_attempts"),
        not_negative(base_backoff, "base_backoff"),
        None if dead_retention is None else not_negative(dead_retention, "dead_retention"),
    )


def overridden(plain: Stamps, max_attempts: int | None) -> Stamps:
    """The stamps of one call: its own ``max_attempts`` is the only override."""
    if max_attempts is None:
        return plain
    return attrs.evolve(plain, max_attempts=at_least(1, max_attempts, "max_attempts"))
