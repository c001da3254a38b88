"""A transaction: its life, and one line a method over the handles that serve outside one.

Only writes that cannot be refused enter a transaction. Used after its end it is misuse, and so is using it from two
tasks at once.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import anyio

from ._engine import Engine, TxUnit
from ._errors import DatabaseError, PayloadTooLarge
from ._loop import unbroken
from ._ops import Notify, Op
from ._outbox import Outbox
from ._queue import Queue
from ._rules import names
from ._rules.bounds import Instant, Seconds
from ._rules.payload import encode
from ._stream import Stream
from ._values import Job, StreamEvent

__all__ = ["Committing", "Opened", "Tx", "checked_notify", "in_transaction"]

A = TypeVar("A")
T = TypeVar("T")


class _Life:
    """A transaction's unit, guarded: one verb at a time, and none after the end."""

    __slots__ = ("_busy", "ended", "unit")

    def __init__(self, unit: TxUnit) -> None:
        self.unit: TxUnit = unit
        self.ended: str | None = None
        self._busy = False

    @property
    def engine(self) -> Engine:
        return self.unit.engine

    async def do(self, op: Op[A]) -> A:
        self._enter()
        try:
            return await self.unit.do(op)
        finally:
            self._busy = False

    async def idle(self) -> None:
        self._enter()
        try:
            await self.unit.idle()
        finally:
            self._busy = False

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self._enter()
        try:
            return await self.unit.execute(sql, params)
        finally:
            self._busy = False

    async def end(self, how: str, verb: Callable[[], Awaitable[None]]) -> None:
        self._enter()
        try:
            await verb()
            self.ended = how
        finally:
            self._busy = False

    def _enter(self) -> None:
        self.engine.check_open()
        if self.ended is not None:
            raise RuntimeError(f"the transaction was {self.ended} already")
        if self._busy:
            raise anyio.BusyResourceError("using the transaction in")
        self._busy = True


class Tx:
    """An open transaction. What it stages is seen by nobody else until it commits, and then at once and whole."""

    __slots__ = ("__weakref__", "_life")

    def __init__(self, life: _Life) -> None:
        self._life = life

    async def enqueue_tx(
        self,
        queue: str,
        payload: Any,
        *,
        delay: Seconds | None = None,
        run_at: Instant | None = None,
        priority: int = 0,
        expires: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> int:
        """Stage a job with the plain stamps 300 / 3 / 5 / none. Returns its id. Options as for `Queue.enqueue`."""
        return await Queue(self._life, queue).enqueue(
            payload, delay=delay, run_at=run_at, priority=priority, expires=expires, max_attempts=max_attempts
        )

    async def outbox_enqueue_tx(
        self,
        outbox: str,
        payload: Any,
        *,
        delay: Seconds | None = None,
        run_at: Instant | None = None,
        priority: int = 0,
        expires: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> int:
        """Stage a message of an outbox. Returns its job id. Options as for `Queue.enqueue`."""
        return await Outbox(self._life, outbox).enqueue(
            payload, delay=delay, run_at=run_at, priority=priority, expires=expires, max_attempts=max_attempts
        )

    async def publish_tx(self, stream: str, payload: Any) -> int:
        """Stage an event. Returns its offset."""
        return await Stream(self._life, stream).publish(payload)

    async def publish_with_key_tx(self, stream: str, key: str, payload: Any) -> int:
        """Stage an event with a key. Returns its offset."""
        return await Stream(self._life, stream).publish_with_key(key, payload)

    async def notify_tx(self, channel: str, payload: Any = None) -> None:
        """Stage a wake of a channel; it is delivered after the commit."""
        await self._life.do(checked_notify(self._life.engine, channel, payload))

    async def save_offset_tx(self, stream: str, consumer: str, offset: int) -> bool:
        """Stage a consumer's offset. Returns whether it advanced what this transaction sees."""
        return await Stream(self._life, stream).save_offset(consumer, offset)

    async def get_job_tx(self, queue: str, job_id: int) -> Job | None:
        """A job of a queue as this transaction sees it."""
        return await Queue(self._life, queue).get_job(job_id)

    async def get_offset_tx(self, stream: str, consumer: str) -> int:
        """A consumer's offset as this transaction sees it."""
        return await Stream(self._life, stream).get_offset(consumer)

    async def read_since_tx(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        """`Stream.read_since`, with this transaction's own events."""
        return await Stream(self._life, stream).read_since(offset, limit)

    async def read_from_consumer_tx(self, stream: str, consumer: str, limit: int) -> list[StreamEvent]:
        """`Stream.read_from_consumer`, with this transaction's own events and offsets."""
        return await Stream(self._life, stream).read_from_consumer(consumer, limit)

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of the caller's own in the same transaction. ``RuntimeError`` on the memory engine."""
        return await self._life.execute(sql, params)

    async def commit(self) -> None:
        """Make all effects stand at once, then fire their wakes."""
        await self._life.end("committed", self._life.unit.commit)

    async def rollback(self) -> None:
        """Discard all effects."""
        await self._life.end("rolled back", self._life.unit.rollback)


def checked_notify(engine: Engine, channel: str, payload: Any) -> Notify:
    """A notify whose payload is checked, and not carried."""
    name = names.shared(channel)
    body = encode(payload)
    limit = engine.traits.notify_limit
    if limit is not None and len(body.encode()) > limit:
        raise PayloadTooLarge(limit, len(body.encode()))
    return Notify(name)


class Opened:
    """A block with a transaction that is discarded on leaving unless it was ended in the block."""

    __slots__ = ("_engine", "_life")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._life: _Life | None = None

    async def __aenter__(self) -> Tx:
        if self._life is not None:
            raise RuntimeError("a transaction's block is entered once")
        await self._engine.idle()
        self._life = _Life(await self._engine.begin())
        return Tx(self._life)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        life = self._life
        if life is not None and life.ended is None:
            life.ended = "discarded"
            await unbroken(life.unit.rollback)


class Committing(Opened):
    """A block with a transaction that commits on leaving cleanly unless it was ended in the block."""

    __slots__ = ()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._life is not None and self._life.ended is None:
                await Tx(self._life).commit()
        finally:
            await super().__aexit__(kind, error, trace)


async def in_transaction(engine: Engine, fn: Callable[[Tx], Awaitable[T]], attempts: int) -> T:
    """The result of ``fn(tx)``, committed; run again in a new transaction after a retryable failure."""
    while True:
        attempts -= 1
        tx: Tx | None = None
        try:
            async with Committing(engine) as tx:
                outcome = fn(tx)
                if not inspect.isawaitable(outcome):
                    raise TypeError(f"fn must be an async function, not return {type(outcome).__name__}")
                return await outcome
        except DatabaseError as error:
            if not error.retryable or attempts < 1 or (tx is not None and tx._life.ended != "discarded"):
                raise
