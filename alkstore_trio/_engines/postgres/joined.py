"""Effects and reads in a transaction that the application holds on a connection of its own, and alone commits.

The same steps as everywhere, on a cursor that knows nothing of what the application has set on its connection; over a
synchronous one they never suspend. Their wakes travel in the transaction, since its commit is not ours to see. What was
begun over an asynchronous one is driven to its end whoever is cancelled: no effect may be left without its wakes. No
wait for a stream or an offset outlasts the store's ``lock_timeout``, and the application's own is left as it was.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ... import _ops as ops
from ..._errors import DatabaseError
from ..._loop import Event, at_once, seen_through
from ..._ops import Op
from . import sqlops
from .holds import Key, key_of
from .sqlops import Steps
from .wakes import UNMARKED
from .wire import ADAPTERS

if TYPE_CHECKING:
    from .engine import PostgresEngine

__all__ = ["JoinedPostgres"]

A = TypeVar("A")

_GRACE = 0.03  # seconds that a verb which is cancelled has to come to its end by itself
_CANCEL_BOUND = 5.0  # seconds within which one that was called off must have come to it


def _steps(engine: "PostgresEngine", op: Op[A]) -> Steps[A]:
    """An op, and the wakes that are to follow its commit."""
    if isinstance(op, ops.Notify):
        answer: Any = None
    else:
        answer = yield from sqlops.HANDLERS[op.__class__](op, engine.clock())
    channels = op.wakes(answer)
    if channels:
        yield from sqlops.tell(engine.channel, [UNMARKED + channel for channel in channels])
    return answer  # type: ignore[no-any-return]


def _check(engine: "PostgresEngine", connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    engine.check_open()
    if connection.closed:
        raise RuntimeError("the connection is closed")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise RuntimeError("the connection is in pipeline mode: leave it first")
    if connection.info.encoding != "utf-8":
        raise RuntimeError("the connection's client_encoding is not UTF8, in which a payload travels")
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise RuntimeError("a statement of the connection's transaction has failed: it can only be rolled back")
    if status != TransactionStatus.INTRANS:
        raise RuntimeError(
            "the connection has no open transaction to join: execute 'begin', or any statement of your own, on it "
            "first (a driver's or SQLAlchemy's own begin does so only with the first statement)"
        )


class _Sync:
    """A synchronous connection, as the steps see it: what is awaited has been done at once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor._adapters = ADAPTERS

    async def run(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql.encode(), params, binary=True)  # else extra_float_digits rounds
        return self._cursor.fetchall() if self._cursor.description is not None else []


class _Async:
    """An asynchronous one, whose lock is had already."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor._adapters = ADAPTERS

    async def run(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        execute = self._cursor._execute_gen(sql.encode(), params, binary=True)  # else extra_float_digits rounds
        await self._connection.wait(execute)
        return await self._cursor.fetchall() if self._cursor.description is not None else []


class JoinedPostgres:
    """An application's transaction; see `JoinedUnit`."""

    __slots__ = ("_connection", "_cursor", "_engine", "_known", "awaits")

    def __init__(self, engine: "PostgresEngine", connection: object) -> None:
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise TypeError(f"join takes a psycopg connection here, not {type(connection).__name__}")
        _check(engine, connection)
        self._engine = engine
        self._connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] = connection
        self._cursor: _Sync | _Async = (
            _Sync(connection) if isinstance(connection, psycopg.Connection) else _Async(connection)
        )
        self._known = False  # whether it is a connection to the store's tables
        self.awaits: bool = isinstance(connection, psycopg.AsyncConnection)
        if not self.awaits:
            at_once(self._make_known())

    @property
    def engine(self) -> "PostgresEngine":
        return self._engine

    async def idle(self) -> None:
        _check(self._engine, self._connection)
        if self.awaits:
            await self._engine.checkpoint()

    async def do(self, op: Op[A]) -> A:
        await self.idle()
        holds, connection = self._engine.holds, self._connection
        holds.refuse(op)
        if isinstance(connection, psycopg.Connection):
            holds.refuse_blocking(op)
            return await self._done(op)
        async with connection.lock:
            _check(self._engine, connection)
            return await _seen_through(connection, partial(self._done, op))

    async def _done(self, op: Op[A]) -> A:
        if not self._known:
            await self._make_known()
        key = key_of(op)
        if key is None:
            return await self._run(_steps(self._engine, op))
        bound, changed = await self._run(sqlops.bound_waits(self._engine.server.timeout))
        try:
            return await self._run(_steps(self._engine, op), key, None if changed else bound)
        finally:
            if changed and self._connection.info.transaction_status == TransactionStatus.INTRANS:
                await self._run(sqlops.set_bound(bound))

    async def _make_known(self) -> None:
        await self._run(sqlops.check_store(self._engine.store))
        self._known = True

    async def _run(self, steps: Steps[A], key: Key | None = None, bound: str | None = None) -> A:
        """What some steps come to; ``key`` is what they may wait for, ``bound`` how long, if not the store's."""
        try:
            return await self._engine.server.run(self._cursor, steps)
        except psycopg.Error as error:
            raise await self._told(error, key, bound) from error

    async def _told(self, error: psycopg.Error, key: Key | None, bound: str | None) -> DatabaseError:
        engine = self._engine
        if error.sqlstate != "55P03" or key is None:
            return engine.server.told(error)
        holder = engine.holds.of(key) or (await engine.foreign_holder() if self.awaits else "another connection")
        return engine.holds.too_long(key, holder, bound)

    def wake(self) -> None:
        """The wakes follow the commit by themselves."""


async def _seen_through(connection: psycopg.AsyncConnection[Any], verb: Callable[[], Awaitable[A]]) -> A:
    """The result of a verb; one that is cancelled and goes on waiting is called off, which spoils the transaction.

    Where the server does not answer, the connection is closed, so that nothing of its transaction can stand.
    """
    patience = anyio.CancelScope()

    async def patiently() -> A:
        with patience:
            return await verb()
        connection.pgconn.finish()
        raise psycopg.OperationalError("the statement was called off, and nobody has answered")

    async def call_off(done: Event) -> None:
        pause = _GRACE
        with anyio.move_on_after(_CANCEL_BOUND):
            while not done.is_set():
                with anyio.move_on_after(pause):
                    await done.wait()
                    return
                with suppress(psycopg.Error):
                    await connection.cancel_safe(timeout=_CANCEL_BOUND)
                pause *= 2  # it may have come between two statements
        patience.cancel()

    return await seen_through(patiently, call_off)
