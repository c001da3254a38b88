"""The retry curve: equal jitter over an exponential ceiling."""

__all__ = ["delay"]

_HIGHEST = 86_400.0  # seconds; a day
_STEEPEST = 1_100  # doublings after which every base above zero has passed the highest


def delay(base_backoff: float, attempts: int, jitter: float) -> float:
    """Seconds until the next attempt, in [ceiling / 2, ceiling] by a ``jitter`` in [0, 1]."""
    if base_backoff == 0:
        return 0.0
    doublings = min(attempts - 1, _STEEPEST)
    try:
        ceiling = min(base_backoff * 2.0**doublings, _HIGHEST)
    except OverflowError:
        ceiling = _HIGHEST
    return ceiling / 2 + ceiling / 2 * jitter
