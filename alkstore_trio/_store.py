"""The store: makes handles, opens transactions, holds no policy."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, overload
from uuid import uuid4

import anyio
from anyio.abc import TaskStatus

from . import _schedule
from ._engine import Engine
from ._lock import LockHandle, holding, take
from ._ops import QueueNames, StreamNames
from ._outbox import Outbox
from ._queue import Queue
from ._receivers import WakeReceiver, listening
from ._rules import bounds, names
from ._rules.bounds import Seconds
from ._rules.stamps import stamps
from ._runner import run_schedules
from ._stream import Stream
from ._tx import (
    AsyncConnection,
    Committing,
    JoinedTx,
    Opened,
    SyncConnection,
    SyncJoinedTx,
    Tx,
    checked_notify,
    in_transaction,
)
from ._values import Schedule, ScheduleState
from ._waiting import StopToken

__all__ = ["Store"]

T = TypeVar("T")


class Store:
    """An open store, the same whatever engine it stands on. It belongs to the event loop that opened it.

    Every verb checks its arguments first, then raises `Closed` on a closed store.
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<Store on {type(self._engine).__name__}>"

    # Notify and listen

    async def notify(self, channel: str, payload: Any = None) -> None:
        """Wake every listener of a channel, in every process on the store. The payload is checked and not carried."""
        await self._engine.do(checked_notify(self._engine, channel, payload))

    def listen(self, channel: str) -> AbstractAsyncContextManager[WakeReceiver]:
        """Listen to a channel: ``async with`` gives a `WakeReceiver`, attached once the block is entered."""
        return listening(self._engine, names.shared(channel))

    # Handles

    def queue(
        self,
        name: str,
        *,
        visibility_timeout: Seconds = 300,
        max_attempts: int = 3,
        base_backoff: Seconds = 5,
        dead_retention: Seconds | None = None,
    ) -> Queue:
        """A handle on a queue. Its options, times in seconds, are stamped on the jobs that the handle enqueues.

        A claim lasts ``visibility_timeout``; a job dies after ``max_attempts`` claims; its first backoff is at most
        ``base_backoff``; once dead it is kept for ``dead_retention`` (``None``: for good).
        """
        names.shared(name)
        plain = stamps(visibility_timeout, max_attempts, base_backoff, dead_retention)
        self._engine.check_open()
        return Queue(self._engine, name, plain)

    def stream(self, name: str) -> Stream:
        """A handle on a stream."""
        stream = Stream(self._engine, name)
        self._engine.check_open()
        return stream

    def outbox(self, name: str) -> Outbox:
        """A handle on an outbox."""
        outbox = Outbox(self._engine, name)
        self._engine.check_open()
        return outbox

    async def queues(self) -> list[str]:
        """The names of queues with a job in them, backing queues of outboxes included, sorted."""
        return await self._engine.do(QueueNames())

    async def streams(self) -> list[str]:
        """The names of streams with an event or a saved offset, sorted."""
        return await self._engine.do(StreamNames())

    # Locks

    async def try_lock(self, name: str, owner: str, ttl: Seconds) -> LockHandle | None:
        """Take a lock for ``ttl`` seconds; ``None`` if another owner holds it. An owner is granted its hold again."""
        name, owner = names.shared(name), names.local(owner)
        return await take(self._engine, name, owner, bounds.duration(ttl, "ttl"))

    def hold_lock(
        self, name: str, ttl: Seconds, *, owner: str | None = None, wait: bool = True
    ) -> AbstractAsyncContextManager[LockHandle]:
        """Hold a lock for as long as the block runs, renewing it.

        Waits for the lock, or raises `LockHeld` where ``wait`` is false. When the hold is lost the block is cancelled
        and `LockLost` raised. Without ``owner`` the hold has one of its own.
        """
        name = names.shared(name)
        owner = f"owner-{uuid4().hex}" if owner is None else names.local(owner)
        return holding(self._engine, name, bounds.duration(ttl, "ttl"), owner, wait)

    # Scheduler

    async def schedule(
        self,
        name: str,
        spec: str,
        queue: str,
        payload: Any,
        *,
        priority: int = 0,
        expires: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> Schedule:
        """Register a schedule: each boundary of ``spec``, ``@every <n><s|m|h|d>``, enqueues the payload on ``queue``.

        Registering a name again replaces it; an unchanged interval keeps its grid. ``expires`` is seconds from the
        fire. Nothing fires without `run_schedules`.
        """
        return await _schedule.add(self._engine, name, spec, queue, payload, priority, expires, max_attempts)

    async def unschedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether there was one."""
        return await _schedule.remove(self._engine, name)

    async def schedules(self) -> list[ScheduleState]:
        """All schedules and their next boundaries, by name."""
        return await _schedule.listed(self._engine)

    async def run_schedules(
        self,
        stop: StopToken | None = None,
        *,
        standby: bool = False,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Fire schedules until stopped, as the one leader of the store.

        `LeadershipLost` if another runner leads, or the lease is lost; with ``standby`` it waits for its turn instead.
        ``started`` is reported once it leads.
        """
        await run_schedules(self._engine, stop, standby, task_status)

    # Transactions

    def begin_tx(self) -> AbstractAsyncContextManager[Tx]:
        """A transaction that is discarded on leaving the block unless ``await tx.commit()`` was called."""
        return Opened(self._engine)

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        """A transaction that commits on leaving the block cleanly and is discarded by any exception."""
        return Committing(self._engine)

    async def with_tx(self, fn: Callable[[Tx], Awaitable[T]], *, attempts: int = 1) -> T:
        """The value of ``await fn(tx)``, committed. Its error passes unchanged and discards.

        With ``attempts`` left, a retryable `DatabaseError` runs ``fn`` again in a new transaction.
        """
        if not callable(fn):
            raise TypeError(f"fn must be an async function, not {fn!r}")
        return await in_transaction(self._engine, fn, bounds.at_least(1, attempts, "attempts"))

    @overload
    def join(self, connection: SyncConnection) -> SyncJoinedTx: ...

    @overload
    def join(self, connection: AsyncConnection) -> JoinedTx: ...

    def join(self, connection: object) -> SyncJoinedTx | JoinedTx:
        """Put effects into a transaction that the application holds on a connection of its own, and alone commits.

        SQLite takes an ``sqlite3.Connection`` on the store's file, Postgres a psycopg connection to its database, whose
        asynchronous one gives coroutines. ``RuntimeError`` if no transaction is open there, and on the memory engine;
        ``ValueError`` for a connection to something else (an asynchronous one says so at its first use).
        """
        self._engine.check_open()
        unit = self._engine.join(connection)
        return JoinedTx(unit) if unit.awaits else SyncJoinedTx(unit)

    async def aclose(self) -> None:
        """Close the store, ending every receiver. Closes even when cancelled; a second call does nothing."""
        await self._engine.aclose()
