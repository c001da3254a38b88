"""The connection and its pool: what a cancelled statement leaves behind, how both end, what they ask of psycopg."""

import random
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from psycopg import waiting

from alkstore_trio._engines.postgres import connection as module
from alkstore_trio._engines.postgres import failures
from alkstore_trio._engines.postgres.connection import AsyncAnyioConnection
from alkstore_trio._engines.postgres.failures import NotConnected, failure, redacted
from alkstore_trio._engines.postgres.pool import Pool, Use
from alkstore_trio._errors import Closed
from tests.proxy import proxy
from tests.servers import Server

pytestmark = pytest.mark.anyio

ROUNDS = 150  # of a race
SPREAD = 0.003  # seconds within which it is cancelled, and up to which the server takes for it


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server."""
    with Server(tcp=True) as server:
        yield server


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[AsyncAnyioConnection]:
    """A connection that ends with the block."""
    connection = await AsyncAnyioConnection.connect(dsn)
    try:
        yield connection
    finally:
        connection.abort()


@pytest.fixture
async def connection(server: Server, anyio_backend: str) -> AsyncIterator[AsyncAnyioConnection]:
    """A connection."""
    async with connected(server.dsn) as connection:
        yield connection


@pytest.fixture
async def other(server: Server, anyio_backend: str) -> AsyncIterator[AsyncAnyioConnection]:
    """Another one."""
    async with connected(server.dsn) as connection:
        yield connection


async def runs(connection: AsyncAnyioConnection, other: AsyncAnyioConnection) -> None:
    """Wait until the server is at a statement of the connection's that waits, past its being prepared."""
    text = "select 1 from pg_stat_activity where pid = $1::int4 and wait_event_type in ('Lock', 'Timeout')"
    while not await other.run(text, [connection.pgconn.backend_pid]):
        pass


async def gone(other: AsyncAnyioConnection, pid: int) -> None:
    """Wait until the server has ended the session of a connection."""
    while await other.run("select 1 from pg_stat_activity where pid = $1::int4", [pid]):
        pass


# Statements


async def test_values_come_back_as_they_went(connection: AsyncAnyioConnection) -> None:
    values = {
        "int8": 2**63 - 1,
        "int2": -1,
        "float8": 0.1,
        "float4": 3,
        "text": "Grüße",
        "bool": True,
        "bytea": b"\0x",
        "varchar": None,
        "int8[]": [1, None, -(2**63)],
        "int4[]": [],
        "text[]": ["a", None, ""],
        "float8[]": [1.5, 2],
        "bool[]": [False, None],
        "bytea[]": [b"", b"\0"],
        "numeric": "1.5",  # what has no encoder travels as text
    }
    casts = ", ".join(f"${index}::{kind}" for index, kind in enumerate(values, 1))
    [row] = await connection.run(f"select {casts}", list(values.values()))
    assert row[:-1] == tuple(values.values())[:-1]
    assert float(row[-1]) == 1.5


async def test_a_statement_has_one_plan_whatever_it_is_given(connection: AsyncAnyioConnection) -> None:
    for params in ([None, 2, None], [1, 1.5, "x"], [2**40, None, ""]):
        [row] = await connection.run("select $1::int8, $2::float8, $3::text", params)
        assert list(row) == params
    assert await connection.run(
        "select parameter_types::text[] from pg_prepared_statements where statement like 'select $1:%'"
    ) == [(["bigint", "double precision", "text"],)]


