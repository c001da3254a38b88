"""The conformance suite on the SQLite engine."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from alkstore_trio import Store, open_sqlite
from alkstore_trio.testing.conformance import *

from ..folders import FOLDER


@asynccontextmanager
async def _open(*, clock: Callable[[], float] | None = None) -> AsyncIterator[Store]:
    """A store in a file of its own."""
    with TemporaryDirectory(dir=FOLDER) as folder:
        async with open_sqlite(Path(folder, "store.db"), durability="normal", clock=clock) as store:
            yield store


@pytest.fixture(params=[Case("sqlite", _open)], ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(autouse=True, scope="module")
def _switching_often() -> Iterator[None]:
    """Threads that take turns often: more interleavings are seen, and tests that keep the loop busy end sooner."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(interval)
