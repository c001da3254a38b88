"""Effects in a transaction that the application holds on a psycopg connection of its own, and alone commits.

SQLAlchemy is no dependency of the tests; its driver connection is the very `psycopg.Connection` that is tested here.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

from alkstore_trio import (
    Closed,
    DatabaseError,
    InvalidName,
    Job,
    StopToken,
    Store,
    SyncJoinedTx,
    open_postgres,
)
from alkstore_trio._engines.postgres import joined as joining
from alkstore_trio.testing.conformance.kit import anyio_backend
from tests.engines.joining import counts, everything, reads_its_own
from tests.engines.places import engine_of, until
from tests.servers import Server

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

Connection = psycopg.Connection[Any]

_BOUND = 20.0  # seconds after which a test hangs
_MINE = "store"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server."""
    with Server() as server:
        yield server


@pytest.fixture
async def store(server: Server, anyio_backend: str) -> AsyncIterator[Store]:
    """A fresh store."""
    async with open_postgres(server.dsn, schema=_MINE) as opened:
        yield opened
    with connected(server, autocommit=True) as connection:
        connection.execute(f"drop schema {_MINE} cascade; drop table if exists app")


def connected(server: Server, **options: Any) -> Connection:
    return psycopg.Connection.connect(server.dsn, **options)


@pytest.fixture
def connection(store: Store, server: Server) -> Iterator[Connection]:
    """One of the application's, as psycopg makes it: a transaction begins with the first statement."""
    with connected(server) as opened:
        opened.execute("create table app(name text)")
        opened.commit()
        yield opened
        if not opened.closed:
            opened.rollback()


# The end of a transaction


async def test_effects_stand_once_the_application_commits(store: Store, connection: Connection) -> None:
    connection.execute("insert into app values ('mine')")
    everything(store.join(connection))
    assert await counts(store) == [0, 0, 0, 0]
    connection.commit()
    assert await counts(store) == [1, 1, 2, 1]
    assert [event.key for event in await store.stream("s").read_since(0, 10)] == [None, "key"]


async def test_nothing_is_left_once_it_rolls_back(store: Store, connection: Connection) -> None:
    connection.execute("insert into app values ('mine')")
    everything(store.join(connection))
    connection.rollback()
    assert await counts(store) == [0, 0, 0, 0]
    assert await store.queues() == await store.streams() == []


async def test_the_transaction_reads_its_own_effects(store: Store, connection: Connection) -> None:
    connection.execute("select 1")
    joined = store.join(connection)
    job = reads_its_own(joined)
    assert job.run_at == job.created_at + 60
    connection.commit()
    assert await store.queue("q").get_job(job.id) == job


async def test_a_savepoint_takes_back_what_came_after_it(store: Store, connection: Connection) -> None:
    with connection.transaction():
        joined = store.join(connection)
        joined.enqueue_tx("q", "kept")
        with connection.transaction(force_rollback=True):
            joined.enqueue_tx("q", "lost")
            store.join(connection).enqueue_tx("q", "lost, too")
        joined.enqueue_tx("q", "kept, too")
    assert [job.payload for job in await store.queue("q").jobs()] == ["kept", "kept, too"]


async def test_ids_are_the_stores_own(store: Store, connection: Connection) -> None:
    before = await store.queue("q").enqueue("before")
    connection.execute("select 1")
    joined = store.join(connection)
    inside = [joined.enqueue_tx("q", number) for number in range(3)]
    after = await store.queue("q").enqueue_many(range(600))
    connection.commit()
    assert len({before, *inside, *after}) == 604
    assert len(await store.queue("q").jobs(limit=1_000)) == 604


# What cannot be joined


async def test_a_connection_without_a_transaction_is_told_to_begin(store: Store, connection: Connection) -> None:
    with pytest.raises(RuntimeError, match="begin"):
        store.join(connection)
    connection.execute("select 1")
    joined = store.join(connection)
    connection.commit()
    with pytest.raises(RuntimeError, match="begin"):
        joined.enqueue_tx("q", 1)
    with pytest.raises(RuntimeError, match="begin"):
        joined.get_offset_tx("s", "c")


