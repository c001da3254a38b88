"""A lock with a time to live: a hold, its fencing token, and how it is kept."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TypeVar

import anyio

from ._engine import Engine
from ._errors import DatabaseError, LeadershipLost, LockHeld, LockLost
from ._loop import unbroken
from ._ops import ReadClock, Renew, TryLock, Unlock
from ._rules.bounds import Seconds, duration
from ._waiting import SLICE, Background, bell_on, elapsed, give_back, log, nap, passes, patiently, pause

__all__ = ["Lease", "LockHandle", "holding", "take", "taken"]

T = TypeVar("T")

_FIRST_TRY = 0.05  # seconds between a waiter's first two tries, doubled up to a slice
_RENEWALS = 3  # renewals that fit a window


class LockHandle:
    """A hold of a lock. ``token`` is a fencing number: it grows with every new hold of the name."""

    __slots__ = ("_engine", "name", "owner", "token")

    def __init__(self, engine: Engine, name: str, owner: str, token: int) -> None:
        self._engine = engine
        self.name: str = name
        self.owner: str = owner
        self.token: int = token

    def __repr__(self) -> str:
        return f"LockHandle({self.name!r}, owner={self.owner!r}, token={self.token})"

    async def renew(self, ttl: Seconds) -> bool:
        """Hold for ``ttl`` seconds from now. ``False``: the hold has lapsed or is gone."""
        return await self._engine.do(Renew(self.name, self.token, duration(ttl, "ttl")))

    async def release(self) -> bool:
        """Free the lock. ``False``: it is no longer this hold's."""
        return await self._engine.do(Unlock(self.name, self.token))

    async def __aenter__(self) -> "LockHandle":
        """The hold itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock, also when cancelled. An error of the block wins over one of the release."""
        if error is None:
            await unbroken(self.release)
        else:
            await give_back(self.release)


async def take(engine: Engine, name: str, owner: str, ttl: float) -> LockHandle | None:
    """The lock, if no other owner holds it."""
    token = await engine.do(TryLock(name, owner, ttl))
    return None if token is None else LockHandle(engine, name, owner, token)


class Lease:
    """A hold that is kept alive; ``lost`` is the error that says it could not be."""

    def __init__(self, engine: Engine, lock: LockHandle, ttl: float, lost: type[LockLost | LeadershipLost]) -> None:
        self.lock = lock
        self._engine = engine
        self._ttl = ttl
        self._lost = lost
        self._lives_until = anyio.current_time() + ttl

    def loss(self) -> LockLost | LeadershipLost:
        """The error of a hold that is over."""
        return self._lost(f"the hold of {self.lock.name!r} by {self.lock.owner!r} has lapsed or was taken over")

    async def ask(self, verb: Callable[[], Awaitable[T]]) -> T:
        """The result of a verb; a store that is away is asked again, and waited for, as long as the hold may live."""
        ends = self._lives_until
        if anyio.current_time() >= ends:  # the loop stood still, or the store's clock does: the store knows better
            ends = anyio.current_time() + self._ttl / _RENEWALS
        failure: DatabaseError | None = None
        while True:
            # A clock that sleeps by itself may stand still: then an answer is late only where it is an error.
            with anyio.CancelScope(deadline=ends if self._engine.sleep is None else math.inf):
                try:
                    return await verb()
                except DatabaseError as error:
                    if not passes(error):
                        raise
                    failure = error
                log.warning("holding %r: %s; trying again", self.lock.name, failure)
                await nap(self._engine, min(_FIRST_TRY, self._ttl / _RENEWALS))
            if anyio.current_time() >= ends:
                raise self.loss() from failure

    async def renew(self) -> None:
        """Hold for a full window from now, or raise the loss."""
        asked = 0.0

        async def renewal() -> bool:
            nonlocal asked
            asked = anyio.current_time()
            return await self.lock.renew(self._ttl)

        if not await self.ask(renewal):
            raise self.loss()
        self._lives_until = asked + self._ttl

    async def _read_clock(self) -> float:
        return await self.ask(partial(self._engine.do, ReadClock()))

    async def keep(self) -> None:
        """Renew in time, until the hold is lost."""
        with bell_on(self._engine) as bell:
            while True:
                await elapsed(self._engine, self._ttl / _RENEWALS, bell, self._read_clock)
                await self.renew()


async def taken(engine: Engine, name: str, owner: str, ttl: float) -> LockHandle:
    """The lock, as soon as nobody else holds it."""
    wait = _FIRST_TRY
    with bell_on(engine) as bell:
        while True:
            event = bell.arm()
            lock = await patiently(engine, lambda: take(engine, name, owner, ttl), f"waiting for the lock {name!r}")
            if lock is not None:
                return lock
            await pause(engine, wait, event)
            wait = min(wait * 2, SLICE)


@asynccontextmanager
async def holding(engine: Engine, name: str, ttl: float, owner: str, wait: bool) -> AsyncIterator[LockHandle]:
    """A lock, held and renewed for as long as the block runs."""
    lock = await (taken if wait else take)(engine, name, owner, ttl)
    if lock is None:
        raise LockHeld(f"the lock {name!r} is held by another owner")
    async with lock:
        lease = Lease(engine, lock, ttl, LockLost)
        await lease.renew()  # the hold may be one that its owner was merely granted again
        async with Background() as background:
            background.start_soon(lease.keep)
            yield lock
