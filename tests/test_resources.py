"""What a store keeps of what has passed: nothing. The long form of this is ``python -m tests.soak``.

Jobs, names and consumers go through in laps that are all alike, so whatever is greater after the last laps than after
the first ones is a leak. On memory the bound is less than one small object for each of what has passed between them;
what a loop or a driver keeps for a while does not count as long as it is less than that.
"""

import gc
import os
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial

import anyio
import pytest

from alkstore_trio import StreamEvent
from alkstore_trio._engines import queue_table, tables
from alkstore_trio._engines.postgres import cursors
from alkstore_trio._engines.sqlite import engine, file
from alkstore_trio.testing.conformance.kit import anyio_backend
from tests import soak
from tests.engines.conftest import schema
from tests.engines.places import engine_of, until
from tests.soak import Place

__all__ = ["anyio_backend", "schema"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc"),
]

_LAPS = 8
_BETWEEN = 4  # laps between those that are compared
_BOUND = 5.0  # seconds after which nobody lets go of anything
_OBJECT = 48  # bytes of about the smallest


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(file, "_WAL_LIMIT", 2**18)  # so that a lap goes past it
    monkeypatch.setattr(soak, "WAL", 2**19)
    with ExitStack() as stack:
        if request.param == "postgres":
            dsn, schema = request.getfixturevalue("dsn"), request.getfixturevalue("schema")
            yield stack.enter_context(soak.on_postgres(dsn, schema))
        else:
            yield stack.enter_context(soak.in_sqlite() if request.param == "sqlite" else soak.in_memory())


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio keeps up to 1,000 deadlines that were called off
@pytest.mark.parametrize(
    ("lap", "n", "kept"),
    [(soak.jobs, 200, 8_000), (soak.names, 100, 6_000), (soak.consumers, 200, 4_000)],
    ids=["jobs", "names", "consumers"],
)
async def test_memory_does_not_grow_with_what_has_passed(
    lap: Callable[..., Awaitable[None]], n: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept < _BETWEEN * n * _OBJECT
    for module in (tables, queue_table):
        monkeypatch.setattr(module, "_SLACK", 0)  # which a few empty queues and stale entries are always left
    with soak.in_memory() as place:
        async with place.open() as store:
            found = await soak.laps(place, store, partial(lap, n=n), _LAPS)
    assert soak.broken(found, kept) == []


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize(("lap", "n"), [(soak.jobs, 200), (soak.names, 20), (soak.consumers, 20)])
async def test_no_descriptor_thread_task_session_row_or_log_is_kept_of_what_has_passed(
    place: Place, lap: Callable[..., Awaitable[None]], n: int
) -> None:
    async with place.open() as store:
        found = await soak.laps(place, store, partial(lap, n=n), _LAPS)
    assert soak.broken(found, 2**20) == []


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_answer_that_nobody_holds_any_more_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SAFETY_POLL", 1e6)  # a later answer would take its place
    async with place.open() as store:
        stream = store.stream("of which nothing is kept")
        await stream.publish("x")
        [event] = await stream.read_since(0, 1)
        await stream.trim_to(event.offset)
        del event

        def kept() -> bool:
            gc.collect()
            return any(type(thing) is StreamEvent and thing.stream == stream.name for thing in gc.get_objects())

        with anyio.fail_after(_BOUND):
            await until(lambda: not kept())


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_no_cursor_is_kept_of_a_queue_that_nobody_claims_from_any_more(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_LONG", 0.0)  # as if each claim had a graveyard to walk over
    monkeypatch.setattr(cursors, "_LASTS", 0.0)
    with soak.on_postgres(dsn, schema) as place:
        async with place.open() as store:
            for number in range(50):
                queue = store.queue(f"tenant {number}")
                await queue.enqueue_many([1, 2])
                assert await queue.claim("w") is not None
            assert len(engine_of(store).hub.channels) <= 1
