"""The engine: what a store asks of a server, over a pool of connections of its own.

A verb outside a transaction is one statement that commits by itself. Enqueues, claims, acks and publishes that wait
together travel together; nothing else waits for anything but a connection. It keeps no state that a statement's answer
depends on: the server's rows and the server's clock decide.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import psycopg

from ... import _ops as ops
from ..._engine import JoinedUnit, Traits
from ..._errors import Closed, CommitUnknown, DatabaseError
from ..._loop import TaskRef, Turns, asking_task, call_soon_threadsafe, came_barely, cancel_later, event_class, unbroken
from ..._ops import Op
from ..._rules.bounds import reading
from ..._wake import Hub
from ..reads import job_rows
from . import sqlops
from .connection import AsyncAnyioConnection
from .cursors import Cursors
from .holds import Hold, Holds, Key, key_of
from .joined import JoinedPostgres
from .lanes import Company, Lane, size_of
from .pool import Pool, Use
from .server import Server
from .sqlops import Steps
from .tx import PostgresTx
from .upkeep import Upkeep
from .wakes import Ears, Voice, new_mark, server_channel

__all__ = ["PostgresEngine"]

A = TypeVar("A")

Send = Callable[[Sequence[Any]], Awaitable[list[Any]]]

_PREFETCH = 64  # jobs that a worker has one statement claim ahead
_LAST_STATEMENTS = 5.0  # seconds that closing waits for what has been sent
_BLIND_POLL = 1.0  # seconds between two looks of everybody who waits, where there is no connection that listens
_FARTHEST, _NEAREST = 1e290, 1e-290  # of a given clock: what the server can still add any duration to, exactly

# The server had ended the session before it began to commit.
_CERTAIN = {"25P03", "25P04", "57P01", "57P03", "57P05"}


class PostgresEngine:
    """A store's connections and wakes; see `Engine`."""

    traits = Traits(
        counts_wakes=False,
        discarded_ids_are_gaps=False,
        serializes_publishers=True,
        serializes_writers=False,
        notify_limit=7_999,
        has_sql=True,
        durable=True,
        many_processes=True,
        clock_is_local=False,
    )
    prefetch = _PREFETCH

    def __init__(
        self,
        server: Server,
        listening: Server | None,  # None: nobody listens, everybody polls
        max_connections: int,
        clock: Callable[[], float] | None,
    ) -> None:
        self.server = server
        self.hub = Hub()
        self.sleep: Callable[[float], Awaitable[object]] | None = getattr(clock, "sleep", None)
        self.pool: Pool[AsyncAnyioConnection] = Pool(server.connect, max_connections)
        self.holds = Holds(server.lock_timeout)
        self.store = ""  # the identity of what is in the schema, for who joins
        self._transactions: Counter[TaskRef | None] = Counter()  # open ones of each task that have a connection
        self._clock = clock
        self._turns = Turns()
        self.checkpoint = self._turns.checkpoint
        self._call_soon = call_soon_threadsafe()
        self._process = os.getpid()
        self._closed = False
        self.channel = server_channel(server.schema)
        mark = new_mark()
        self.voice = Voice(server, self.channel, mark, self._start_soon)
        self._upkeep = Upkeep(server, self.clock, self._start_soon)
        self._cursors = Cursors(self.hub)
        self._ears = None if listening is None else Ears(listening, self.channel, mark, self.hub)
        self._event = event_class()
        self._enqueues: Lane[ops.Enqueue, list[int]] = self._lane(
            self._sending(sqlops.enqueue), lambda op: size_of(op.bodies), Company(), lambda: None
        )
        self._named: dict[Key, Lane[Any, Any]] = {}  # of publishes to a stream, of claims and of acks of a queue
        self._claimants, self._ackers, self._publishers = Company(), Company(), Company()
        self._start: Callable[[Callable[[], Awaitable[object]]], object] | None = None
        self._tasks: dict[anyio.CancelScope, anyio.Event] = {}

    def __repr__(self) -> str:
        return f"<PostgresEngine on {self.server.where!r}>"

    @property
    def engine(self) -> "PostgresEngine":
        return self

    # Opening and closing

    async def open(self) -> None:
        """Connect, and have the schema there, or say why not."""
        try:
            connection = await self.pool.take()
            try:
                self.store = await self.server.prepare(connection)
            finally:
                self.pool.give(connection)
            if self._ears is not None:
                await self._ears.open()
        except BaseException:
            self._closed = True
            await unbroken(partial(self.pool.close, 0.0))
            raise

    def serve(self, start: Callable[[Callable[[], Awaitable[object]]], object]) -> None:
        """Have the store's own tasks run by ``start``."""
        self._start = start
        self._start_soon(self._poll if self._ears is None else self._ears.hear)

    def _start_soon(self, task: Callable[[], Awaitable[object]]) -> None:
        if self._start is None or self._closed:
            return
        ended, scope = anyio.Event(), anyio.CancelScope()
        self._tasks[scope] = ended  # from now on: closing waits for those that have not begun to run, too

        async def owned() -> None:
            try:
                with scope:
                    await task()
            finally:
                del self._tasks[scope]
                ended.set()

        self._start(owned)

    async def _poll(self) -> None:
        while True:
            await anyio.sleep(_BLIND_POLL)
            self.hub.reconnected()

    async def aclose(self) -> None:
        if os.getpid() != self._process:  # a fork has no tasks to end, and the connections are its parent's
            return
        if not self._closed:
            self._closed = True
            self.hub.close()
            for lane in self._lanes():
                lane.close()
        await unbroken(self._end)

    async def _end(self) -> None:
        with anyio.move_on_after(_LAST_STATEMENTS):
            for lane in self._lanes():
                await lane.emptied()
        for scope in tuple(self._tasks):
            scope.cancel()
        for ended in tuple(self._tasks.values()):
            await ended.wait()
        await self.voice.close()
        await self.pool.close(_LAST_STATEMENTS)

    def check_open(self) -> None:
        if self._closed:
            raise Closed
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the store on {self.server.where!r} was opened before a fork: open one of its own in the child process"
            )

    # The unit

    def clock(self) -> float | None:
        """What the given clock says, as far as the server can reckon with it; ``None``: the server's own decides."""
        if self._clock is None:
            return None
        now = min(max(reading(self._clock()), -_FARTHEST), _FARTHEST)
        return now if abs(now) > _NEAREST else 0.0

    async def idle(self) -> None:
        self.check_open()
        await self.checkpoint()

    async def do(self, op: Op[A]) -> A:
        self.check_open()
        self.holds.refuse(op)
        await self._turns.check()
        answer: Any
        if isinstance(op, ops.Enqueue):
            answer = await self._enqueues.do(op)
        elif isinstance(op, ops.Publish | ops.Claim | ops.Ack):
            answer = await self._in_lane(op)
        elif isinstance(op, ops.Notify):
            answer = await self._committed(self.notifying(op))
            self.hub.fire(op.wakes(answer))
        else:
            steps = sqlops.HANDLERS[op.__class__](op, self.clock())
            answer = await self._committed(steps, key_of(op), reads=isinstance(op, ops.Read))
            self._answered((op,), (answer,))
        return answer  # type: ignore[no-any-return]

    def _answered(self, together: Sequence[Op[Any]], answers: Sequence[Any]) -> None:
        """Ops of one commit stand: wake whom they concern."""
        woken: dict[str, None] = {}
        for op, answer in zip(together, answers, strict=True):
            woken.update(dict.fromkeys(op.wakes(answer)))
            self._upkeep.stirred(op, answer)
        if woken:
            self.hub.fire(woken)
            self.voice.tell(woken)

    async def _in_lane(self, op: ops.Publish | ops.Claim | ops.Ack) -> Any:
        """Do an op with whoever asks the same of the same stream or queue; one that is held must not hold others."""
        key: Key
        if isinstance(op, ops.Publish):
            key = ("stream", op.stream)
        else:
            key = ("claims" if isinstance(op, ops.Claim) else "acks", op.queue)
        lane = self._named.get(key)
        if lane is None:
            lane = self._named[key] = self._lane_for(op, key)
        answer = await lane.do(op)  # without an await in between: a lane that is found is entered
        return job_rows(answer) if isinstance(op, ops.Claim) else answer  # perhaps while the next are under way

    def _lane_for(self, op: ops.Publish | ops.Claim | ops.Ack, key: Key) -> Lane[Any, Any]:
        forget = partial(self._named.pop, key)
        match op:
            case ops.Publish():
                send = self._sending(sqlops.publish, key)
                return self._lane(send, lambda op: size_of(op.bodies), self._publishers, forget)
            case ops.Claim():
                return self._lane(self._claimed, lambda op: op.n, self._claimants, forget)
            case ops.Ack():
                return self._lane(self._sending(sqlops.ack), lambda op: len(op.claims), self._ackers, forget)

    async def _claimed(self, together: Sequence[ops.Claim]) -> list[list[tuple[Any, ...]]]:
        with self._cursors.claiming(together[0].queue) as cursor:
            answers, last, seconds = await self._committed(sqlops.claim(together, self.clock(), cursor.place))
            cursor.claimed(sum(op.n for op in together), last, seconds)
        return answers

    def _lanes(self) -> list[Lane[Any, Any]]:
        return [self._enqueues, *self._named.values()]

    def _lane(
        self, send: Send, size: Callable[[Any], int], company: Company, forget: Callable[[], object]
    ) -> Lane[Any, Any]:
        return Lane(send, size, self._answered, self._start_soon, self._event, self._turns.pause, company, forget)

    def _sending(
        self, steps: Callable[[Sequence[Any], float | None], Steps[list[Any]]], key: Key | None = None
    ) -> Send:
        return lambda together: self._committed(steps(together, self.clock()), key)

    async def _committed(self, steps: Steps[A], key: Key | None = None, *, reads: bool = False) -> A:
        """What some steps come to, each committed by itself; ``key`` is what they may have to wait for."""
        connection = await self._take(key)
        try:
            if key is None or not connection.pooled:
                return await self.server.run(connection, steps)
            with anyio.move_on_after(self.server.lock_timeout):  # which a pooler's session cannot be told
                return await self.server.run(connection, steps)
            if connection.uncertain:
                raise self.unknown("a statement", None)
            failed = None
        except psycopg.Error as error:
            if not reads and not connection.alive and error.sqlstate not in _CERTAIN:
                raise self.unknown("a statement", error) from error
            if self._closed:
                raise Closed from error
            failed = error
        except BaseException as interruption:
            if reads or not connection.uncertain:
                raise
            if isinstance(interruption, anyio.get_cancelled_exc_class()) and came_barely():
                cancel_later()
            raise self.unknown("a statement", None) from None
        finally:
            self.pool.give(connection)
        raise await (self._kept_waiting(key) if failed is None else self.told(failed, key))

    def unknown(self, what: str, error: psycopg.Error | None) -> CommitUnknown:
        """The error of who does not know whether something stands."""
        self.hub.reconnected()  # whom it concerns may look
        why = "it was called off, and nobody has answered" if error is None else str(self.server.told(error))
        return CommitUnknown(
            f"{self.server.where!r}: the connection was lost while {what} was under way, which may stand or not ({why})"
        )

    async def _take(self, key: Key | None) -> AsyncAnyioConnection:
        """A connection; what waits for a transaction of ours must not have the last one, and does not wait for ever."""
        hold = self.holds.of(key)
        if hold is None:
            return await self.pool.take(Use.STATEMENT if key is None else Use.HELD_STATEMENT)
        with anyio.move_on_after(self.server.lock_timeout):
            return await self.pool.take(Use.TRANSACTION)
        raise self.holds.too_long(key, hold)

    async def take_for_transaction(self, task: TaskRef | None) -> AsyncAnyioConnection:
        """A connection for a transaction; a task that has one already does not wait for ever."""
        with anyio.move_on_after(self.server.lock_timeout if self._transactions[task] else None):
            connection = await self.pool.take(Use.TRANSACTION)
            self._transactions[task] += 1
            return connection
        raise DatabaseError(
            f"no connection within the lock_timeout of {self.server.lock_timeout:g} s for a second transaction of this "
            "task, while all are in others: raise max_connections, or open one at a time",
            transient=True,
        )

    def give(self, connection: AsyncAnyioConnection, task: TaskRef | None) -> None:
        """Take back what a transaction of a task had."""
        self.pool.give(connection)
        self._transactions[task] -= 1
        if not self._transactions[task]:
            del self._transactions[task]

    async def begin(self) -> PostgresTx:
        await self.idle()
        self.check_open()
        return PostgresTx(self, asking_task(), anyio.get_current_task().name or "?")

    def join(self, connection: object) -> JoinedUnit:
        return JoinedPostgres(self, connection)

    # Wakes

    def notifying(self, op: ops.Notify) -> Steps[None]:
        """A user's notify, which is part of its transaction."""
        return sqlops.tell(self.channel, self.voice.payloads(op.wakes(None)))

    # Who waits for whom

    def abandon(self, connection: AsyncAnyioConnection, hold: Hold) -> None:
        """A transaction was collected as garbage, perhaps in another thread."""

        def ended() -> None:
            connection.abort()
            self.give(connection, hold.task)
            self.holds.let_go(hold)

        self._call_soon(ended)

    async def told(self, error: psycopg.Error, key: Key | None) -> DatabaseError:
        """The library's error for one of the driver's; of a lock that was not to be had, who holds it."""
        told = self.server.told(error)
        told.__cause__ = error
        if error.sqlstate != "55P03" or key is None:
            return told
        waited = await self._kept_waiting(key)
        waited.__cause__ = error
        return waited

    async def _kept_waiting(self, key: Key | None) -> DatabaseError:
        return self.holds.too_long(key, self.holds.of(key) or await self.foreign_holder())

    async def foreign_holder(self) -> str:
        """The session that has been writing to streams or offsets for the longest."""
        rows: list[tuple[Any, ...]] = []
        with anyio.move_on_after(1.0):
            with suppress(DatabaseError):
                rows = await self._committed(sqlops.writers(), reads=True)
        for pid, name, seconds in rows:
            return f"another connection, most likely pid {pid} ({name!r}), in a transaction for {seconds:.0f} s"
        return "another connection"
