"""A stream: events in order, and how far each consumer has come."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ._engine import Unit
from ._ops import CountEvents, GetOffset, Publish, ReadFromConsumer, ReadSince, SaveOffset, Trim
from ._receivers import EventReceiver, subscribed
from ._rules import bounds, names
from ._rules.payload import encode
from ._values import StreamEvent, StreamStatistics

__all__ = ["Stream"]


class Stream:
    """A handle on the stream of a name. Made by ``store.stream``; touches no storage by itself."""

    __slots__ = ("_unit", "name")

    def __init__(self, unit: Unit, name: str) -> None:
        self._unit = unit
        self.name: str = names.shared(name)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    async def publish(self, payload: Any) -> int:
        """Append an event and wake the stream's subscribers. Returns its offset. ``CodecError`` if it is no JSON."""
        return (await self._unit.do(Publish(self.name, None, (encode(payload),))))[0]

    async def publish_with_key(self, key: str, payload: Any) -> int:
        """`publish`, with a key that the event carries."""
        return (await self._unit.do(Publish(self.name, names.local(key), (encode(payload),))))[0]

    async def publish_many(self, payloads: Iterable[Any]) -> list[int]:
        """Append events, all or none, and wake the stream's subscribers. Returns their offsets, in order."""
        return await self._unit.do(Publish(self.name, None, tuple(map(encode, payloads))))

    async def read_since(self, offset: int, limit: int) -> list[StreamEvent]:
        """Up to ``limit`` events with a greater offset, ascending; an empty list for a limit of zero or less."""
        op = ReadSince(self.name, bounds.offset(offset, "offset"), bounds.extent(limit, "limit"))
        return await self._read(op, op.limit)

    async def read_from_consumer(self, consumer: str, limit: int) -> list[StreamEvent]:
        """`read_since` the offset that the consumer has saved, which does not move."""
        op = ReadFromConsumer(self.name, names.local(consumer), bounds.extent(limit, "limit"))
        return await self._read(op, op.limit)

    async def _read(self, op: ReadSince | ReadFromConsumer, limit: int) -> list[StreamEvent]:
        if limit:
            return await self._unit.do(op)
        await self._unit.idle()
        return []

    async def get_offset(self, consumer: str) -> int:
        """The offset that the consumer has saved; 0 if it never did."""
        return await self._unit.do(GetOffset(self.name, names.local(consumer)))

    async def save_offset(self, consumer: str, offset: int) -> bool:
        """Save how far a consumer has come; it never goes back. Returns whether it advanced."""
        return await self._unit.do(SaveOffset(self.name, names.local(consumer), bounds.stored(offset, "offset")))

    async def trim_to(self, horizon: int) -> int:
        """Delete the events up to an offset, that one included. Returns how many. Saved offsets stay."""
        return await self._unit.do(Trim(self.name, bounds.offset(horizon, "horizon")))

    async def statistics(self) -> StreamStatistics:
        """The first and last offset to be seen, and each consumer's saved offset."""
        return await self._unit.do(CountEvents(self.name))

    def subscribe(self, consumer: str, *, prefetch: int = 100) -> AbstractAsyncContextManager[EventReceiver]:
        """Follow the stream: ``async with`` gives an `EventReceiver`, fed by a task of the block.

        It starts at the consumer's saved offset and goes on live; at most ``prefetch`` events wait in it.
        """
        consumer = names.local(consumer)
        return subscribed(self._unit.engine, self.name, consumer, bounds.at_least(1, prefetch, "prefetch"))