async def test_a_transaction_that_has_failed_can_only_be_rolled_back(store: Store, connection: Connection) -> None:
    connection.execute("select 1")
    joined = store.join(connection)
    with pytest.raises(psycopg.Error):
        connection.execute("select 1 / 0")
    with pytest.raises(RuntimeError, match="rolled back"):
        joined.enqueue_tx("q", 1)
    with pytest.raises(RuntimeError, match="rolled back"):
        store.join(connection)


@pytest.mark.parametrize("other", ["database", "schema", "store of the same name"])
async def test_a_connection_to_something_else_is_refused(
    store: Store, server: Server, connection: Connection, other: str
) -> None:
    with connected(server, autocommit=True) as administrator:
        administrator.execute("create database elsewhere")
        try:
            dsn = server.dsn.replace("/postgres?", "/elsewhere?")
            if other == "store of the same name":
                async with open_postgres(dsn, schema=_MINE):
                    pass
            if other == "schema":
                # There, too, the store has its schema to find: it is this connection's whole database that is another.
                async with open_postgres(dsn, schema="another"):
                    pass
            with psycopg.connect(dsn) as elsewhere:
                elsewhere.execute("select 1")
                # fails, but for the same name: `select store from "store".schema` is an undefined table there, so that
                # it is a DatabaseError, and the application's transaction is spoiled (sqlops.py `check_store`).
                with pytest.raises(ValueError, match="another database"):
                    store.join(elsewhere)
                assert elsewhere.execute("select 1").fetchone() == (1,)
                elsewhere.rollback()
        finally:
            administrator.execute("drop database elsewhere")
    with pytest.raises(TypeError, match="psycopg"):
        store.join(object())  # type: ignore[call-overload]  # which is what is tested


async def test_a_connection_that_was_closed_is_misuse(store: Store, server: Server) -> None:
    with connected(server) as connection:
        connection.execute("select 1")
        joined = store.join(connection)
    with pytest.raises(RuntimeError, match="closed"):
        joined.enqueue_tx("q", 1)
    with pytest.raises(RuntimeError, match="closed"):
        store.join(connection)


async def test_a_connection_that_was_lost_is_the_databases_fault(
    store: Store, server: Server, connection: Connection
) -> None:
    connection.execute("select 1")
    joined = store.join(connection)
    with connected(server, autocommit=True) as administrator:
        administrator.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
    with pytest.raises(DatabaseError) as caught:
        joined.enqueue_tx("q", 1)
    assert caught.value.transient
    assert isinstance(caught.value.__cause__, psycopg.Error)
    with pytest.raises(RuntimeError, match="closed"):
        joined.enqueue_tx("q", 1)


async def test_a_closed_store_joins_nothing(store: Store, connection: Connection) -> None:
    connection.execute("select 1")
    joined = store.join(connection)
    await store.aclose()
    with pytest.raises(Closed):
        joined.enqueue_tx("q", 1)
    with pytest.raises(Closed):
        store.join(connection)


# Errors


async def test_an_argument_error_leaves_the_transaction_as_it_was(store: Store, connection: Connection) -> None:
    connection.execute("select 1")
    joined = store.join(connection)
    first = joined.enqueue_tx("q", 1)
    with pytest.raises(InvalidName):
        joined.enqueue_tx("", 2)
    assert joined.enqueue_tx("q", 3) == first + 1
    connection.commit()
    assert [job.payload for job in await store.queue("q").jobs()] == [1, 3]


async def test_a_stale_snapshot_is_retryable(store: Store, connection: Connection) -> None:
    await store.stream("s").publish("before")
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("select * from app")
    await store.stream("s").publish("meanwhile")
    joined = store.join(connection)
    assert len(joined.read_since_tx("s", 0, 10)) == 1
    with pytest.raises(DatabaseError) as caught:
        joined.publish_tx("s", "on an old snapshot")
    assert caught.value.retryable
    assert not caught.value.transient
    assert isinstance(caught.value.__cause__, psycopg.Error)
    connection.rollback()
    connection.execute("select * from app")
    store.join(connection).publish_tx("s", "anew")
    connection.commit()
    assert len(await store.stream("s").read_since(0, 10)) == 3


