import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from alkstore_trio import Store, open_postgres
from alkstore_trio.testing.conformance.kit import anyio_backend
from tests.engines.places import Opening

__all__ = ["anyio_backend", "opened", "path", "schema"]

_numbers = count(1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a test's file is, or is to be."""
    return str(tmp_path / "store.db")


@pytest.fixture
def schema(dsn: str) -> Iterator[str]:
    """A schema of a test's own on the shared server."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {name} cascade")


@pytest.fixture
def opened(dsn: str, schema: str) -> Opening:
    """Opens a store in it, through the server's own DSN or another."""

    def opened(where: str = dsn, **options: Any) -> AbstractAsyncContextManager[Store]:
        return open_postgres(where, schema=schema, **options)

    return opened
