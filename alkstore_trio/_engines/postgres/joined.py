"""Effects and reads in a transaction that the application holds on a connection of its own, and alone commits.

The same steps as everywhere, on a cursor that knows nothing of what the application has set on its connection; over a
synchronous one they never suspend. Their wakes travel in the transaction, since its commit is not ours to see.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ... import _ops as ops
from ..._loop import at_once
from ..._ops import Op
from . import sqlops
from .sqlops import Steps
from .wakes import UNMARKED
from .wire import ADAPTERS

if TYPE_CHECKING:
    from .engine import PostgresEngine

__all__ = ["JoinedPostgres"]

A = TypeVar("A")


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
    """An asynchronous one."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor._adapters = ADAPTERS

    async def run(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        await self._cursor.execute(sql.encode(), params, binary=True)  # else extra_float_digits rounds
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
        self._engine.holds.refuse(op)
        if not self._known:
            await self._make_known()
        return await self._run(_steps(self._engine, op))

    async def _make_known(self) -> None:
        await self._run(sqlops.check_store(self._engine.store))
        self._known = True

    async def _run(self, steps: Steps[A]) -> A:
        server = self._engine.server
        try:
            return await server.run(self._cursor, steps)
        except psycopg.Error as error:
            raise server.told(error) from error

    def wake(self) -> None:
        """The wakes follow the commit by themselves."""