async def test_a_statement_that_fails_is_an_error_of_ours(store: Store, connection: Connection) -> None:
    connection.execute("set transaction read only")
    joined = store.join(connection)
    assert joined.get_offset_tx("s", "c") == 0
    with pytest.raises(DatabaseError, match="only reads") as caught:
        joined.publish_tx("s", 1)
    assert isinstance(caught.value.__cause__, psycopg.Error)
    with pytest.raises(RuntimeError, match="rolled back"):
        joined.publish_tx("s", 1)


# What the application has set


class _Shouting(TextLoader):
    def load(self, data: Any) -> Any:
        return str(super().load(data)).upper()


def _cursor_that_is_not_ours(connection: Connection) -> None:
    connection.cursor_factory = psycopg.ClientCursor


def _factory_that_is_not_ours(connection: Connection) -> None:
    connection.row_factory = dict_row


def _adapters_that_are_not_ours(connection: Connection) -> None:
    connection.adapters.register_loader("text", _Shouting)
    connection.adapters.register_loader("int8", _Shouting)
    connection.adapters.register_loader("float8", _Shouting)
    set_json_loads(lambda data: "?", connection)


def _prepares(connection: Connection) -> None:
    connection.prepare_threshold = 0


def _never_prepares(connection: Connection) -> None:
    connection.prepare_threshold = None


def _says(setting: str) -> Callable[[Connection], None]:
    def say(connection: Connection) -> None:
        connection.execute(f"set {setting}")
        connection.commit()

    return say


_SETTINGS: dict[str, Callable[[Connection], None]] = {
    "cursor_factory": _cursor_that_is_not_ours,
    "row_factory": _factory_that_is_not_ours,
    "adapters": _adapters_that_are_not_ours,
    "prepares at once": _prepares,
    "never prepares": _never_prepares,
} | {
    setting: _says(setting)
    for setting in (
        "extra_float_digits = 0",
        "extra_float_digits = -15",
        "standard_conforming_strings = off",
        "search_path = pg_temp",
        "timezone = 'Asia/Kathmandu'",
        "datestyle = 'German, DMY'",
        "bytea_output = 'escape'",
        "plan_cache_mode = force_generic_plan",
        "default_transaction_isolation = 'serializable'",
    )
}


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("how", _SETTINGS)
async def test_what_the_application_has_set_on_its_connection_leads_nobody_astray(
    store: Store, connection: Connection, how: str
) -> None:
    text = "job \u00e4 \u20ac \U0001f600 \\ ' \" % $1 :now"
    _SETTINGS[how](connection)
    connection.execute("select 1")
    joined = store.join(connection)
    job_id = offset = 0
    for _ in range(7):  # past psycopg's own threshold
        job_id = joined.enqueue_tx("q", text, delay=0.1)
        offset = joined.publish_tx("s", text)
        joined.publish_with_key_tx("s", text, text)
        joined.save_offset_tx("s", text, offset)
        joined.notify_tx(text)
    job = joined.get_job_tx("q", job_id)
    events = joined.read_since_tx("s", 0, 100)
    assert job is not None
    assert job.payload == text
    assert [event.payload for event in events] == [text] * 14
    assert [event.key for event in events] == [None, text] * 7
    assert joined.get_offset_tx("s", text) == offset
    connection.commit()
    assert job == await store.queue("q").get_job(job_id)
    assert events == await store.stream("s").read_since(0, 100)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
async def test_a_connection_in_another_encoding_is_refused_or_does_as_any_other(
    store: Store, connection: Connection, encoding: str
) -> None:
    connection.execute("select 1")
    connection.execute(f"set client_encoding = '{encoding}'")
    text, refused = "\u00e4 \u20ac \U0001f600", ""
    try:
        joined = store.join(connection)
        offset = joined.publish_tx("s", text)
        assert [event.payload for event in joined.read_since_tx("s", offset - 1, 1)] == [text]
    except (RuntimeError, ValueError) as refusal:
        refused = str(refusal)
    assert not refused or "client_encoding" in refused
    assert connection.execute("select 1").fetchone() is not None


async def test_a_connection_that_commits_by_itself_is_joined_within_a_block(store: Store, server: Server) -> None:
    with connected(server, autocommit=True) as connection:
        connection.execute("select 1")
        with pytest.raises(RuntimeError, match="begin"):
            store.join(connection)
        with connection.transaction():
            store.join(connection).enqueue_tx("q", 1)
        connection.execute("begin")
        store.join(connection).enqueue_tx("q", 2)
        connection.execute("commit")
    assert [job.payload for job in await store.queue("q").jobs()] == [1, 2]


