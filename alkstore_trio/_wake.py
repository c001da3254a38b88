"""The hub: who is to be woken when a channel fires.

It knows nothing of stores or engines, never awaits, and never loses an item that is in an inbox: an item leaves only
into a task that is running, so a cancelled `receive` takes none with it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import anyio

from ._errors import Closed
from ._rules.names import RECONNECTED

__all__ = ["NO_CHANNEL", "WAKE_BUFFER", "Bell", "Hub", "Inbox", "Waker"]

WAKE_BUFFER = 4_096  # wakes that a listener may leave unread; any further one is stood for by those

NO_CHANNEL = ""  # where a waker attaches that only wants to know of the end: no name is empty

T = TypeVar("T")


class Bell:
    """A level, not a count: rung any number of times before anybody waits, it wakes once.

    Arm it, then read what may have changed, then wait on the event.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def arm(self) -> anyio.Event:
        """The event that the next ring sets."""
        if self._event is None:
            self._event = anyio.Event()
        return self._event

    def ring(self) -> None:
        """Wake whoever waits on an armed event."""
        if self._event is not None:
            self._event.set()
            self._event = None

    def wake(self, channel: str) -> None:
        """A channel it is attached to has fired."""
        self.ring()

    def close(self) -> None:
        """The hub is closing: wake up and see."""
        self.ring()


class Inbox(Generic[T]):
    """Items on their way to a receiver, and how that ends: closed, or failed with the error it stores."""

    __slots__ = ("_arrived", "_items", "closed", "error")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrived = Bell()
        self.closed: bool = False
        self.error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item; the one who puts minds the bound."""
        self._items.append(item)
        self._arrived.ring()

    def extend(self, items: Iterable[T]) -> None:
        """Add items in order."""
        self._items.extend(items)
        self._arrived.ring()

    def close(self, error: BaseException | None = None) -> None:
        """Let the receiver drain what is here, then end, with `Closed` or with ``error``."""
        if not self.closed:
            self.closed, self.error = True, error
            self._arrived.ring()

    def take(self) -> T:
        """The next item; ``anyio.WouldBlock`` when there is none yet, `Closed` or the stored error at the end."""
        if self._items:
            return self._items.popleft()
        if not self.closed:
            raise anyio.WouldBlock
        raise self.error or Closed("the receiver is closed")

    async def filled(self) -> None:
        """Wait until `take` has an answer."""
        while not self._items and not self.closed:
            await self._arrived.arm().wait()


class Waker(Protocol):
    """Something that a hub can wake."""

    def wake(self, channel: str) -> None:
        """A channel it is attached to has fired."""
        ...

    def close(self) -> None:
        """The hub is closing."""
        ...


class Hub:
    """Channels and the wakers attached to them."""

    __slots__ = ("channels", "closed")

    def __init__(self) -> None:
        self.channels: dict[str, dict[Waker, None]] = {}  #: empty when there is nobody to wake
        self.closed: bool = False

    def attach(self, channel: str, waker: Waker) -> None:
        """Wake ``waker`` whenever the channel fires from now on."""
        if self.closed:
            raise Closed
        self.channels.setdefault(channel, {})[waker] = None

    def detach(self, channel: str, waker: Waker) -> None:
        """Undo `attach`; a no-op when it is undone already."""
        wakers = self.channels.get(channel)
        if wakers is not None:
            wakers.pop(waker, None)
            if not wakers:
                del self.channels[channel]

    def fire(self, channels: Iterable[str]) -> None:
        """Wake everybody attached to each channel, in order."""
        for channel in channels:
            wakers = self.channels.get(channel)
            if wakers:
                for waker in tuple(wakers):
                    waker.wake(channel)

    def reconnected(self) -> None:
        """Wake everybody: wakes may have been missed."""
        for wakers in tuple(self.channels.values()):
            for waker in tuple(wakers):
                waker.wake(RECONNECTED)

    def close(self) -> None:
        """End every waker, for good."""
        self.closed = True
        channels, self.channels = self.channels, {}
        for wakers in channels.values():
            for waker in tuple(wakers):
                waker.close()
