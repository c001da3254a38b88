"""The conformance suite on the Postgres engine."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from alkstore_trio import Store, open_postgres
from alkstore_trio.testing.conformance import *
from tests.engines.faults import TABLES


class Schemas:
    """Schemas to open a store in, emptied after each."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._made = 0
        self._free: list[str] = []

    @asynccontextmanager
    async def open(self, *, clock: Callable[[], float] | None = None) -> AsyncIterator[Store]:
        if self._free:
            name = self._free.pop()
        else:
            self._made += 1
            name = f"conformance {os.getpid()} {self._made}"
        async with open_postgres(self._dsn, schema=name, clock=clock) as store:
            yield store
        self._connection.execute(
            "; ".join(f'delete from "{name}".{table}' for table in TABLES)
            + f"""; select setval('"{name}".jobs_id_seq', 1, false)"""
        )
        self._free.append(name)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def schemas(dsn: str) -> Iterator[Schemas]:
    schemas = Schemas(dsn)
    yield schemas
    schemas.close()


@pytest.fixture
def case(schemas: Schemas) -> Case:
    return Case("postgres", schemas.open)