async def test_its_settings_are_the_applications_still(store: Store, connection: Connection) -> None:
    connection.row_factory = dict_row
    ours = "select current_setting('lock_timeout') as a, current_setting('plan_cache_mode') as b"
    before = connection.execute(ours).fetchone()
    everything(store.join(connection))
    assert connection.execute(ours).fetchone() == before
    connection.commit()
    assert connection.execute(ours).fetchone() == before


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_connection_in_a_pipeline_is_refused_or_joined(store: Store, connection: Connection) -> None:
    refused = ""
    with connection.pipeline():
        connection.execute("select 1").fetchall()
        try:
            assert store.join(connection).publish_tx("s", 1) == 1
        except RuntimeError as refusal:
            refused = str(refusal)
    assert not refused or "pipeline" in refused
    connection.commit()
    assert len(await store.stream("s").read_since(0, 10)) == (not refused)


# Wakes


@asynccontextmanager
async def listening(store: Store, server: Server, other: bool) -> AsyncIterator[Store]:
    """The store itself, or another one on the same schema."""
    if other:
        async with open_postgres(server.dsn, schema=_MINE) as another:
            yield another
    else:
        yield store


@pytest.mark.parametrize("other", [False, True], ids=["this store", "another store"])
async def test_a_worker_a_subscriber_and_a_listener_are_woken_by_the_commit(
    store: Store, server: Server, connection: Connection, other: bool
) -> None:
    stop = StopToken()

    async def handler(job: Job) -> None:
        stop.cancel()

    async with (
        listening(store, server, other) as ears,
        ears.listen("c") as wakes,
        ears.stream("s").subscribe("consumer") as events,
        anyio.create_task_group() as tasks,
    ):
        worker: Callable[..., Any] = ears.queue("q").run_worker
        tasks.start_soon(lambda: worker(handler, stop=stop))
        connection.execute("select 1")
        joined = store.join(connection)
        joined.enqueue_tx("q", "job")
        joined.publish_tx("s", "event")
        joined.notify_tx("c")
        await store.notify("marker")  # a wake of an earlier commit comes before one of a later
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        connection.commit()
        with anyio.fail_after(_BOUND):
            assert (await wakes.receive()).channel == "c"
            assert (await events.receive()).payload == "event"
            await stop.wait()


async def test_nobody_is_woken_before_the_commit_nor_by_a_rollback(
    store: Store, server: Server, connection: Connection
) -> None:
    async with (
        open_postgres(server.dsn, schema=_MINE) as other,
        store.listen("c") as wakes,
        store.listen("later") as markers,
    ):
        connection.execute("select 1")
        store.join(connection).notify_tx("c")
        # What another host notifies travels the same way as the joined notify would: once this is here, so were that.
        await other.notify("later")
        with anyio.fail_after(_BOUND):
            await markers.receive()
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        connection.rollback()
        await other.notify("later")
        with anyio.fail_after(_BOUND):
            await markers.receive()
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        connection.execute("select 1")
        store.join(connection).notify_tx("c")
        connection.commit()
        with anyio.fail_after(_BOUND):
            await wakes.receive()


# Elsewhere


async def test_it_works_in_a_thread_without_a_loop(store: Store, server: Server) -> None:
    def work() -> None:
        with connected(server) as connection:
            connection.execute("select 1")
            joined = store.join(connection)
            everything(joined)
            connection.commit()
            joined.wake()

    async with store.listen("c") as wakes:
        await anyio.to_thread.run_sync(work)
        with anyio.fail_after(_BOUND):
            await wakes.receive()
    assert await counts(store) == [1, 1, 2, 1]


async def test_two_threads_have_a_transaction_each(store: Store, server: Server) -> None:
    barrier = threading.Barrier(2)

    def work(name: str) -> None:
        with connected(server) as connection:
            connection.execute("select 1")
            joined = store.join(connection)
            for _ in range(20):
                joined.enqueue_tx("q", name)
            joined.publish_tx(name, name)
            barrier.wait(_BOUND)
            connection.commit()

    async with anyio.create_task_group() as tasks:
        for name in ("a", "b"):
            tasks.start_soon(anyio.to_thread.run_sync, work, name)
    assert (await counts(store))[0] == 40


