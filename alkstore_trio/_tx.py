"""A transaction: its life, and one line a method over the handles that serve outside one.

Only writes that cannot be refused enter a transaction. Used after its end it is misuse, and so is using it from two
tasks at once.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

import anyio

from ._engine import Engine, JoinedUnit, TxUnit, Unit
from ._errors import DatabaseError, PayloadTooLarge
from ._loop import at_once, unbroken
from ._ops import Notify, Op
from ._outbox import Outbox
from ._queue import Queue
from ._rules import names
from ._rules.bounds import Instant, Seconds
from ._rules.payload import encode
from ._stream import Stream
from ._values import Job, StreamEvent

__all__ = [
    "AsyncConnection",
    "Committing",
    "JoinedTx",
    "Opened",
    "SyncConnection",
    "SyncJoinedTx",
    "Tx",
    "checked_notify",
    "in_transaction",
]

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
        self.engine.check_open()
        self._enter()
        try:
            return await self.unit.execute(sql, params)
        finally:
            self._busy = False

    async def _end(self, how: str, verb: Callable[[], Awaitable[None]]) -> None:
        self.engine.check_open()
        self._enter()
        try:
            await verb()
            self.ended = how
        finally:
            self._busy = False

    def commit(self) -> Awaitable[None]:
        return self._end("committed", self.unit.commit)

    def rollback(self) -> Awaitable[None]:
        return self._end("rolled back", self.unit.rollback)

    def _enter(self) -> None:
        if self._busy or self.ended is not None:
            self.engine.check_open()
            if self.ended is not None:
                raise RuntimeError(f"the transaction was {self.ended} already")
            raise anyio.BusyResourceError("using the transaction in")
        self._busy = True


class _Effects:
    """The nine methods that put effects and reads into a transaction, whoever ends it."""

    __slots__ = ("_outboxes", "_queues", "_streams", "_unit")

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._queues: dict[str, Queue] = {}
        self._streams: dict[str, Stream] = {}
        self._outboxes: dict[str, Outbox] = {}

    # The handles, which refer to the transaction's unit and not to it, are made once a name.

    def _queue(self, name: str) -> Queue:
        return self._queues.get(name) or self._queues.setdefault(name, Queue(self._unit, name))

    def _stream(self, name: str) -> Stream:
        return self._streams.get(name) or self._streams.setdefault(name, Stream(self._unit, name))

    def _outbox(self, name: str) -> Outbox:
        return self._outboxes.get(name) or self._outboxes.setdefault(name, Outbox(self._unit, name))

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
        return await self._queue(queue).enqueue(
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
        return await self._outbox(outbox).enqueue(
            payload, delay=delay, run_at=run_at, priority=priority, expires=expires, max_attempts=max_attempts
        )

    async def publish_tx(self, stream: str, payload: Any) -> int:
        """Stage an event. Returns its offset."""
        return await self._stream(stream).publish(payload)

    async def publish_with_key_tx(self, stream: str, key: str, payload: Any) -> int:
        """Stage an event with a key. Returns its offset."""
        return await self._stream(stream).publish_with_key(key, payload)

    async def notify_tx(self, channel: str, payload: Any = None) -> None:
        """Stage a wake of a channel; it is delivered after the commit."""
        await self._unit.do(checked_notify(self._unit.engine, channel, payload))

    async def save_offset_tx(self, stream: str, consumer: str, offset: int) -> bool:
        """Stage a consumer's offset. Returns whether it advanced what this transaction sees."""
        return await self._stream(stream).save_offset(consumer, offset)

    async def get_job_tx(self, queue: str, job_id: int) -> Job | None:
        """A job of a queue as this transaction sees it."""
        return await self._queue(queue).get_job(job_id)

    async def get_offset_tx(self, stream: str, consumer: str) -> int:
        """A consumer's offset as this transaction sees it."""
        return await self._stream(stream).get_offset(consumer)

    async def read_since_tx(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        """`Stream.read_since`, with this transaction's own events."""
        return await self._stream(stream).read_since(offset, limit)

    async def read_from_consumer_tx(self, stream: str, consumer: str, limit: int) -> list[StreamEvent]:
        """`Stream.read_from_consumer`, with this transaction's own events and offsets."""
        return await self._stream(stream).read_from_consumer(consumer, limit)


class Tx(_Effects):
    """An open transaction. What it stages is seen by nobody else until it commits, and then at once and whole."""

    __slots__ = ("__weakref__", "_life")

    def __init__(self, life: _Life) -> None:
        super().__init__(life)
        self._life = life

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement of the caller's own in the same transaction. Returns the rows that it gives.

        What it sets for its session, a pragma's doing too, ends with the transaction. ``RuntimeError`` on the memory
        engine. ``ValueError`` for what would end the transaction, for what the driver refuses, and for several
        statements at once; the transaction goes on as it was, but on Postgres after several statements, or a ``COPY``
        from or to the client, which the server has then seen: it can only be rolled back. So it is after a statement
        that fails at the database, which is a `DatabaseError`.
        """
        if not isinstance(sql, str):
            raise TypeError(f"a statement must be a str, not {type(sql).__name__}")
        return await self._life.execute(sql, params)

    async def commit(self) -> None:
        """Make all effects stand at once, then fire their wakes."""
        await self._life.commit()

    async def rollback(self) -> None:
        """Discard all effects."""
        await self._life.rollback()


class JoinedTx(_Effects):
    """A transaction that the application holds on an asynchronous connection, and alone commits or rolls back.

    Wakes follow its commit by themselves. A stale snapshot is a `DatabaseError` that is ``retryable``; what waits for a
    stream or an offset that another transaction has written is one that is ``transient`` after the ``lock_timeout``.
    After any `DatabaseError` the application's transaction can only be rolled back.

    A verb that is cancelled has done nothing, and one that returned all: what is under way is waited for. Only where it
    is itself kept waiting is the server asked to cancel it, after which, as after an error, the transaction can only be
    rolled back; a connection whose server does not answer even to that is closed.
    """

    __slots__ = ()


class SyncConnection(Protocol):
    """A driver's connection that is used without a loop."""

    def commit(self) -> None:
        """Commit its transaction."""
        ...


class AsyncConnection(Protocol):
    """A driver's connection that is used with ``await``."""

    def commit(self) -> Awaitable[None]:
        """Commit its transaction."""
        ...


class SyncJoinedTx:
    """A transaction that the application holds on a synchronous connection, and alone commits or rolls back.

    Its methods are plain functions, to be called in the connection's thread; no loop need run there. Each effect stands
    in the application's transaction or not at all. A stale snapshot is a `DatabaseError` that is ``retryable``; on
    Postgres, after any `DatabaseError` the application's transaction can only be rolled back. There what waits for a
    stream or an offset that another transaction has written is a `DatabaseError` that is ``transient`` after the
    ``lock_timeout``, and a ``RuntimeError`` at once in the thread of the loop that is to end this other transaction of
    the same store. On SQLite the connection's own ``timeout`` is what bounds its waits.
    """

    __slots__ = ("_effects", "_unit")

    def __init__(self, unit: JoinedUnit) -> None:
        self._unit = unit
        self._effects = _Effects(unit)

    def enqueue_tx(
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
        """`Tx.enqueue_tx`."""
        return at_once(
            self._effects.enqueue_tx(
                queue,
                payload,
                delay=delay,
                run_at=run_at,
                priority=priority,
                expires=expires,
                max_attempts=max_attempts,
            )
        )

    def outbox_enqueue_tx(
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
        """`Tx.outbox_enqueue_tx`."""
        return at_once(
            self._effects.outbox_enqueue_tx(
                outbox,
                payload,
                delay=delay,
                run_at=run_at,
                priority=priority,
                expires=expires,
                max_attempts=max_attempts,
            )
        )

    def publish_tx(self, stream: str, payload: Any) -> int:
        """`Tx.publish_tx`."""
        return at_once(self._effects.publish_tx(stream, payload))

    def publish_with_key_tx(self, stream: str, key: str, payload: Any) -> int:
        """`Tx.publish_with_key_tx`."""
        return at_once(self._effects.publish_with_key_tx(stream, key, payload))

    def notify_tx(self, channel: str, payload: Any = None) -> None:
        """`Tx.notify_tx`."""
        at_once(self._effects.notify_tx(channel, payload))

    def save_offset_tx(self, stream: str, consumer: str, offset: int) -> bool:
        """`Tx.save_offset_tx`."""
        return at_once(self._effects.save_offset_tx(stream, consumer, offset))

    def get_job_tx(self, queue: str, job_id: int) -> Job | None:
        """`Tx.get_job_tx`."""
        return at_once(self._effects.get_job_tx(queue, job_id))

    def get_offset_tx(self, stream: str, consumer: str) -> int:
        """`Tx.get_offset_tx`."""
        return at_once(self._effects.get_offset_tx(stream, consumer))

    def read_since_tx(self, stream: str, offset: int, limit: int) -> list[StreamEvent]:
        """`Tx.read_since_tx`."""
        return at_once(self._effects.read_since_tx(stream, offset, limit))

    def read_from_consumer_tx(self, stream: str, consumer: str, limit: int) -> list[StreamEvent]:
        """`Tx.read_from_consumer_tx`."""
        return at_once(self._effects.read_from_consumer_tx(stream, consumer, limit))

    def wake(self) -> None:
        """Call it after the commit: whoever the effects concern is woken at once, and else within a second.

        On Postgres it does nothing: there the wakes follow the commit by themselves.
        """
        self._unit.wake()


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
                await self._life.commit()
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
