"""Effects in a transaction that the application holds on a connection of its own, and alone commits."""

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from alkstore_trio import (
    Closed,
    DatabaseError,
    InvalidName,
    Job,
    StopToken,
    Store,
    open_memory,
    open_sqlite,
)
from tests.engines.joining import counts, everything, reads_its_own

pytestmark = pytest.mark.anyio

_BOUND = 20.0  # seconds after which a test hangs


@pytest.fixture
async def store(path: str) -> AsyncIterator[Store]:
    async with open_sqlite(path, durability="normal") as opened:
        yield opened


@pytest.fixture
def connection(store: Store, path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("create table app(name text)")
        yield opened


async def test_effects_stand_once_the_application_commits(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    connection.execute("insert into app values ('mine')")
    joined = store.join(connection)
    everything(joined)
    assert await counts(store) == [0, 0, 0, 0]
    connection.execute("commit")
    assert await counts(store) == [1, 1, 2, 1]
    assert [event.key for event in await store.stream("s").read_since(0, 10)] == [None, "key"]


async def test_nothing_is_left_once_it_rolls_back(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    everything(store.join(connection))
    connection.execute("rollback")
    assert await counts(store) == [0, 0, 0, 0]
    assert await store.queues() == await store.streams() == []


async def test_the_transaction_reads_its_own_effects(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    joined = store.join(connection)
    reads_its_own(joined)
    connection.execute("commit")


async def test_ids_are_the_stores_own(store: Store, connection: sqlite3.Connection) -> None:
    before = await store.queue("q").enqueue("before")
    connection.execute("begin immediate")
    joined = store.join(connection)
    inside = [joined.enqueue_tx("q", number) for number in range(3)]
    connection.execute("commit")
    after = await store.queue("q").enqueue_many(range(600))
    assert len({before, *inside, *after}) == 604


async def test_a_connection_without_a_transaction_is_told_to_begin(
    store: Store, connection: sqlite3.Connection
) -> None:
    with pytest.raises(RuntimeError, match="begin"):
        store.join(connection)
    connection.execute("begin immediate")
    joined = store.join(connection)
    connection.execute("commit")
    with pytest.raises(RuntimeError, match="begin"):
        joined.enqueue_tx("q", 1)


async def test_a_connection_to_something_else_is_refused(store: Store, tmp_path: Path) -> None:
    for other in (":memory:", str(tmp_path / "other.db")):
        with closing(sqlite3.connect(other, isolation_level=None)) as connection:
            connection.execute("begin")
            with pytest.raises(ValueError, match="the store"):
                store.join(connection)
            assert connection.in_transaction
    with pytest.raises(TypeError, match=r"sqlite3\.Connection"):
        store.join(object())  # type: ignore[call-overload]  # which is what is tested


async def test_a_file_that_was_moved_is_an_error_that_says_so(
    store: Store, connection: sqlite3.Connection, path: str
) -> None:
    connection.execute("begin immediate")
    os.rename(path, f"{path} moved")
    try:
        with pytest.raises(DatabaseError, match="moved") as caught:
            store.join(connection)
    finally:
        os.rename(f"{path} moved", path)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    store.join(connection).enqueue_tx("q", 1)


async def test_memory_has_nothing_to_join() -> None:
    async with open_memory() as store:
        with pytest.raises(RuntimeError, match="begin_tx"):
            store.join(object())  # type: ignore[call-overload]  # which is what is tested


async def test_an_argument_error_leaves_the_transaction_as_it_was(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    joined = store.join(connection)
    first = joined.enqueue_tx("q", 1)
    with pytest.raises(InvalidName):
        joined.enqueue_tx("", 2)
    assert joined.enqueue_tx("q", 3) == first + 1
    connection.execute("commit")
    assert [job.payload for job in await store.queue("q").jobs()] == [1, 3]


async def test_what_the_application_has_set_on_its_connection_leads_nobody_astray(
    store: Store, connection: sqlite3.Connection
) -> None:
    connection.row_factory = lambda cursor, row: {"row": row}
    connection.text_factory = bytes
    connection.execute("begin immediate")
    joined = store.join(connection)
    job_id = joined.enqueue_tx("q", "job")
    job = joined.get_job_tx("q", job_id)
    assert job is not None
    assert job.payload == "job"
    assert connection.text_factory is bytes
    assert connection.execute("select 'x'").fetchone() == {"row": (b"x",)}
    connection.execute("commit")


async def test_a_legacy_transaction_of_the_driver_is_joined_too(store: Store, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table app(name text)")
        connection.execute("insert into app values ('opens a transaction')")
        store.join(connection).enqueue_tx("q", 1)
        connection.rollback()
        assert await store.queues() == []
        connection.execute("insert into app values ('again')")
        store.join(connection).enqueue_tx("q", 2)
        connection.commit()
    assert await store.queues() == ["q"]


async def test_each_effect_is_all_or_nothing(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    joined = store.join(connection)
    joined.publish_tx("s", "before")
    # The events cannot be written, after the stream's counter was.
    connection.execute(
        "create temp trigger broken before insert on alkstore_events begin select raise(abort, 'broken'); end"
    )
    with pytest.raises(DatabaseError, match="broken"):
        joined.publish_tx("s", "lost")
    connection.execute("drop trigger broken")
    assert joined.publish_tx("s", "after") == 2
    connection.execute("commit")
    assert [event.payload for event in await store.stream("s").read_since(0, 10)] == ["before", "after"]


async def test_a_stale_snapshot_is_retryable(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin")
    connection.execute("select * from app").fetchall()
    await store.queue("q").enqueue("meanwhile")
    joined = store.join(connection)
    with pytest.raises(DatabaseError) as caught:
        joined.enqueue_tx("q", "on an old snapshot")
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    connection.execute("rollback")
    connection.execute("begin immediate")
    store.join(connection).enqueue_tx("q", "anew")
    connection.execute("commit")
    assert (await store.queue("q").statistics()).pending == 2


async def test_a_connection_of_another_thread_is_misuse(store: Store, path: str) -> None:
    opened: list[sqlite3.Connection] = []
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            opened.append(connection)
            ready.set()
            done.wait(_BOUND)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        await anyio.to_thread.run_sync(ready.wait)
        with pytest.raises(RuntimeError, match="thread"):
            store.join(opened[0])
    finally:
        done.set()
        await anyio.to_thread.run_sync(thread.join)


async def test_a_connection_that_was_closed_is_misuse(store: Store, path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        joined = store.join(connection)
    with pytest.raises(RuntimeError, match="closed"):
        joined.enqueue_tx("q", 1)


async def test_wakes_are_numbered_in_the_order_in_which_they_are_committed(
    store: Store, connection: sqlite3.Connection, path: str
) -> None:
    """A notify writes nothing before its wake: it takes the lock all the same, or waits for whoever has it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        other.execute("begin")
        waiting = store.join(other)
        connection.execute("begin immediate")
        first = store.join(connection)
        with pytest.raises(DatabaseError):
            waiting.notify_tx("c")
        first.notify_tx("d")
        connection.execute("commit")
        async with store.listen("c") as wakes:
            waiting.notify_tx("c")
            other.execute("commit")
            waiting.wake()
            with anyio.fail_after(_BOUND):
                await wakes.receive()


async def test_it_works_in_a_thread_without_a_loop(store: Store, path: str) -> None:
    def work() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            joined = store.join(connection)
            everything(joined)
            connection.execute("commit")
            joined.wake()

    async with store.listen("c") as wakes:
        await anyio.to_thread.run_sync(work)
        with anyio.fail_after(_BOUND):
            await wakes.receive()
    assert await counts(store) == [1, 1, 2, 1]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
async def test_a_worker_a_subscriber_and_a_listener_are_woken_after_the_commit(
    store: Store, connection: sqlite3.Connection, path: str, told: bool
) -> None:
    stop = StopToken()

    async def handler(job: Job) -> None:
        stop.cancel()

    async with (
        open_sqlite(path, durability="normal") as other,
        other.listen("c") as wakes,
        other.stream("s").subscribe("consumer") as events,
        anyio.create_task_group() as tasks,
    ):
        worker: Callable[..., Any] = other.queue("q").run_worker
        tasks.start_soon(lambda: worker(handler, stop=stop))
        connection.execute("begin immediate")
        joined = store.join(connection)
        joined.enqueue_tx("q", "job")
        joined.publish_tx("s", "event")
        joined.notify_tx("c")
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        connection.execute("commit")
        if told:
            joined.wake()
        with anyio.fail_after(_BOUND):
            await wakes.receive()
            assert (await events.receive()).payload == "event"
            await stop.wait()


async def test_a_closed_store_joins_nothing(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    joined = store.join(connection)
    await store.aclose()
    with pytest.raises(Closed):
        joined.enqueue_tx("q", 1)
    with pytest.raises(Closed):
        store.join(connection)