async def test_a_stream_that_it_holds_is_waited_for_in_bounded_time(server: Server, connection: Connection) -> None:
    connection.execute("select 1")
    async with open_postgres(server.dsn, schema=_MINE, lock_timeout=0.05) as store:
        store.join(connection).publish_tx("s", "held")
        with pytest.raises(DatabaseError, match="another connection") as caught:
            await store.stream("s").publish("waits")
        assert caught.value.transient
        connection.commit()
        assert await store.stream("s").publish("on") == 2


# What it waits for

_WRITES: dict[str, Callable[[SyncJoinedTx], object]] = {
    "publish": lambda joined: joined.publish_tx("s", "waits"),
    "save": lambda joined: joined.save_offset_tx("s", "c", 2),
}
writes = pytest.mark.parametrize("write", _WRITES)


@asynccontextmanager
async def another_task_holds(store: Store, stream: str = "s") -> AsyncIterator[None]:
    """An open transaction of a task, called ``the holder``, that has written what those writes wait for."""
    held, over = anyio.Event(), anyio.Event()

    async def holder() -> None:
        async with store.begin_tx() as tx:
            await tx.publish_tx(stream, "held")
            await tx.save_offset_tx(stream, "c", 1)
            held.set()
            await over.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holder, name="the holder")
        await held.wait()
        yield
        over.set()


@writes
async def test_a_joined_write_in_a_thread_waits_in_bounded_time_and_is_told_for_whom(
    server: Server, connection: Connection, write: str
) -> None:
    connection.execute("set statement_timeout = '15s'; set lock_timeout = 0")
    async with open_postgres(server.dsn, schema=_MINE, lock_timeout=0.05) as store, another_task_holds(store):
        joined = store.join(connection)
        with anyio.fail_after(_BOUND), pytest.raises(DatabaseError, match=r"'the holder'.* 0\.05 s") as caught:
            await anyio.to_thread.run_sync(_WRITES[write], joined)
        assert caught.value.transient
        assert isinstance(caught.value.__cause__, psycopg.errors.LockNotAvailable)
        with pytest.raises(RuntimeError, match="rolled back"):
            joined.enqueue_tx("q", 1)


@writes
async def test_a_joined_write_that_would_keep_the_loop_from_the_transaction_it_waits_for_is_refused(
    store: Store, connection: Connection, write: str
) -> None:
    connection.execute("set statement_timeout = '5s'")
    async with another_task_holds(store):
        joined = store.join(connection)
        with pytest.raises(RuntimeError, match="'the holder'"):
            _WRITES[write](joined)
        joined.enqueue_tx("q", "goes on")
        assert joined.save_offset_tx("s", "c", 0) is False
    _WRITES[write](joined)


@writes
async def test_a_joined_write_that_another_connection_keeps_waiting_fails_as_transient_in_bounded_time(
    server: Server, connection: Connection, write: str
) -> None:
    connection.execute("set statement_timeout = '15s'")
    async with open_postgres(server.dsn, schema=_MINE, lock_timeout=0.05) as store:
        with connected(server) as other:
            other.execute("select 1")
            _WRITES[write](store.join(other))
            with pytest.raises(DatabaseError, match="another connection") as caught:
                _WRITES[write](store.join(connection))
            assert caught.value.transient


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_bound_of_the_applications_own_that_is_less_is_kept_to(store: Store, connection: Connection) -> None:
    connection.execute("set statement_timeout = '5s'; set lock_timeout = '20ms'")
    async with another_task_holds(store):
        joined = store.join(connection)
        with pytest.raises(DatabaseError, match=r"'the holder'.* 20ms"):
            await anyio.to_thread.run_sync(_WRITES["publish"], joined)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("own", ["0", "1ms", "7s", "3min", "2147483647ms"])