@pytest.mark.parametrize(
    ("kind", "value"), [("text", 1), ("int8", "1"), ("int8", 1.5), ("int8", 2**63), ("text", "\ud800")]
)
async def test_what_a_type_cannot_carry_is_not_sent(connection: AsyncAnyioConnection, kind: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        await connection.run(f"select $1::{kind}", [value])
    with pytest.raises((TypeError, ValueError)):
        await connection.run(f"select $1::{kind}[]", [[value]])
    assert connection.usable
    assert await connection.run("select 1") == [(1,)]


async def test_a_statement_that_gives_rows_gives_those_it_touched_and_another_none(
    connection: AsyncAnyioConnection,
) -> None:
    await connection.run("create temp table t(a int8)")
    assert len(await connection.run("insert into t select unnest($1::int8[]) returning a", [[1, 2, 3]])) == 3
    assert len(await connection.run("delete from t where a > $1::int8 returning a", [1])) == 2
    assert await connection.run("truncate t") == []


async def test_the_adapters_of_one_side_are_nothing_to_the_other(connection: AsyncAnyioConnection) -> None:
    class Loud(psycopg.adapt.Loader):
        def load(self, data: Any) -> str:
            return f"{bytes(data).decode()}!"

    connection.adapters.register_loader("int8", Loud)
    assert await connection.execute_own("select 5::int8, %(a)s", {"a": 1}) == [("5!", 1)]
    assert await connection.run("select 5::int8") == [(5,)]
    assert await connection.execute_own("select pg_typeof(%s)::text", [1]) == [("smallint",)]


@pytest.mark.parametrize("forget", ["discard all", "deallocate all", "do $$ begin execute 'deallocate all'; end $$"])
async def test_what_the_server_has_forgotten_is_prepared_again(connection: AsyncAnyioConnection, forget: str) -> None:
    assert await connection.run("select $1::int8", [1]) == [(1,)]
    await connection.execute_own(forget)
    assert await connection.run("select $1::int8", [2]) == [(2,)]


async def test_rows_may_change_their_types(connection: AsyncAnyioConnection) -> None:
    await connection.run_all("create temp table t(a int8); insert into t values (1)")
    assert await connection.run("select * from t") == [(1,)]
    await connection.execute_own("alter table t alter a type text")
    assert await connection.run("select * from t") == [("1",)]


async def test_an_error_of_the_servers_leaves_the_connection_usable(connection: AsyncAnyioConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await connection.run("select 1 / $1::int8", [0])
    with pytest.raises(psycopg.errors.SyntaxError):
        await connection.run("selec")
    assert connection.usable
    await connection.run("begin")
    assert not connection.usable
    with pytest.raises(psycopg.errors.DivisionByZero):
        await connection.run("select 1 / $1::int8", [0])
    await connection.run("rollback")
    assert connection.usable
    assert await connection.run("select 1 / $1::int8", [1]) == [(1,)]


async def test_thirty_megabytes_there_and_back_let_others_run(connection: AsyncAnyioConnection) -> None:
    text, turns = "x" * 30_000_000, 0

    async def count() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        assert await connection.run("select $1::text", [text]) == [(text,)]
        tasks.cancel_scope.cancel()
    assert turns > 2


async def test_tasks_that_share_a_connection_take_turns(connection: AsyncAnyioConnection) -> None:
    async def ask(number: int) -> None:
        assert await connection.run("select $1::int8", [number]) == [(number,)]

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(ask, number)


# Cancellation


async def check_race(connection: AsyncAnyioConnection, insert: str, started: Any) -> None:
    """Each insert either returned and is there, or was cancelled and is not."""
    chance = random.Random(5)
    returned = set()
    await connection.run("create temp table t(a int8 primary key, b text)")
    for number in range(ROUNDS):
        if await started(chance.uniform(0, SPREAD), connection.run(insert, [number])):
            returned.add(number)
        assert await connection.run("select $1::int8", [number]) == [(number,)]
    assert connection.usable
    assert {number for (number,) in await connection.run("select a from t")} == returned


INSERTS = {
    "quick": "insert into t select $1::int8",
    "slow": f"insert into t select $1::int8, pg_sleep(random() * {SPREAD})::text",
}


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
async def test_an_insert_that_a_scope_cancels_is_there_if_it_returned(
    connection: AsyncAnyioConnection, insert: str
) -> None:
    async def started(seconds: float, verb: Any) -> bool:
        with anyio.move_on_after(seconds):
            await verb
            return True
        return False

    await check_race(connection, insert, started)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_insert_whose_task_is_cancelled_is_there_if_it_returned(
    connection: AsyncAnyioConnection, insert: str, times: int
) -> None:
    import asyncio

    async def started(seconds: float, verb: Any) -> bool:
        returned = False

        async def work() -> None:
            nonlocal returned
            await verb
            returned = True
            await checkpoint()

        task = asyncio.create_task(work())
        loop = asyncio.get_running_loop()
        for time in range(times):
            loop.call_later(seconds * (1 + time / 2), task.cancel)
        await asyncio.wait([task])
        return returned

    await check_race(connection, insert, started)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_task_hears_of_it_though_its_statement_returned(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    async def no_cancel() -> None:
        pass

    monkeypatch.setattr(other, "_cancel_statement", no_cancel)  # so that the answer is sure to win
    await connection.run("select pg_advisory_lock(1)")
    seen = []

    async def work() -> None:
        seen.append(await other.run("select 7, pg_advisory_lock(1)::text"))
        await anyio.sleep_forever()

    task = asyncio.create_task(work())
    await runs(other, connection)
    task.cancel()
    await wait_all_tasks_blocked()
    await connection.run("select pg_advisory_unlock(1)")
    await asyncio.wait([task])
    assert seen == [[(7, "")]]
    assert task.cancelled()
    assert other.usable


async def test_the_server_is_told_of_a_cancellation(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run, "select pg_sleep(600)")
            await runs(connection, other)
            scope.cancel()
    assert scope.cancelled_caught
    assert connection.usable
    assert await connection.run("select 1") == [(1,)]


async def test_a_cancelled_statement_spoils_its_transaction_only(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    await connection.run("begin")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.execute_own, "select pg_sleep(600)")
        await runs(connection, other)
        tasks.cancel_scope.cancel()
    assert not connection.usable
    await connection.run("rollback")
    assert connection.usable


async def test_a_statement_that_is_cancelled_while_it_is_sent_is_sent_to_its_end(
    connection: AsyncAnyioConnection,
) -> None:
    chance = random.Random(7)
    text = "x" * 5_000_000
    for number in range(6):
        with anyio.move_on_after(chance.uniform(0, 0.03)):
            await connection.run("select length($1::text)", [text])
        assert await connection.run("select $1::int8", [number]) == [(number,)]


async def test_a_server_that_never_answers_holds_nobody_up(
    server: Server, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setattr(module, "_CANCEL_BOUND", 0.05)
    async with (
        proxy(server.socket) as network,
        connected(f"postgresql://postgres@127.0.0.1:{network.port}/postgres") as connection,
    ):
        await connection.run("select 1")
        network.half_open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run, "select 1")
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert not connection.usable
        await connection.close()


async def test_a_statement_that_cannot_be_called_off_ends_by_itself(
    server: Server, other: AsyncAnyioConnection, anyio_backend: str
) -> None:
    await other.run("select pg_advisory_lock(2)")
    got = []
    async with (
        proxy(server.socket) as network,
        connected(f"postgresql://postgres@127.0.0.1:{network.port}/postgres") as connection,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            got.append(await connection.run("select pg_advisory_lock(2)::text"))

        tasks.start_soon(ask)
        await runs(connection, other)
        network.refuse()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            await other.run("select pg_advisory_unlock(2)")
    assert got == [[("",)]]


# The end


async def test_a_statement_whose_connection_is_lost_raises(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(psycopg.OperationalError):
                await connection.run("select pg_sleep(600)")

        tasks.start_soon(ask)
        await runs(connection, other)
        await other.run("select pg_terminate_backend($1::int4)", [connection.pgconn.backend_pid])
    assert not connection.usable
    assert not connection.alive
    with pytest.raises(psycopg.OperationalError):
        await connection.run("select 1")
    await connection.close()


@pytest.mark.parametrize("kind", ["statement", "notifications"])
async def test_aborting_wakes_whoever_waits(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection, kind: str
) -> None:
    await connection.listen("x")
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(psycopg.OperationalError):
                await (connection.run("select pg_sleep(1)") if kind == "statement" else connection.notified())

        tasks.start_soon(ask)
        await wait_all_tasks_blocked()
        connection.abort()
    assert not connection.usable


async def test_closing_stops_what_the_server_is_at(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    pid = connection.pgconn.backend_pid
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(psycopg.Error):
                await connection.run("select pg_sleep(600)")

        tasks.start_soon(ask)
        await runs(connection, other)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.close()
    await gone(other, pid)


# Notifications


async def test_notifications_that_come_with_an_answer_are_kept(connection: AsyncAnyioConnection) -> None:
    await connection.listen('a "b')
    await connection.run_all('notify "a ""b", \'1\'; notify "a ""b", \'2\'')
    await connection.run("select pg_notify($1::text, $2::text)", ['a "b', "3"])
    assert [(note.channel, note.payload) for note in await connection.notified()] == [
        ('a "b', payload) for payload in "123"
    ]


async def test_notifications_are_waited_for_and_none_is_lost_to_a_cancellation(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    chance = random.Random(3)
    heard: list[str] = []
    await connection.listen("x")
    for number in range(ROUNDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.run, "select pg_notify('x', $1::text)", [str(number)])
            with anyio.move_on_after(chance.uniform(0, 0.001)):
                heard += [note.payload for note in await connection.notified()]
    while len(heard) < ROUNDS:
        heard += [note.payload for note in await connection.notified()]
    assert heard == [str(number) for number in range(ROUNDS)]


async def test_who_waits_for_notifications_hears_of_a_lost_connection(
    connection: AsyncAnyioConnection, other: AsyncAnyioConnection
) -> None:
    pid = connection.pgconn.backend_pid
    await connection.listen("x")
    await other.run("select pg_notify('x', '')")
    await anyio.wait_readable(connection.pgconn.socket)
    await other.run("select pg_terminate_backend($1::int4)", [pid])
    await gone(other, pid)  # now the last words are there, right behind the notification
    assert [note.channel for note in await connection.notified()] == ["x"]
    with pytest.raises(psycopg.OperationalError):
        await connection.notified()
    with pytest.raises(psycopg.OperationalError):
        await connection.notified()
    assert not connection.usable


async def test_what_the_application_listens_to_is_not_kept(connection: AsyncAnyioConnection) -> None:
    await connection.run_all("listen x; notify x")
    assert not connection._notes
    with pytest.raises(RuntimeError, match="listen"):
        await connection.notified()


# Connecting


async def test_a_connection_says_who_it_is_and_commits_by_itself(
    connection: AsyncAnyioConnection, server: Server
) -> None:
    assert connection.autocommit
    [(name,)] = await connection.run("select current_setting('application_name')")
    assert name == "alkstore_trio"
    async with connected(f"{server.tcp_dsn}?application_name=mine&keepalives_idle=7") as mine:
        parameters = mine.info.get_parameters()
        assert parameters["application_name"] == "mine"
        assert [parameters[f"keepalives_{name}"] for name in ("idle", "interval", "count")] == ["7", "5", "3"]


async def test_hosts_are_tried_in_turn(server: Server) -> None:
    dsn = f"host=nowhere.invalid,127.0.0.1,127.0.0.1 port=1,1,{server.port} user=postgres dbname=postgres"
    async with connected(dsn) as connection:
        assert await connection.run("select 1") == [(1,)]
    with pytest.raises(NotConnected, match="No such file") as caught:
        await AsyncAnyioConnection.connect("host=/nowhere dbname=x password=swordfish")
    error = failure(caught.value, "nowhere")
    assert error.transient
    assert "is the server running" in str(error)


async def test_a_connection_that_comes_to_nothing_leaves_nothing(anyio_backend: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(AsyncAnyioConnection.connect, f"host=127.0.0.1 port={silent.getsockname()[1]} user=x")
            await anyio.wait_readable(silent)
            accepted, _ = silent.accept()
            await anyio.wait_readable(accepted)
            tasks.cancel_scope.cancel()
        with accepted:
            while accepted.recv(1000):
                pass


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    monkeypatch.setattr(module, "_CONNECT_TIMEOUT", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotConnected, match="no answer") as caught:
        await AsyncAnyioConnection.connect(f"host=127.0.0.1 port={silent.getsockname()[1]} user=x")
    assert failure(caught.value, "x").transient


# What is said


SECRET = "swordfish"


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://me:{SECRET}@host/db",
        f"postgresql://me:a@{SECRET}@host/db",
        f"postgresql://me:{SECRET}/{SECRET}@host/db",
        f"postgresql://me:1/{SECRET}@host/db",
        f"postgresql://me:{SECRET}:{SECRET}@host:xx/db",
        f"postgresql://me:%zz{SECRET}@host/db",
        f"postgresql://me@host/db?password={SECRET}",
        f"postgresql://me@[{SECRET}/db",
        f"host=h password={SECRET} dbname=db",
        f"host=h password='{SECRET}",
        f"dbname=postgresql://me:{SECRET}@host/db",
        f"host=h {SECRET}",
        f"host=h connect_timeout={SECRET}",
    ],
)
async def test_no_password_is_ever_shown(conninfo: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    assert SECRET not in redacted(conninfo)
    monkeypatch.setattr(module, "_split", lambda params: [{"host": "/nowhere"}])
    with pytest.raises(psycopg.Error) as caught:
        await AsyncAnyioConnection.connect(conninfo)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert SECRET not in f"{shown} {shown!r} {failure(caught.value, redacted(conninfo))}"
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def test_a_place_is_named_by_host_and_database() -> None:
    assert redacted("postgresql://me:secret@h1,h2:5/db") == "h1,h2/db"
    assert redacted("service=x password=y") == "service x"
    assert redacted("") == "localhost"


SAID = [
    ('FATAL:  password authentication failed for user "x"', "check the conninfo's user", False),
    ('FATAL:  role "x" does not exist', "check the conninfo's user", False),
    ('FATAL:  database "x" does not exist', "create it", False),
    ("FATAL:  sorry, too many clients already", "max_connections", True),
    ("FATAL:  the database system is starting up", "does not take connections yet", True),
    ("could not connect: Connection refused", "is the server running", True),
]


@pytest.mark.parametrize(("words", "remedy", "transient"), SAID)
def test_what_ends_an_attempt_to_connect_has_a_remedy(words: str, remedy: str, transient: bool) -> None:
    error = failure(NotConnected(f"connection to server failed: {words}"), "h/db")
    assert remedy in str(error)
    assert "'h/db'" in str(error)
    assert (error.retryable, error.transient) == (False, transient)


@pytest.mark.parametrize(
    ("sqlstate", "retryable", "transient"),
    [
        ("40001", True, False),
        ("40P01", True, False),
        ("08006", False, True),
        ("53100", False, True),
        ("55P03", False, True),
        ("57014", False, True),
        ("57P01", False, True),
        ("25006", False, False),
        ("42501", False, False),
        ("23505", False, False),
        ("25P02", False, False),
    ],
)
def test_what_may_be_tried_again_says_so(sqlstate: str, retryable: bool, transient: bool) -> None:
    error = failure(psycopg.errors.lookup(sqlstate)("it says so"), "h/db")
    assert (error.retryable, error.transient) == (retryable, transient)
    assert "it says so" in str(error)
    assert failure(psycopg.OperationalError("lost"), "h/db").transient
    assert not failure(psycopg.DataError("lost"), "h/db").transient


# What is relied on of psycopg


def test_psycopg_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    failures.check_driver()
    assert [int(kind) for kind in (waiting.Wait.R, waiting.Wait.W, waiting.Wait.RW)] == [1, 2, 3]
    assert [int(kind) for kind in (waiting.Ready.R, waiting.Ready.W)] == [1, 2]
    assert module._split.__module__ == "psycopg._conninfo_attempts"
    monkeypatch.delattr(psycopg.generators, "execute")
    with pytest.raises(ImportError, match=r"lacks psycopg\.generators\.execute.*alkstore-trio\[postgres\]"):
        failures.check_driver()
    monkeypatch.undo()
    monkeypatch.setattr(psycopg, "__version__", "3.1.20")
    with pytest.raises(ImportError, match="too old"):
        failures.check_driver()


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, failures.__name__)
    with pytest.raises(ImportError, match=r"pip install 'alkstore-trio\[postgres\]'"):
        __import__(failures.__name__)


# The pool


class Fake:
    """A connection without a server."""

    usable = alive = True
    busy = False
    ended = False

    def abort(self) -> None:
        self.ended = True


class Making:
    """Makes such connections, and keeps them."""

    def __init__(self) -> None:
        self.made: list[Fake] = []

    async def __call__(self) -> Fake:
        await checkpoint()
        self.made.append(Fake())
        return self.made[-1]


async def test_a_connection_is_made_when_it_is_first_needed_and_kept() -> None:
    making = Making()
    pool = Pool(making, 3)
    first, second = await pool.take(), await pool.take()
    pool.give(first)
    pool.give(second)
    assert await pool.take() is second
    assert await pool.take() is first
    assert making.made == [first, second]


async def test_a_connection_that_is_not_as_it_was_is_replaced() -> None:
    making = Making()
    pool = Pool(making, 2)
    first = await pool.take()
    first.usable = False
    pool.give(first)
    assert first.ended
    second = await pool.take()
    pool.give(second)
    second.alive = False
    assert await pool.take() not in (first, second)
    assert second.ended


async def test_places_are_given_in_the_order_of_asking() -> None:
    pool = Pool(Making(), 2)
    taken = [await pool.take(), await pool.take()]
    order: list[int] = []

    async def ask(number: int) -> None:
        connection = await pool.take(list(Use)[number % 3])
        order.append(number)
        pool.give(connection)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(ask, number)
            await wait_all_tasks_blocked()
        pool.give(taken.pop())
        await wait_all_tasks_blocked()
    assert order == list(range(6))


async def test_transactions_leave_one_place_to_others() -> None:
    pool = Pool(Making(), 3)
    holds = [await pool.take(Use.TRANSACTION) for _ in range(2)]
    got: list[str] = []

    async def begin() -> None:
        pool.give(await pool.take(Use.TRANSACTION))
        got.append("transaction")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        await wait_all_tasks_blocked()
        pool.give(await pool.take())
        assert got == []
        pool.give(holds.pop())
    assert got == ["transaction"]


async def test_those_who_may_have_to_wait_at_the_server_leave_one_place_to_others() -> None:
    pool = Pool(Making(), 3)
    held = [await pool.take(Use.HELD_STATEMENT) for _ in range(2)]
    got: list[str] = []

    async def wait() -> None:
        pool.give(await pool.take(Use.HELD_STATEMENT))
        got.append("held")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await wait_all_tasks_blocked()
        for _ in range(2):
            pool.give(await pool.take())
        assert got == []
        pool.give(held.pop())
    assert got == ["held"]
    transactions = [await pool.take(Use.TRANSACTION)]
    pool.give(held.pop())
    transactions.append(await pool.take(Use.TRANSACTION))
    with anyio.fail_after(10):
        await pool.take(Use.HELD_STATEMENT)  # the last one, since nobody else waits so


async def test_everybody_gets_on_who_writes_outside_while_holding_a_transaction() -> None:
    pool = Pool(Making(), 3)
    done = []

    async def both(number: int) -> None:
        transaction = await pool.take(Use.TRANSACTION)
        await checkpoint()
        outside = await pool.take()
        await checkpoint()
        pool.give(outside)
        pool.give(transaction)
        done.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(both, number)
    assert len(done) == 12


async def test_a_cancelled_waiter_loses_no_place() -> None:
    chance = random.Random(1)
    making = Making()
    pool = Pool(making, 3)

    async def take(scope: anyio.CancelScope, use: Use) -> None:
        with scope:
            connection = await pool.take(use)
            try:
                await checkpoint()
            finally:
                pool.give(connection)

    for _ in range(60):
        scopes = [anyio.CancelScope() for _ in range(12)]
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(take, scope, chance.choice(list(Use)))
            chance.shuffle(scopes)
            for scope in scopes:
                for _ in range(chance.randrange(3)):
                    await checkpoint()
                scope.cancel()
    with anyio.fail_after(10):
        held = [await pool.take(Use.TRANSACTION), await pool.take(Use.TRANSACTION), await pool.take()]
    assert len(set(map(id, held))) == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_place_that_was_granted_to_a_cancelled_task_is_passed_on() -> None:
    import asyncio

    pool = Pool(Making(), 2)
    held = [await pool.take(), await pool.take()]
    first, second = asyncio.create_task(pool.take()), asyncio.create_task(pool.take())
    await wait_all_tasks_blocked()
    pool.give(held.pop())
    first.cancel()
    assert await second not in held
    assert first.cancelled()


async def test_a_failure_to_connect_costs_no_place() -> None:
    making = Making()
    fails = True

    async def connect() -> Fake:
        if fails:
            raise OSError
        return await making()

    pool = Pool(connect, 2)
    for use in list(Use) * 2:
        with pytest.raises(OSError):  # noqa: PT011  # the very one
            await pool.take(use)
    fails = False
    assert len({id(await pool.take(Use.TRANSACTION)), id(await pool.take())}) == 2


async def test_a_closed_pool_refuses_and_ends_all_it_had() -> None:
    making = Making()
    pool = Pool(making, 2)
    idle, used = await pool.take(), await pool.take()
    refused = []

    async def ask(use: Use) -> None:
        with pytest.raises(Closed):
            await pool.take(use)
        refused.append(use)

    async with anyio.create_task_group() as tasks:
        for use in Use:
            tasks.start_soon(ask, use)
        await wait_all_tasks_blocked()
        await pool.close(1.0)
    assert set(refused) == set(Use)
    pool.give(idle)
    pool.give(used)
    assert [connection.ended for connection in making.made] == [True, True]
    await ask(Use.STATEMENT)


async def test_what_is_idle_in_a_closed_pool_is_closed() -> None:
    making = Making()
    pool = Pool(making, 2)
    pool.give(await pool.take())
    await pool.close(1.0)
    assert making.made[0].ended


def test_a_pool_of_one_would_stall() -> None:
    with pytest.raises(ValueError, match="a pool of 1"):
        Pool(Making(), 1)


async def test_a_connection_that_the_server_has_left_is_not_handed_out(
    server: Server, other: AsyncAnyioConnection
) -> None:
    pool = Pool(lambda: AsyncAnyioConnection.connect(server.dsn), 2)
    first = await pool.take()
    pool.give(first)
    pid = first.pgconn.backend_pid
    await other.run("select pg_terminate_backend($1::int4)", [pid])
    await gone(other, pid)
    second = await pool.take()
    assert second is not first
    assert await second.run("select 1") == [(1,)]
    pool.give(second)
    assert await pool.take() is second
    pool.give(second)
    await pool.close(1.0)
    assert not second.usable
