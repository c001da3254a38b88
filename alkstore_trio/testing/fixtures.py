"""Pytest fixtures: ``pytest_plugins = ["alkstore_trio.testing.fixtures"]``.

They work for tests that run under anyio's plugin, on either loop, and for tests marked ``trio`` of pytest-trio.
"""

from collections.abc import AsyncIterator

import pytest

from .._open import open_memory
from .._store import Store
from ._clocks import ManualClock

__all__ = ["manual_clock", "memory_store"]


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test advances it."""
    return ManualClock()


@pytest.fixture
async def memory_store(manual_clock: ManualClock) -> AsyncIterator[Store]:
    """An open memory store on the manual clock."""
    async with open_memory(clock=manual_clock) as store:
        yield store
