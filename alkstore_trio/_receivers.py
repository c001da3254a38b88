"""What a listener and a subscriber hold: items that arrive in order, and an end.

A subscriber is fed by a task of its own block: replay from the saved offset, then live, never more than its prefetch.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from ._engine import Engine
from ._errors import Closed
from ._ops import GetOffset, Op, ReadSince, SaveOffset
from ._rules.bounds import stored
from ._rules.names import RECONNECTED, stream_wake
from ._values import StreamEvent, Wake
from ._waiting import SLICE, Background, patiently, pause
from ._wake import WAKE_BUFFER, Bell, Inbox

__all__ = ["EventReceiver", "WakeReceiver", "listening", "subscribed"]

T = TypeVar("T")


class Receiver(Generic[T]):
    """The receiving end of an inbox."""

    def __init__(self, engine: Engine, inbox: Inbox[T]) -> None:
        self._engine = engine
        self._inbox = inbox

    def receive_nowait(self) -> T:
        """The next item. ``anyio.WouldBlock`` if there is none yet, `Closed` once closed and drained."""
        return self._inbox.take()

    async def receive(self) -> T:
        """Wait for the next item. `Closed` once closed and drained. Cancelled, it has taken nothing."""
        await self._engine.checkpoint()
        await self._inbox.filled()
        return self.receive_nowait()

    def __aiter__(self) -> AsyncIterator[T]:
        """Iterate over the items until the receiver is closed."""
        return self

    async def __anext__(self) -> T:
        """The next item; the iteration ends when the receiver is closed and drained."""
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None


class WakeReceiver(Receiver[Wake]):
    """The wakes of one channel since its block was entered."""


class _FeedBell(Bell):
    """A feeder's bell; a hub that is closing ends what it feeds, without a turn of the feeder's."""

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox[StreamEvent]) -> None:
        super().__init__()
        self._inbox = inbox

    def close(self) -> None:
        self._inbox.close()
        self.ring()


class EventReceiver(Receiver[StreamEvent]):
    """The events of one stream for one consumer: first what it has not saved, then what comes."""

    def __init__(self, engine: Engine, inbox: Inbox[StreamEvent], stream: str, consumer: str, prefetch: int) -> None:
        super().__init__(engine, inbox)
        self._stream = stream
        self._consumer = consumer
        self._prefetch = prefetch
        self._bell = _FeedBell(inbox)  # rung by the stream's wakes, and when there is room for a page

    def receive_nowait(self) -> StreamEvent:
        """The next event. ``anyio.WouldBlock`` if there is none yet, `Closed` once closed and drained.

        A re-read of the stream that failed for good raises its `DatabaseError` here.
        """
        event = self._inbox.take()
        if len(self._inbox) == self._prefetch // 2:
            self._bell.ring()
        return event

    async def save_offset(self, offset: int) -> bool:
        """Save the consumer's offset; whether it advanced. Nothing is ever saved unasked."""
        return await self._engine.do(SaveOffset(self._stream, self._consumer, stored(offset, "offset")))

    async def _feed(self) -> None:
        """Fill the inbox until cancelled, closed or failed."""
        try:
            self._bell.arm()
            offset = await self._ask(GetOffset(self._stream, self._consumer))
            while True:
                room_or_event = self._bell.arm()
                room = self._prefetch - len(self._inbox)
                events = await self._ask(ReadSince(self._stream, offset, room)) if room else []
                if self._inbox.closed:
                    return
                if events:
                    offset = events[-1].offset
                    self._inbox.extend(events)
                else:
                    await pause(self._engine, SLICE, room_or_event)
        except Closed:
            self._inbox.close()
        except Exception as error:
            self._inbox.close(error)

    async def _ask(self, op: Op[T]) -> T:
        return await patiently(self._engine, lambda: self._engine.do(op), f"subscriber of {self._stream!r}")


class _WakeInbox(Inbox[Wake]):
    """An inbox that a hub fills up to a bound; only the wake after a reconnect is never dropped."""

    def wake(self, channel: str) -> None:
        if len(self) < WAKE_BUFFER or channel == RECONNECTED:
            self.put(Wake(channel))


@asynccontextmanager
async def listening(engine: Engine, channel: str) -> AsyncIterator[WakeReceiver]:
    """Attached to a channel for as long as the block runs."""
    await engine.idle()
    inbox = _WakeInbox()
    engine.hub.attach(channel, inbox)
    try:
        yield WakeReceiver(engine, inbox)
    finally:
        engine.hub.detach(channel, inbox)
        inbox.close()


@asynccontextmanager
async def subscribed(engine: Engine, stream: str, consumer: str, prefetch: int) -> AsyncIterator[EventReceiver]:
    """Fed from a stream for as long as the block runs."""
    await engine.idle()
    inbox = Inbox[StreamEvent]()
    receiver = EventReceiver(engine, inbox, stream, consumer, prefetch)
    wakes = stream_wake(stream)
    engine.hub.attach(wakes, receiver._bell)
    try:
        async with Background() as background:
            background.start_soon(receiver._feed)
            yield receiver
    finally:
        engine.hub.detach(wakes, receiver._bell)
        inbox.close()
