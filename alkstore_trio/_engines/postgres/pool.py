"""A bounded pool of connections: made when first needed, handed out in the order of asking.

A transaction never gets the last place, so that whoever writes outside one always gets on; nor does what may have to
wait at the server for somebody's transaction, unless nothing else does. What the pool knows changes in synchronous
steps only; a place is given to a waiter before it wakes, and passed on if it was cancelled meanwhile. No task is
started here, and no statement is sent.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from itertools import count
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import anyio

from ..._errors import Closed
from ..._loop import Event, event_class

__all__ = ["Pool", "Pooled", "Use"]


class Use(Enum):
    """What a connection is taken for."""

    STATEMENT = auto()
    HELD_STATEMENT = auto()  # what may have to wait at the server until somebody's transaction ends
    TRANSACTION = auto()


class Pooled(Protocol):
    """What the pool asks of a connection."""

    @property
    def usable(self) -> bool:
        """Whether the next statement may be sent on it."""
        ...

    @property
    def alive(self) -> bool:
        """Whether, for all that its socket tells, the server still is at the other end."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a statement is under way."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


C = TypeVar("C", bound=Pooled)

_LOOK = 0.01  # seconds between two looks at what is to be closed


class _Waiter:
    """Somebody who waits for a place."""

    __slots__ = ("event", "granted", "turn", "use")

    def __init__(self, event: Event, turn: int, use: Use) -> None:
        self.event = event
        self.turn = turn
        self.use = use
        self.granted = False


class Pool(Generic[C]):
    """At most ``size`` connections, of which transactions hold at most ``size - 1``."""

    def __init__(self, connect: Callable[[], Awaitable[C]], size: int) -> None:
        if size < 2:
            raise ValueError(f"a pool of {size}: it takes one connection for transactions and one for all else")
        self._connect = connect
        self._idle: list[C] = []  # the last one given back is the next to go
        self._taken: dict[C, Use] = {}  # each connection in use
        self._places = size  # neither in use nor granted
        self._shares = size - 1  # how many of them a transaction may have
        self._held = 0  # those in use for what may have to wait
        self._waiting: dict[Use, deque[_Waiter]] = {use: deque() for use in Use}
        self._turns = count()
        self._event = event_class()
        self._closed = False

    async def take(self, use: Use = Use.STATEMENT) -> C:
        """A connection that is the caller's until `give`; raises `Closed` if the pool is.

        No checkpoint where there is a place and a connection.
        """
        if self._closed:
            raise Closed
        if self._has_place(use):  # then whoever waits cannot have it
            self._enter(use)
        else:
            await self._wait(use)
        try:
            connection = self._revived()
            if connection is None:
                if self._closed:
                    raise Closed
                connection = await self._connect()
                if self._closed:
                    connection.abort()
                    raise Closed
        except BaseException:
            self._leave(use)
            raise
        self._taken[connection] = use
        return connection

    def give(self, connection: C) -> None:
        """Take a connection back; one on which the next statement cannot be sent is closed."""
        use = self._taken.pop(connection)
        if connection.usable and not self._closed:
            self._idle.append(connection)
        else:
            connection.abort()
        self._leave(use)

    async def close(self, patience: float) -> None:
        """Refuse whoever asks, and close all; what has a statement under way is waited for, for so many seconds."""
        self._closed = True
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.event.set()
            waiting.clear()
        while self._idle:
            self._idle.pop().abort()
        with anyio.move_on_after(patience):
            while any(connection.busy for connection in self._taken):  # noqa: ASYNC110  # who is done tells nobody
                await anyio.sleep(_LOOK)
        for connection in self._taken:
            connection.abort()

    def _has_place(self, use: Use) -> bool:
        if use is Use.TRANSACTION:
            return self._places > 0 and self._shares > 0
        return self._places > (use is Use.HELD_STATEMENT and self._held > 0)

    def _enter(self, use: Use) -> None:
        self._places -= 1
        self._shares -= use is Use.TRANSACTION
        self._held += use is Use.HELD_STATEMENT

    def _leave(self, use: Use) -> None:
        self._places += 1
        self._shares += use is Use.TRANSACTION
        self._held -= use is Use.HELD_STATEMENT
        while self._places and (waiter := self._admitted()):
            waiter.granted = True
            waiter.event.set()

    def _admitted(self) -> _Waiter | None:
        """The first of those who can have a place, which is theirs from now on."""
        heads = [waiting[0] for use, waiting in self._waiting.items() if waiting and self._has_place(use)]
        if not heads:
            return None
        first = min(heads, key=attrgetter("turn"))
        self._waiting[first.use].popleft()
        self._enter(first.use)
        return first

    async def _wait(self, use: Use) -> None:
        waiter = _Waiter(self._event(), next(self._turns), use)
        self._waiting[use].append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.granted:
                self._leave(use)
            elif not self._closed:
                self._waiting[use].remove(waiter)
            raise
        if not waiter.granted:
            raise Closed

    def _revived(self) -> C | None:
        """An idle connection; those that the server has left are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            connection.abort()
        return None
