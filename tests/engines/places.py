"""Where the tests of the Postgres engine have their stores, and how they look at its server from outside."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import attrs
import psycopg

from alkstore_trio import Store, open_postgres
from alkstore_trio._engines.postgres.engine import PostgresEngine

__all__ = ["LOCKS", "Opening", "Place", "engine_of", "until"]

Opening = Callable[..., AbstractAsyncContextManager[Store]]  # a fixture's

# What the sessions of a name hold or wait for.
LOCKS = """select locktype, mode, granted, query from pg_locks join pg_stat_activity using (pid)
 where application_name = %s"""

_BOUND = 30.0  # seconds that no fact takes to come about
_LOOK = 0.005  # seconds between two looks at the server


def engine_of(store: Store) -> PostgresEngine:
    """What a store stands on."""
    assert isinstance(store._engine, PostgresEngine)
    return store._engine


@attrs.frozen
class Place:
    """A schema of a server, whose stores' sessions bear its name."""

    dsn: str  # through the socket, for who looks; and for stores, unless they are given a port
    schema: str

    def url(self, port: int | None = None) -> str:
        """Where to open a store, through a port of a proxy's if need be."""
        base = self.dsn if port is None else f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        return f"{base}{'&' if '?' in base else '?'}application_name={self.schema}"

    def open(self, port: int | None = None, **options: Any) -> AbstractAsyncContextManager[Store]:
        """A store here."""
        return open_postgres(self.url(port), schema=self.schema, **options)

    def ask(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of a statement, on a connection of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def sessions(self, condition: str = "true") -> list[int]:
        """The pids of the stores' sessions of which something is true."""
        text = f"select pid from pg_stat_activity where application_name = %s and {condition} order by backend_start"
        return [pid for (pid,) in self.ask(text, self.schema)]

    def locks(self) -> list[tuple[Any, ...]]:
        """What the stores' sessions hold or wait for."""
        return self.ask(LOCKS, self.schema)


async def until(fact: Callable[[], object]) -> None:
    """Wait until something is the case."""
    with anyio.fail_after(_BOUND):
        while True:
            if fact():
                return
            await anyio.sleep(_LOOK)
