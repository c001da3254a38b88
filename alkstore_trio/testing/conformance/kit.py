"""What the suite's tests stand on: the case under test, the fixtures, and effects through either kind of unit.

A test never names an engine: what may differ is read from ``traits``. It waits for facts, never for time: stamps and
waits run on a `ManualClock`, order comes from events, and that nothing came is shown by a later marker.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import attrs
import pytest

from ..._engine import Traits
from ..._store import Store
from ..._tx import Tx
from ..._values import Job, StreamEvent
from .._clocks import ManualClock
from .driving import counted

__all__ = ["Case", "Effects", "anyio_backend", "clock", "effects", "store", "traits"]

T = TypeVar("T")


@attrs.frozen
class Case:
    """An engine under test: the ``case`` fixture of whoever runs the suite gives one.

    ``open(clock=...)`` gives an async context manager with a fresh store.
    """

    name: str
    open: Callable[..., AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both loops."""
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock()


@pytest.fixture
async def store(case: Case, clock: ManualClock, anyio_backend: str) -> AsyncIterator[Store]:
    """A fresh store on the manual clock."""
    async with case.open(clock=clock) as opened:
        yield counted(opened)


@pytest.fixture
def traits(store: Store) -> Traits:
    """What the engine under test may differ in."""
    return store._engine.traits


class Effects:
    """The verbs that exist in and out of a transaction, through one kind of unit.

    In a transaction each verb is one transaction, committed before it returns.
    """

    def __init__(self, store: Store, in_transaction: bool) -> None:
        self.store = store
        self.in_transaction = in_transaction

    async def _either(self, auto: Callable[[], Awaitable[T]], staged: Callable[[Tx], Awaitable[T]]) -> T:
        return await (self.store.with_tx(staged) if self.in_transaction else auto())

    async def enqueue(self, queue: str, payload: Any, **options: Any) -> int:
        return await self._either(
            lambda: self.store.queue(queue).enqueue(payload, **options),
            lambda tx: tx.enqueue_tx(queue, payload, **options),
        )

    async def outbox_enqueue(self, outbox: str, payload: Any, **options: Any) -> int:
        return await self._either(
            lambda: self.store.outbox(outbox).enqueue(payload, **options),
            lambda tx: tx.outbox_enqueue_tx(outbox, payload, **options),
        )

    async def publish(self, stream: str, payload: Any) -> int:
        return await self._either(
            lambda: self.store.stream(stream).publish(payload), lambda tx: tx.publish_tx(stream, payload)
        )

    async def publish_with_key(self, stream: str, key: str, payload: Any) -> int:
        return await self._either(
            lambda: self.store.stream(stream).publish_with_key(key, payload),
            lambda tx: tx.publish_with_key_tx(stream, key, payload),
        )

    async def notify(self, channel: str, payload: Any = None) -> None:
        await self._either(lambda: self.store.notify(channel, payload), lambda tx: tx.notify_tx(channel, payload))

    async def save_offset(self, stream: str, consumer: str, offset: int) -> bool:
        return await self._either(
            lambda: self.store.stream(stream).save_offset(consumer, offset),
            lambda tx: tx.save_offset_tx(stream, consumer, offset),
        )

    async def get_job(self, queue: str, job_id: int) -> Job | None:
        return await self._either(
            lambda: self.store.queue(queue).get_job(job_id), lambda tx: tx.get_job_tx(queue, job_id)
        )

    async def get_offset(self, stream: str, consumer: str) -> int:
        return await self._either(
            lambda: self.store.stream(stream).get_offset(consumer), lambda tx: tx.get_offset_tx(stream, consumer)
        )

    async def read_since(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        return await self._either(
            lambda: self.store.stream(stream).read_since(offset, limit),
            lambda tx: tx.read_since_tx(stream, offset, limit),
        )

    async def read_from_consumer(self, stream: str, consumer: str, limit: int) -> list[StreamEvent]:
        return await self._either(
            lambda: self.store.stream(stream).read_from_consumer(consumer, limit),
            lambda tx: tx.read_from_consumer_tx(stream, consumer, limit),
        )


@pytest.fixture(params=["auto-commit", "transaction"])
def effects(store: Store, request: pytest.FixtureRequest) -> Effects:
    """The shared verbs, through each kind of unit."""
    return Effects(store, request.param == "transaction")
