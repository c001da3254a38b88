"""Clocks for ``clock=``: one that is stepped by hand, one that follows the running loop."""

from collections.abc import Callable
from datetime import datetime, timedelta
from fractions import Fraction

import anyio
import anyio.lowlevel

from .._loop import loop_time
from .._rules.bounds import Instant, Seconds, instant, span

__all__ = ["LoopClock", "ManualClock"]

_START = 1_700_000_000.0  # unix seconds; any instant does
_TURNS = 60  # checkpoints after which a chain of wakes has usually come to rest


def _exact(value: Seconds | Instant) -> Fraction:
    """Seconds as they are written: 0.1 is a tenth, not the float next to it."""
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 1_000_000)
    if isinstance(value, datetime):
        return Fraction(repr(instant(value, "instant")))
    return Fraction(repr(span(value, "seconds")))


class ManualClock:
    """A clock that stands still until it is stepped: unix seconds, exact however often it was advanced.

    What waits on a store with this clock waits for `advance`, not for real time.
    """

    def __init__(self, start: Instant = _START) -> None:
        self._now = _exact(start)
        self._sleepers: dict[anyio.Event, tuple[Fraction, float]] = {}

    def __call__(self) -> float:
        """The current instant."""
        return float(self._now)

    def advance(self, seconds: Seconds) -> None:
        """Step by ``seconds``, back if they are below zero, and wake whoever is due; a step back wakes everybody."""
        self._step(_exact(seconds))

    def set(self, moment: Instant) -> None:
        """Step to an instant."""
        self._step(_exact(moment) - self._now)

    def _step(self, step: Fraction) -> None:
        self._now += step
        for sleeper, until in tuple(self._sleepers.items()):
            if step < 0 or self._reached(*until):
                sleeper.set()

    def _reached(self, until: Fraction, until_reading: float) -> bool:
        """Seconds as a person writes them end exactly; the difference of two readings ends where the second was."""
        return until <= self._now or until_reading <= self()

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by ``seconds``."""
        until = self._now + _exact(seconds), self() + seconds
        if self._reached(*until):
            await anyio.lowlevel.checkpoint()
            return
        sleeper = anyio.Event()
        self._sleepers[sleeper] = until
        try:
            await sleeper.wait()
        finally:
            del self._sleepers[sleeper]

    async def settled(self) -> None:
        """Return once every other task waits: for this clock, for a wake, or for something else. Memory engine only."""
        for _ in range(_TURNS):
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()


class LoopClock:
    """Unix time that follows the running loop's clock from the first reading, which is made in that loop.

    So trio's autojump clock drives stamps and sleeps together.
    """

    def __init__(self, start: Instant = _START) -> None:
        self._start = instant(start, "start")
        self._time: Callable[[], float] | None = None

    def __call__(self) -> float:
        """The current instant. Once it has been read, also in another thread."""
        if self._time is None:
            self._time = loop_time()
            self._began = self._time()
            return self._start
        return self._start + (self._time() - self._began)
