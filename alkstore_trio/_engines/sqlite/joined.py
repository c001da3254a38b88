"""Effects and reads in a transaction that the application holds on a connection of its own, and alone commits."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..._errors import DatabaseError
from ..._ops import Op, Write
from .. import sqlops
from .file import Session, failure
from .peers import LOOK, POKE, mark
from .requests import doing

if TYPE_CHECKING:
    from .engine import SqliteEngine

__all__ = ["JoinedSqlite"]

A = TypeVar("A")


class JoinedSqlite:
    """An application's transaction; see `JoinedUnit`. It never awaits, and runs in the connection's thread."""

    __slots__ = ("_channels", "_connection", "_engine", "_session")

    awaits = False

    def __init__(self, engine: "SqliteEngine", connection: sqlite3.Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._channels: dict[str, None] = {}
        with self._as_ours():
            self._session = Session(connection, engine.file.prefix)
            connection.text_factory = os.fsdecode
            [path] = [file for _, name, file in self._session.query("pragma database_list") if name == "main"]
        try:
            same = bool(path) and os.path.samefile(path, engine.file.path)
        except OSError as error:
            raise DatabaseError(f"{error.filename!r}: {error.strerror}; was it moved since it was opened?") from error
        if not same:
            raise ValueError(
                f"the connection is to {path or 'a database in memory'!r}, the store to {engine.file.path!r}"
            )
        self._check()

    @property
    def engine(self) -> "SqliteEngine":
        return self._engine

    def _check(self) -> None:
        self._engine.check_open()
        if not self._connection.in_transaction:
            raise RuntimeError(
                "the connection has no open transaction to join: execute 'begin immediate' on it first (a driver's or "
                "SQLAlchemy's own begin does so only with the first write)"
            )

    async def idle(self) -> None:
        with self._as_ours():
            self._check()

    async def do(self, op: Op[A]) -> A:
        with self._as_ours():
            self._check()
            session = self._session
            session.query("savepoint alkstore")
            try:
                writes = isinstance(op, Write)  # which take the lock first, so that wakes are numbered as they commit
                ids = session.run(sqlops.reserve(sqlops.ids_of(op))) if writes else ()
                answer: A = doing(op, self._engine.now, ids)(session)
                channels = op.wakes(answer)
                if channels:
                    seq = next(self._engine.joined_wakes)
                    session.run(sqlops.wake(channels, self._engine.joined, seq, time.time()))
                session.query("release alkstore")
            except BaseException:
                if self._connection.in_transaction:
                    session.query("rollback to alkstore")
                    session.query("release alkstore")
                raise
        if channels:
            self._channels.update(dict.fromkeys(channels))
            self._engine.watch_joined()
            self._engine.peers.tell([POKE], oneself=True)
        return answer

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """The connection without what the application has set on it, and errors as ours."""
        text_factory, self._connection.text_factory = self._connection.text_factory, str
        try:
            yield
        except sqlite3.ProgrammingError as error:  # closed, or used in another thread than its own
            raise RuntimeError(str(error)) from error
        except sqlite3.Error as error:
            raise failure(error, self._engine.file.path) from error
        finally:
            self._connection.text_factory = text_factory

    def wake(self) -> None:
        """Hint at once to those whom the committed effects concern."""
        channels, self._channels = self._channels, {}
        self._engine.peers.tell(((mark(channel), *LOOK) for channel in channels), oneself=True)