@pytest.mark.parametrize("how", ["set", "set local"])
async def test_the_bound_of_the_applications_own_waits_is_what_it_was(
    store: Store, connection: Connection, own: str, how: str
) -> None:
    def bound() -> Any:
        return connection.execute(
            "select setting, current_setting('lock_timeout') from pg_settings where name = 'lock_timeout'"
        ).fetchone()

    default = bound()
    connection.execute(f"{how} lock_timeout = '{own}'")
    before = bound()
    joined = store.join(connection)
    for write in _WRITES.values():
        write(joined)
        assert bound() == before
    with pytest.raises(InvalidName):
        joined.publish_tx("", 1)
    async with another_task_holds(store, "another"):
        with connection.transaction():
            connection.execute("set local lock_timeout = '9ms'")
            with pytest.raises(DatabaseError), connection.transaction():
                await anyio.to_thread.run_sync(joined.publish_tx, "another", 1)
            connection.execute("do $$ begin assert current_setting('lock_timeout') = '9ms'; end $$")
            joined.publish_tx("s", 1)
            connection.execute("do $$ begin assert current_setting('lock_timeout') = '9ms'; end $$")
            connection.execute(f"set local lock_timeout = '{own}'")
        assert bound() == before
    connection.commit()
    assert bound() == (before if how == "set" else default)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_what_waits_for_nobody_asks_nothing_of_the_bound(
    store: Store, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = psycopg.RawCursor.execute

    def told(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        asked.append(query.decode())
        return execute(cursor, query, *args, **options)

    connection.execute("select 1")
    joined = store.join(connection)
    monkeypatch.setattr(psycopg.RawCursor, "execute", told)
    joined.get_job_tx("q", joined.enqueue_tx("q", 1))
    joined.outbox_enqueue_tx("o", 1)
    joined.notify_tx("c")
    joined.save_offset_tx("s", "c", 0)
    joined.get_offset_tx("s", "c")
    joined.read_since_tx("s", 0, 1)
    joined.read_from_consumer_tx("s", "c", 1)
    assert len(asked) == 9  # each by itself, and the wakes of three
    assert not [text for text in asked if "lock_timeout" in text]
    joined.publish_tx("s", 1)
    assert len(asked) == 13


# Asynchronous connections: psycopg's own know asyncio only

asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture
async def asynchronous(store: Store, server: Server, anyio_backend: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """One of the application's."""
    async with await psycopg.AsyncConnection.connect(server.dsn) as opened:
        yield opened
        await opened.rollback()


@asyncio_only
async def test_an_asynchronous_connection_gives_coroutines(
    store: Store, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    asynchronous.row_factory = dict_row
    asynchronous.adapters.register_loader("text", _Shouting)
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    async with store.listen("c") as wakes:
        job_id = await joined.enqueue_tx("q", "job", priority=3)
        await joined.outbox_enqueue_tx("o", "message")
        offset = await joined.publish_tx("s", "event")
        assert await joined.publish_with_key_tx("s", "key", "keyed") == offset + 1
        assert await joined.save_offset_tx("s", "consumer", 1) is True
        await joined.notify_tx("c")
        job = await joined.get_job_tx("q", job_id)
        assert job is not None
        assert job.payload == "job"
        assert await joined.get_offset_tx("s", "consumer") == 1
        assert [event.key for event in await joined.read_since_tx("s", 0, 10)] == [None, "key"]
        assert [event.offset for event in await joined.read_from_consumer_tx("s", "consumer", 10)] == [2]
        assert await counts(store) == [0, 0, 0, 0]
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        await asynchronous.commit()
        with anyio.fail_after(_BOUND):
            await wakes.receive()
    assert await counts(store) == [1, 1, 2, 1]
    with pytest.raises(RuntimeError, match="begin"):
        await joined.enqueue_tx("q", 1)


@asyncio_only
async def test_an_asynchronous_connection_without_a_transaction_is_told_to_begin(
    store: Store, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    with pytest.raises(RuntimeError, match="begin"):
        store.join(asynchronous)
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    with pytest.raises(psycopg.Error):
        await asynchronous.execute("select 1 / 0")
    with pytest.raises(RuntimeError, match="rolled back"):
        await joined.enqueue_tx("q", 1)


@asyncio_only
async def test_an_asynchronous_connection_to_something_else_is_refused_at_its_first_use(
    store: Store, server: Server, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    async with await psycopg.AsyncConnection.connect(server.dsn.replace("/postgres?", "/template1?")) as elsewhere:
        await elsewhere.execute("select 1")
        joined = store.join(elsewhere)
        with pytest.raises(ValueError, match="another database"):
            await joined.enqueue_tx("q", 1)
        with pytest.raises(ValueError, match="another database"):
            await joined.notify_tx("c")
        assert await (await elsewhere.execute("select 1")).fetchone() == (1,)


@asyncio_only
async def test_a_stale_snapshot_of_an_asynchronous_connection_is_retryable(
    store: Store, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    await store.stream("s").save_offset("c", 1)
    await asynchronous.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    assert await joined.get_offset_tx("s", "c") == 1
    await store.stream("s").save_offset("c", 2)
    with pytest.raises(DatabaseError) as caught:
        await joined.save_offset_tx("s", "c", 3)
    assert caught.value.retryable


@asyncio_only
async def test_a_cancelled_effect_of_an_asynchronous_connection_leaves_none(
    store: Store, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await joined.enqueue_tx("q", "never")
    assert scope.cancelled_caught
    await joined.enqueue_tx("q", "once")
    await asynchronous.commit()
    assert [job.payload for job in await store.queue("q").jobs()] == ["once"]


# Cancelled: whole or not at all, and the application's connection is its own still

_Asynchronous = psycopg.AsyncConnection[Any]


async def _by_a_scope(verb: Callable[[], Awaitable[object]], interrupt: list[Callable[[], object]]) -> bool:
    with anyio.CancelScope() as scope:
        interrupt.append(scope.cancel)
        await verb()
        return False
    return True


async def _by_a_bare_cancel(verb: Callable[[], Awaitable[object]], interrupt: list[Callable[[], object]]) -> bool:
    import asyncio

    async def alone() -> None:
        await verb()

    task = asyncio.create_task(alone())
    interrupt.append(task.cancel)
    await asyncio.wait([task])
    return task.cancelled()


async def _by_a_timeout(verb: Callable[[], Awaitable[object]], interrupt: list[Callable[[], object]]) -> bool:
    import asyncio

    try:
        async with asyncio.timeout(_BOUND * 10) as timeout:
            interrupt.append(lambda: timeout.reschedule(0))
            await verb()
    except TimeoutError:
        return True
    return False


_CANCELLATIONS = {"scope": _by_a_scope, "task": _by_a_bare_cancel, "timeout": _by_a_timeout}
cancellations = pytest.mark.parametrize("how", _CANCELLATIONS)


@asyncio_only
@cancellations
@pytest.mark.parametrize("effect", ["enqueue", "publish"])
async def test_an_effect_that_is_cancelled_under_way_stands_with_its_wake_or_not_at_all(
    store: Store,
    server: Server,
    asynchronous: _Asynchronous,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    effect: str,
) -> None:
    interrupt: list[Callable[[], object]] = []
    left = 0
    wait = asynchronous.wait

    async def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            interrupt.pop()()
        return await wait(*args, **options)

    monkeypatch.setattr(asynchronous, "wait", interrupted)
    ends: list[bool] = []
    with connected(server, autocommit=True) as ears:
        ears.execute(f'listen "{engine_of(store).channel}"')
        for nth in range(1, 8):  # statements: a publish has four, and the first verb two more
            name = f"{effect} {nth}"
            await asynchronous.execute("select 1")
            joined = store.join(asynchronous)
            left = nth
            verb = partial(getattr(joined, f"{effect}_tx"), name, nth)
            cancelled = await _CANCELLATIONS[how](verb, interrupt)
            left = 0
            interrupt.clear()
            assert not asynchronous.closed
            await asynchronous.commit()
            there = bool(await store.queue(name).jobs() or await store.stream(name).read_since(0, 1))
            assert there is not cancelled
            ends.append(there)
            if there:
                [note] = ears.notifies(timeout=_BOUND, stop_after=1)
                assert name in note.payload
    assert any(ends)


@asyncio_only
@cancellations
async def test_a_write_that_waits_for_another_is_called_off_when_it_is_cancelled(
    store: Store, server: Server, connection: Connection, asynchronous: _Asynchronous, how: str
) -> None:
    connection.execute("select 1")
    store.join(connection).publish_tx("s", "held")
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    interrupt: list[Callable[[], object]] = []

    async def once_it_waits() -> None:
        await waits_for_a_lock(server, asynchronous.info.backend_pid)
        interrupt.pop()()

    with anyio.fail_after(_BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(once_it_waits)
            assert await _CANCELLATIONS[how](lambda: joined.publish_tx("s", "never"), interrupt)
    assert asynchronous.info.transaction_status == TransactionStatus.INERROR
    await asynchronous.rollback()
    connection.commit()
    await asynchronous.execute("select 1")
    await joined.publish_tx("s", "on")
    await asynchronous.commit()
    assert [event.payload for event in await store.stream("s").read_since(0, 9)] == ["held", "on"]


async def waits_for_a_lock(server: Server, pid: int) -> None:
    with connected(server, autocommit=True) as looks:
        waiting = "select 1 from pg_locks where pid = %s and not granted"
        await until(lambda: looks.execute(waiting, [pid]).fetchall())


@asyncio_only
@cancellations
async def test_an_effect_that_waits_for_the_connection_is_cancelled_at_once(
    store: Store, asynchronous: _Asynchronous, how: str
) -> None:
    await asynchronous.execute("select 1")
    joined = store.join(asynchronous)
    interrupt: list[Callable[[], object]] = []

    async def interrupts() -> None:
        interrupt.pop()()

    with anyio.fail_after(_BOUND):
        async with asynchronous.lock, anyio.create_task_group() as tasks:

            async def verb() -> None:
                tasks.start_soon(interrupts)
                await joined.enqueue_tx("q", "never")

            assert await _CANCELLATIONS[how](verb, interrupt)
    await joined.enqueue_tx("q", "on")
    await asynchronous.commit()
    assert [job.payload for job in await store.queue("q").jobs()] == ["on"]


@asyncio_only
async def test_a_server_that_does_not_answer_to_a_cancellation_loses_the_connection_and_nothing_stands(
    store: Store, server: Server, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(*args: Any, **options: Any) -> None:
        raise psycopg.OperationalError("nobody takes it")

    monkeypatch.setattr(joining, "_CANCEL_BOUND", 0.05)
    connection.execute("select 1")
    store.join(connection).publish_tx("s", "held")
    async with await psycopg.AsyncConnection.connect(server.dsn) as lost:
        monkeypatch.setattr(lost, "cancel_safe", unheard)
        await lost.execute("select 1")
        joined = store.join(lost)
        with anyio.fail_after(_BOUND):
            with anyio.move_on_after(0.05) as scope:
                await joined.publish_tx("s", "never")
            assert scope.cancelled_caught
        assert lost.closed
        with pytest.raises(RuntimeError, match="closed"):
            await joined.publish_tx("s", "never")
    connection.commit()
    assert [event.payload for event in await store.stream("s").read_since(0, 9)] == ["held"]


@asyncio_only
@pytest.mark.parametrize("own", ["0", "7s"])
async def test_an_asynchronous_write_waits_in_bounded_time_and_is_told_for_whom(
    server: Server, connection: Connection, asynchronous: _Asynchronous, own: str
) -> None:
    async def bound() -> Any:
        return await (await asynchronous.execute("select current_setting('lock_timeout')")).fetchone()

    async with open_postgres(server.dsn, schema=_MINE, lock_timeout=0.05) as store:
        await asynchronous.execute(f"set lock_timeout = '{own}'")
        await asynchronous.commit()
        await asynchronous.execute("select 1")
        joined = store.join(asynchronous)
        with anyio.fail_after(_BOUND):
            async with another_task_holds(store):
                with pytest.raises(DatabaseError, match="'the holder'") as caught:
                    await joined.publish_tx("s", "waits")
                assert caught.value.transient
            await asynchronous.rollback()
            assert await bound() == (own,)
            connection.execute("select 1")
            store.join(connection).save_offset_tx("s", "c", 1)
            with pytest.raises(
                DatabaseError, match=f"another connection, most likely pid {connection.info.backend_pid}"
            ):
                await joined.save_offset_tx("s", "c", 2)
            await asynchronous.rollback()
            connection.rollback()
        await asynchronous.execute("set local lock_timeout = '3s'")
        await joined.publish_tx("s", "on")
        assert await bound() == ("3s",)
        await asynchronous.commit()
        assert await bound() == (own,)
