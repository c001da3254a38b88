"""A bounded pool of connections: made when first needed, handed out in the order of asking.

A transaction never gets the last place, so that whoever writes outside one always gets on. What the pool knows
changes in synchronous steps only; a place is given to a waiter before it wakes, and passed on if it was cancelled
meanwhile. No task is started here, and no statement is sent.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Generic, Protocol, TypeVar

import anyio

from ..._errors import Closed
from ..._loop import Event, event_class

__all__ = ["Pool", "Pooled"]


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

    __slots__ = ("event", "granted", "turn")

    def __init__(self, event: Event, turn: int) -> None:
        self.event = event
        self.turn = turn
        self.granted = False


class Pool(Generic[C]):
    """At most ``size`` connections, of which transactions hold at most ``size - 1``."""

    def __init__(self, connect: Callable[[], Awaitable[C]], size: int) -> None:
        if size < 2:
            raise ValueError(f"a pool of {size}: it takes one connection for transactions and one for all else")
        self._connect = connect
        self._idle: list[C] = []  # the last one given back is the next to go
        self._taken: dict[C, bool] = {}  # each connection in use: whether for a transaction
        self._places = size  # neither in use nor granted
        self._shares = size - 1  # how many of them a transaction may have
        self._outside: deque[_Waiter] = deque()  # who waits for a place outside a transaction
        self._inside: deque[_Waiter] = deque()  # who waits for one for a transaction
        self._turns = count()
        self._event = event_class()
        self._closed = False

    async def take(self, *, transaction: bool = False) -> C:
        """A connection that is the caller's until `give`; raises `Closed` if the pool is.

        No checkpoint where there is a place and a connection.
        """
        if self._closed:
            raise Closed
        if self._places and (self._shares or not transaction):  # then whoever waits cannot have this place
            self._enter(transaction)
        else:
            await self._wait(transaction)
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
            self._leave(transaction)
            raise
        self._taken[connection] = transaction
        return connection

    def give(self, connection: C) -> None:
        """Take a connection back; one on which the next statement cannot be sent is closed."""
        transaction = self._taken.pop(connection)
        if connection.usable and not self._closed:
            self._idle.append(connection)
        else:
            connection.abort()
        self._leave(transaction)

    async def close(self, patience: float) -> None:
        """Refuse whoever asks, and close all; what has a statement under way is waited for, for so many seconds."""
        self._closed = True
        for waiter in (*self._outside, *self._inside):
            waiter.event.set()
        self._outside.clear()
        self._inside.clear()
        while self._idle:
            self._idle.pop().abort()
        with anyio.move_on_after(patience):
            while any(connection.busy for connection in self._taken):  # noqa: ASYNC110  # who is done tells nobody
                await anyio.sleep(_LOOK)
        for connection in self._taken:
            connection.abort()

    def _enter(self, transaction: bool) -> None:
        self._places -= 1
        self._shares -= transaction

    def _leave(self, transaction: bool) -> None:
        self._places += 1
        self._shares += transaction
        while self._places and (waiter := self._admitted()):
            waiter.granted = True
            waiter.event.set()

    def _admitted(self) -> _Waiter | None:
        """The first of those who can have a place, which is theirs from now on."""
        outside, inside = self._outside, self._inside
        if inside and self._shares and not (outside and outside[0].turn < inside[0].turn):
            self._enter(True)
            return inside.popleft()
        if outside:
            self._enter(False)
            return outside.popleft()
        return None

    async def _wait(self, transaction: bool) -> None:
        queue = self._inside if transaction else self._outside
        waiter = _Waiter(self._event(), next(self._turns))
        queue.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.granted:
                self._leave(transaction)
            elif not self._closed:
                queue.remove(waiter)
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
