"""What a store does for its tables when it has stirred them: a vacuum, and word of what keeps one from helping.

A queue is all change. Its dead rows lie in front of its head, and claims walk over them until they are vacuumed; the
server's own vacuum comes at intervals and may be busy elsewhere. No answer depends on anything here: what fails is
logged, and left to the next time. An idle store asks nothing.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from ... import _ops as ops
from ..._errors import DatabaseError
from ..._ops import Op
from . import sqlops
from .connection import AsyncAnyioConnection
from .server import Server

__all__ = ["Upkeep"]

log = logging.getLogger("alkstore_trio")

_MANY = 20_000  # rows that have died: for those a vacuum is worth its time
_MANY_LOCKS = 1_000  # rows of locks that nobody has taken for a day may have gathered among so many
_OLD = 300.0  # seconds after which a snapshot that keeps dead rows is worth a word


class Upkeep:
    """Counts what this store has stirred, and looks after the tables when that is much."""

    def __init__(
        self,
        server: Server,
        clock: Callable[[], float | None],
        start_soon: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        self._server = server
        self._clock = clock
        self._start_soon = start_soon
        self._rows = self._locks = 0
        self._under_way = False
        self._told_of: set[int] = set()

    def stirred(self, op: Op[Any], answer: Any) -> None:
        """An op of this store's was answered."""
        if isinstance(op, ops.Claim | ops.Release | ops.Heartbeat):
            self._rows += len(answer)
        elif isinstance(op, ops.TryLock):
            self._locks += 1
        elif isinstance(op, ops.Move) and isinstance(answer, int):
            self._rows += answer
        if (self._rows >= _MANY or self._locks >= _MANY_LOCKS) and not self._under_way:
            self._under_way = True
            self._start_soon(self._keep_up)

    async def _keep_up(self) -> None:
        rows, self._rows = self._rows, 0
        locks, self._locks = self._locks, 0
        try:
            connection = await self._server.connect()
            try:
                if locks >= _MANY_LOCKS:
                    await self._server.run(connection, sqlops.forget_locks(self._clock()))
                if rows >= _MANY:
                    await self._vacuum(connection)
            finally:
                connection.abort()
        except (DatabaseError, psycopg.Error, OSError) as error:
            log.info("%s: the store's tables could not be looked after: %s", self._server.where, error)
        finally:
            self._under_way = False

    async def _vacuum(self, connection: AsyncAnyioConnection) -> None:
        table = self._server.placed("$jobs")
        if await self._server.run(connection, sqlops.dead_rows()) >= _MANY:
            await connection.execute_own(f"vacuum (skip_locked, index_cleanup on) {table}")
        for pid, name, seconds in await self._server.run(connection, sqlops.old_snapshots(_OLD)):
            if pid not in self._told_of:
                self._told_of.add(pid)
                log.warning(
                    "%s: the session with pid %d (%r) has had a transaction open for %.0f s, so that rows which have "
                    "died since cannot be vacuumed and claims slow down: end it",
                    self._server.where,
                    pid,
                    name,
                    seconds,
                )
