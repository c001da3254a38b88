"""A transaction: the server's own, on a connection that is its from the first effect or read to the end.

Its statements are the very ones that commit by themselves outside. Dropping it ends it: the connection is closed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import psycopg
from psycopg.pq import TransactionStatus

from ... import _ops as ops
from ..._loop import TaskRef, unbroken
from ..._ops import Op
from ..execute import checked_statement
from . import sqlops
from .connection import AsyncAnyioConnection
from .failures import refusal
from .holds import Key, key_of

if TYPE_CHECKING:
    from .engine import PostgresEngine

__all__ = ["PostgresTx"]

A = TypeVar("A")

_COMMIT = 30.0  # seconds that a commit may take before nobody knows what became of it
_ROLLBACK = 5.0  # seconds after which the connection is closed instead

# A caller's statement is planned as on any connection, and not as ours are.
_AS_USUAL = """
set local plan_cache_mode to default;
set local enable_seqscan to default;
set local enable_bitmapscan to default"""


class PostgresTx:
    """An open transaction; see `TxUnit`."""

    __slots__ = ("_connection", "_effects", "_engine", "_failed", "_hold", "_over")

    def __init__(self, engine: "PostgresEngine", task: TaskRef | None, who: str) -> None:
        self._engine = engine
        self._hold = engine.holds.begin(task, who)
        self._connection: AsyncAnyioConnection | None = None
        self._effects: list[tuple[ops.Write[Any], Any]] = []
        self._failed = False
        self._over = False  # whether it was rolled back, perhaps while another task was in a verb of it

    def __del__(self) -> None:
        if self._connection is not None:
            self._engine.abandon(self._connection, self._hold)

    @property
    def engine(self) -> "PostgresEngine":
        return self._engine

    async def idle(self) -> None:
        await self._engine.idle()

    async def do(self, op: Op[A]) -> A:
        engine = self._engine
        self._check()
        engine.holds.refuse(op, self._hold)
        await engine.checkpoint()
        engine.check_open()
        if isinstance(op, ops.Notify):
            steps: Any = engine.notifying(op)
        else:
            steps = sqlops.HANDLERS[op.__class__](op, engine.clock())
        key = key_of(op)
        answer: A = await self._really(lambda connection: engine.server.run(connection, steps), key)
        if isinstance(op, ops.Write):
            self._effects.append((op, answer))
            if key is not None and self._connection is not None:
                engine.holds.take(key, self._hold)
        return answer

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self._check()
        checked_statement(sql)
        await self._engine.checkpoint()
        self._engine.check_open()

        async def executed(connection: AsyncAnyioConnection) -> list[tuple[Any, ...]]:
            if not connection.lent:
                await connection.run_all(_AS_USUAL)
                connection.lent = True
            self._check_goes_on()
            return await connection.execute_own(sql, params or None)

        rows = await self._really(executed)
        if self._connection is not None and self._status is not TransactionStatus.INTRANS:
            self._failed = True
            raise ValueError("a transaction is ended by its own methods, and a statement has ended this one")
        return rows

    def _check(self) -> None:
        self._engine.check_open()
        if self._failed:
            raise RuntimeError("a statement of the transaction has failed: it can only be rolled back")

    def _check_goes_on(self) -> None:
        if self._over:  # another task has left the block meanwhile, and the connection may be somebody else's
            raise RuntimeError("the transaction has ended")

    @property
    def _status(self) -> TransactionStatus:
        return TransactionStatus.UNKNOWN if self._connection is None else self._connection.info.transaction_status

    async def _really(self, work: Callable[[AsyncAnyioConnection], Awaitable[A]], key: Key | None = None) -> A:
        """Do some work on the connection; what has not left the transaction as it should be spoils it."""
        try:
            if self._connection is None:
                self._connection = await self._begun()
            self._check_goes_on()
            return await work(self._connection)
        except psycopg.Error as error:
            self._failed = error.sqlstate is not None or self._status is not TransactionStatus.INTRANS
            if why := refusal(error) or ("" if self._failed else str(error)):
                raise ValueError(f"the statement cannot be run: {why}") from error
            told = await self._engine.told(error, key)
        except BaseException:
            self._failed = self._connection is not None and self._status is not TransactionStatus.INTRANS
            raise
        raise told

    async def _begun(self) -> AsyncAnyioConnection:
        connection = await self._engine.take_for_transaction(self._hold.task)
        try:
            await connection.run("begin isolation level read committed")
            if connection.pooled:
                await connection.run(f"set local lock_timeout = '{self._engine.server.timeout}'")
            self._check_goes_on()
        except BaseException:
            self._engine.give(connection, self._hold.task)
            raise
        return connection

    # The end

    async def commit(self) -> None:
        self._check()
        await self._engine.checkpoint()
        self._engine.check_open()
        connection = self._connection
        if connection is None:
            return
        if not connection.answers:  # so that nothing stands
            self._failed = True
            lost = psycopg.OperationalError("the server has ended the session")
            raise self._engine.server.told(lost) from lost
        try:
            await unbroken(self._commit)
        except psycopg.Error as error:
            self._failed = True
            if error.sqlstate is None or not connection.answers:
                raise self._engine.unknown("a commit", error) from error
            raise self._engine.server.told(error) from error
        self._engine.hub.fire(ops.wakes_of_end(self._effects, ()))
        self._engine.voice.tell(
            ops.wakes_of_end([effect for effect in self._effects if not isinstance(effect[0], ops.Notify)], ())
        )
        if connection.lent:
            await unbroken(self._renew)
        self._left()

    async def _commit(self) -> None:
        connection = self._connection
        assert connection is not None
        with anyio.move_on_after(_COMMIT):
            await connection.run("commit")
            return
        connection.abort()
        raise psycopg.OperationalError(f"no answer in {_COMMIT:g} seconds")

    async def _renew(self) -> None:
        """Undo what the caller's statements have left in the session; where that fails the pool closes it."""
        assert self._connection is not None
        with anyio.move_on_after(_ROLLBACK), suppress(psycopg.Error):
            await self._engine.server.renew(self._connection)

    async def rollback(self) -> None:
        self._over = True
        connection = self._connection
        if connection is None:
            return
        try:
            with anyio.move_on_after(_ROLLBACK, shield=True):
                if connection.info.transaction_status is not TransactionStatus.IDLE:
                    await connection.run("rollback")
                await self._engine.server.renew(connection)
        except psycopg.Error:  # it is lost, and with it what was to be rolled back
            pass
        finally:
            self._left()

    def _left(self) -> None:
        """The connection is the pool's again, which closes one that is not as it should be."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._engine.give(connection, self._hold.task)
        self._engine.holds.let_go(self._hold)
