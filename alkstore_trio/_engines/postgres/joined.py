"""Effects and reads in a transaction that the application holds on a connection of its own, and alone commits.

The same steps as everywhere, on a cursor that knows nothing of what the application has set on its connection. Their
wakes travel in the transaction, since its commit is not ours to see.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ... import _ops as ops
from ..._ops import Op
from . import sqlops
from .sqlops import Steps
from .statements import compiled
from .wakes import UNMARKED
from .wire import ADAPTERS

if TYPE_CHECKING:
    from .engine import PostgresEngine

__all__ = ["AsyncJoinedPostgres", "JoinedPostgres"]

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
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise RuntimeError("a statement of the connection's transaction has failed: it can only be rolled back")
    if status != TransactionStatus.INTRANS:
        raise RuntimeError(
            "the connection has no open transaction to join: execute 'begin', or any statement of your own, on it "
            "first (a driver's or SQLAlchemy's own begin does so only with the first statement)"
        )


class JoinedPostgres:
    """An application's transaction on a synchronous connection; see `JoinedUnit`. Never awaits."""

    __slots__ = ("_connection", "_cursor", "_engine")

    awaits = False

    def __init__(self, engine: "PostgresEngine", connection: "psycopg.Connection[Any]") -> None:
        _check(engine, connection)
        self._engine = engine
        self._connection = connection
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor._adapters = ADAPTERS
        self._run(sqlops.check_store(engine.store))

    @property
    def engine(self) -> "PostgresEngine":
        return self._engine

    async def idle(self) -> None:
        _check(self._engine, self._connection)

    async def do(self, op: Op[A]) -> A:
        _check(self._engine, self._connection)
        return self._run(_steps(self._engine, op))

    def _run(self, steps: Steps[A]) -> A:
        try:
            template, params = next(steps)
            while True:
                text, names = compiled(template, self._engine.server.schema)
                self._cursor.execute(text, [params[name] for name in names])
                rows = self._cursor.fetchall() if self._cursor.description is not None else []
                template, params = steps.send(rows)
        except StopIteration as end:
            answer: A = end.value
            return answer
        except psycopg.Error as error:
            raise self._engine.server.told(error) from error

    def wake(self) -> None:
        """The wakes follow the commit by themselves."""


class AsyncJoinedPostgres:
    """The same on an asynchronous connection; see `JoinedUnit`."""

    __slots__ = ("_checked", "_connection", "_cursor", "_engine")

    awaits = True

    def __init__(self, engine: "PostgresEngine", connection: "psycopg.AsyncConnection[Any]") -> None:
        _check(engine, connection)
        self._engine = engine
        self._connection = connection
        self._cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor._adapters = ADAPTERS
        self._checked = False

    @property
    def engine(self) -> "PostgresEngine":
        return self._engine

    async def idle(self) -> None:
        _check(self._engine, self._connection)
        await self._engine.checkpoint()

    async def do(self, op: Op[A]) -> A:
        _check(self._engine, self._connection)
        await self._engine.checkpoint()
        if not self._checked:
            await self._run(sqlops.check_store(self._engine.store))
            self._checked = True
        return await self._run(_steps(self._engine, op))

    async def _run(self, steps: Steps[A]) -> A:
        try:
            template, params = next(steps)
            while True:
                text, names = compiled(template, self._engine.server.schema)
                await self._cursor.execute(text, [params[name] for name in names])
                rows = await self._cursor.fetchall() if self._cursor.description is not None else []
                template, params = steps.send(rows)
        except StopIteration as end:
            answer: A = end.value
            return answer
        except psycopg.Error as error:
            raise self._engine.server.told(error) from error

    def wake(self) -> None:
        """The wakes follow the commit by themselves."""


def joined(engine: "PostgresEngine", connection: object) -> "JoinedPostgres | AsyncJoinedPostgres":
    """The transaction on a connection of the driver's."""
    if isinstance(connection, psycopg.Connection):
        return JoinedPostgres(engine, connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncJoinedPostgres(engine, connection)
    raise TypeError(f"join takes a psycopg connection here, not {type(connection).__name__}")
