"""Which servers and schemas a store takes, what it says of those that it does not, and what they may be set to.

What a server that serves is given and gives back is below, too: names and payloads of odd kinds, through every verb.
"""

import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from alkstore_trio import DatabaseError, JobState, StopToken, Store, open_postgres, open_store
from alkstore_trio._engines.postgres import server as server_module
from alkstore_trio.schema import script
from alkstore_trio.testing import ManualClock
from alkstore_trio.testing.conformance.kit import anyio_backend
from tests import servers
from tests.servers import Server

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

Connection = psycopg.Connection[Any]

one_loop = pytest.mark.parametrize("anyio_backend", ["trio"])  # where the loop makes no difference
HUGE = sys.float_info.max
SECRET = "geheim"
_OTHERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # Debian's, the oldest first
_BOUND = 20.0  # seconds after which a test hangs


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that asks for a password over TCP."""
    with Server(tcp=True) as server:
        with psycopg.connect(server.dsn, autocommit=True) as administrator:
            administrator.execute(f"create role app login password '{SECRET}'")
            administrator.execute("create role limited login")
        server.ask_for_passwords()
        yield server


@pytest.fixture
def administrator(server: Server) -> Iterator[Connection]:
    """Who may do anything, and leaves nothing behind."""
    with psycopg.Connection.connect(server.dsn, autocommit=True) as connection:
        known = {name for (name,) in connection.execute("select nspname from pg_namespace")}
        yield connection
        connection.execute("reset role")
        for (name,) in connection.execute("select nspname from pg_namespace").fetchall():
            if name not in known:
                quoted = '"' + name.replace('"', '""') + '"'
                connection.execute(f"drop schema {quoted} cascade")


def as_role(server: Server, role: str) -> str:
    return server.dsn.replace("postgres@", f"{role}@")


async def _failure(dsn: str, **options: Any) -> DatabaseError:
    """What is said of a server that cannot be opened."""
    with pytest.raises(DatabaseError) as caught:
        async with open_postgres(dsn, **options):
            pytest.fail("opened")
    assert not caught.value.retryable
    assert SECRET not in said(caught.value)
    return caught.value


def said(error: BaseException) -> str:
    """All that an error would have printed, its chain included, and what its parts would."""
    parts = [*traceback.format_exception(error)]
    while True:
        parts += [str(error), repr(error), repr(error.args)]
        following = error.__cause__ or error.__context__
        if following is None:
            return "\n".join(parts)
        error = following


async def _works(store: Store) -> None:
    """A verb of each kind."""
    queue, stream = store.queue("q", dead_retention=0), store.stream("s")
    job_id = await queue.enqueue({"ä": 1})
    await queue.enqueue_many([1, 2, 3])
    first, second, third = await queue.claim_batch("w", 3)
    assert first.job.id == job_id
    assert await first.heartbeat()
    assert await first.ack()
    assert await second.fail("no")
    assert await third.retry("again", 0)
    assert await queue.sweep_expired() == 1
    assert await queue.ack_batch(await queue.claim_batch("w", 5)) == 2
    assert await queue.next_ready_at() is None
    assert await stream.publish_many([1, 2]) == [1, 2]
    assert await stream.save_offset("c", 1)
    assert [event.payload for event in await stream.read_from_consumer("c", 5)] == [2]
    assert await stream.trim_to(1) == 1
    lock = await store.try_lock("l", "o", 9)
    assert lock is not None
    assert await lock.renew(9)
    assert await lock.release()
    await store.schedule("x", "@every 1h", "q", 1)
    assert len(await store.schedules()) == 1
    assert await store.unschedule("x")
    async with store.listen("c") as wakes:
        async with store.transaction() as tx:
            await tx.enqueue_tx("r", 1)
            await tx.outbox_enqueue_tx("o", 1)
            await tx.publish_tx("s", 3)
            await tx.save_offset_tx("s", "c", 2)
            await tx.notify_tx("c")
        with anyio.fail_after(_BOUND):
            assert (await wakes.receive()).channel == "c"
    assert await store.queues() == ["__alkstore_outbox:o", "r"]
    assert await store.streams() == ["s"]
    assert await stream.get_offset("c") == 2


# URLs and arguments


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_a_store_is_opened_by_url(server: Server, administrator: Connection, scheme: str) -> None:
    url = server.dsn.replace("postgresql", scheme)
    async with open_store(url, schema="by url", max_connections=2, lock_timeout=timedelta(seconds=5)) as store:
        await _works(store)
    administrator.execute("create schema mine authorization app")
    async with open_store(url.replace("postgres@", f"app:{SECRET}@"), schema="mine") as store:
        await store.queue("q").enqueue(1)


@one_loop
async def test_keywords_do_as_well(server: Server, administrator: Connection) -> None:
    async with open_postgres(f"host={server.folder} port={server.port} user=postgres", schema="by keywords") as store:
        await _works(store)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"dsn": 3}, TypeError, "dsn"),
        ({"dsn": None}, TypeError, "dsn"),
        ({"dsn": b"postgresql:"}, TypeError, "dsn"),
        ({"listen_dsn": 3}, TypeError, "listen_dsn"),
        ({"schema": None}, TypeError, "schema"),
        ({"schema": b"x"}, TypeError, "schema"),
        ({"schema": ""}, ValueError, "schema"),
        ({"schema": "a\0b"}, ValueError, "schema"),
        ({"schema": "x" * 64}, ValueError, "63 bytes"),
        ({"schema": "ä" * 32}, ValueError, "63 bytes"),
        ({"schema": "pg_x"}, ValueError, "keeps for itself"),
        ({"schema": "information_schema"}, ValueError, "keeps for itself"),
        ({"schema": "a\ud800"}, ValueError, "schema must"),
        ({"max_connections": 1}, ValueError, "max_connections"),
        ({"max_connections": 0}, ValueError, "max_connections"),
        ({"max_connections": True}, TypeError, "max_connections"),
        ({"max_connections": 2.0}, TypeError, "max_connections"),
        ({"max_connections": "10"}, TypeError, "max_connections"),
        ({"lock_timeout": 0}, ValueError, "lock_timeout"),
        ({"lock_timeout": -1}, ValueError, "lock_timeout"),
        ({"lock_timeout": float("nan")}, ValueError, "lock_timeout"),
        ({"lock_timeout": float("inf")}, ValueError, "lock_timeout"),
        ({"lock_timeout": "1"}, TypeError, "lock_timeout"),
        ({"lock_timeout": None}, TypeError, "lock_timeout"),
        ({"wakes": "none"}, ValueError, "'listen' or 'poll'"),
        ({"wakes": None}, ValueError, "'listen' or 'poll'"),
        ({"clock": 3}, TypeError, "clock"),
    ],
)
def test_an_argument_is_judged_at_the_call(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    call: Callable[..., object] = open_postgres
    with pytest.raises(error, match=says):
        call(**{"dsn": "postgresql://localhost/x"} | arguments)


@one_loop
@pytest.mark.parametrize("seconds", [1e-9, 0.05, 3e6, 1e300, 1e306, HUGE])
async def test_a_lock_timeout_is_any_number_of_seconds(
    server: Server, administrator: Connection, seconds: float
) -> None:
    # fails from 1e306 on: `round` of its milliseconds is an OverflowError (server.py, `connect`).
    async with open_postgres(server.dsn, schema="timeout", lock_timeout=seconds) as store:
        await store.queue("q").enqueue(1)


async def test_a_store_without_a_listening_connection_wakes_itself(server: Server, administrator: Connection) -> None:
    async with open_postgres(server.dsn, schema="poll", wakes="poll") as store:
        await _works(store)


# The schema


_NAMES = [
    "Aa bB",
    'say "x"',
    "it's",
    "100%",
    "%s %(x)s {x}",
    "$jobs $'jobs' $1",
    ":now ::text :clock",
    "a;b--c/*d*/",
    "back\\slash\\u0041",
    "new\nline\t",
    "Gr\u00fc\u00dfe \U0001f600",
    "a.b",
    "select",
    " ",
    "e'x",
    "x" * 63,
    "\u00e4" * 31 + "x",
]


@one_loop
@pytest.mark.parametrize("name", _NAMES)
async def test_a_schema_may_have_any_name(server: Server, administrator: Connection, name: str) -> None:
    async with open_postgres(server.dsn, schema=name) as store:
        await _works(store)
    async with open_postgres(server.dsn, schema=name) as store, open_postgres(server.dsn, schema=name) as other:
        assert await store.queues() == await other.queues() == ["__alkstore_outbox:o", "r"]
        async with other.listen("c") as wakes:
            with psycopg.Connection.connect(server.dsn) as connection:
                connection.execute("select 1")
                store.join(connection).notify_tx("c")
            with anyio.fail_after(_BOUND):
                await wakes.receive()
    assert administrator.execute("select count(*) from pg_namespace where nspname = %s", [name]).fetchone() == (1,)


@one_loop
async def test_stores_of_two_schemas_have_nothing_in_common(server: Server, administrator: Connection) -> None:
    async with open_postgres(server.dsn, schema="a") as one, open_postgres(server.dsn, schema="A") as two:
        await one.queue("q").enqueue(1)
        assert await two.queues() == []
        async with two.listen("c") as wakes, two.listen("marker") as markers:
            await one.notify("c")
            async with open_postgres(server.dsn, schema="A") as three:
                await three.notify("marker")
            with anyio.fail_after(_BOUND):
                await markers.receive()
            with pytest.raises(anyio.WouldBlock):
                wakes.receive_nowait()


async def test_eight_stores_make_one_schema_at_once(server: Server, administrator: Connection) -> None:
    opened: list[str] = []

    async def open_one() -> None:
        async with open_postgres(server.dsn, schema="new", max_connections=2) as store:
            await store.queue("q").enqueue(1)
            opened.append(store._engine.store)  # type: ignore[attr-defined]  # of this engine alone

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(open_one)
    assert len(opened) == 8
    assert len(set(opened)) == 1
    assert administrator.execute('select count(*) from "new".jobs').fetchone() == (8,)


@one_loop
async def test_a_newer_schema_is_refused_and_left_as_it_is(server: Server, administrator: Connection) -> None:
    async with open_postgres(server.dsn, schema="newer"):
        pass
    administrator.execute("update newer.schema set version = 99")
    error = await _failure(server.dsn, schema="newer")
    assert "version 99" in str(error)
    assert "newer alkstore-trio" in str(error)
    assert not error.transient
    assert administrator.execute("select version from newer.schema").fetchone() == (99,)


@one_loop
@pytest.mark.parametrize(
    "made",
    [
        "create table taken.schema(a int)",
        "create table taken.schema(version int8)",
        "create table taken.schema(version int8); insert into taken.schema values (1), (1)",
        "create table taken.schema(version text); insert into taken.schema values ('one')",
        "create table taken.schema(version int8); insert into taken.schema values (1)",
        "create table taken.schema(version int8); insert into taken.schema values (-1)",
        "create table taken.schema(version int8); insert into taken.schema values (null)",
        "create view taken.schema as select 'x' as a",  # fails as the first
        "create table taken.jobs(mine text)",
    ],
)
async def test_a_schema_that_is_somebody_elses_is_refused_and_left_as_it_is(
    server: Server, administrator: Connection, made: str
) -> None:
    administrator.execute("create schema taken")
    administrator.execute(made)
    shape = "select table_name, column_name from information_schema.columns where table_schema = 'taken' order by 1, 2"
    before = administrator.execute(shape).fetchall()
    error = await _failure(server.dsn, schema="taken")
    assert "use another schema" in str(error)
    assert not error.transient
    assert administrator.execute(shape).fetchall() == before


# What somebody else has made


def _made(connection: Connection, schema: str) -> list[Any]:
    """What is in a schema, as the server describes it."""
    queries = [
        """select table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity,
         identity_generation from information_schema.columns where table_schema = %s order by 1, ordinal_position""",
        "select tablename, indexname, indexdef from pg_indexes where schemaname = %s order by 1, 2",
        """select relname, relkind, reloptions from pg_class where relnamespace = to_regnamespace(quote_ident(%s))
         order by 1""",
        """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
         where connamespace = to_regnamespace(quote_ident(%s)) order by 1, 2""",
        "select sequencename, data_type, start_value, increment_by from pg_sequences where schemaname = %s order by 1",
    ]
    found = [connection.execute(query, [schema]).fetchall() for query in queries]
    assert all(found)
    return eval(repr(found).replace(schema, "*"))  # a deep copy with the name struck out


@one_loop
@pytest.mark.parametrize("name", ["printed", "printed %s it's $1; --"])
async def test_the_printed_script_makes_what_a_store_makes(
    server: Server, administrator: Connection, name: str
) -> None:
    command = [sys.executable, "-m", "alkstore_trio.schema", "postgres", "--schema", name]
    printed = (await anyio.run_process(command)).stdout.decode()
    assert printed == script("postgres", name)
    administrator.execute(printed)
    async with open_postgres(server.dsn, schema="opened"):
        pass
    if name == "printed":
        assert _made(administrator, name) == _made(administrator, "opened")
    assert administrator.execute("select version from opened.schema").fetchone() == (1,)
    async with open_postgres(server.dsn, schema=name) as store:
        await _works(store)


# What a role needs that may not make schemas: for the documentation.
GRANTS = """
grant usage on schema granted to limited;
grant select on granted.schema to limited;
grant select, insert, update, delete on granted.jobs, granted.locks, granted.schedules to limited;
grant select, insert, update on granted.streams, granted.offsets to limited;
grant select, insert, delete on granted.events to limited;
grant usage on sequence granted.tokens to limited
"""


@one_loop
async def test_a_role_that_may_not_make_schemas_uses_one_that_was_made_for_it(
    server: Server, administrator: Connection
) -> None:
    error = await _failure(as_role(server, "limited"), schema="granted")
    assert "grant" in str(error)
    administrator.execute(script("postgres", "granted"))
    error = await _failure(as_role(server, "limited"), schema="granted")
    assert "grant" in str(error)
    assert not error.transient
    administrator.execute(GRANTS)
    async with open_postgres(as_role(server, "limited"), schema="granted") as store:
        await _works(store)
        assert await store.queue("r").delete([job.id for job in await store.queue("r").jobs()]) == 1
        with psycopg.Connection.connect(as_role(server, "limited")) as connection:
            connection.execute("select 1")
            store.join(connection).enqueue_tx("q", 1)


@one_loop
@pytest.mark.parametrize("right", GRANTS.strip().replace(";", "").splitlines())
async def test_each_right_is_needed(server: Server, administrator: Connection, right: str) -> None:
    administrator.execute(script("postgres", "granted"))
    administrator.execute(GRANTS)
    administrator.execute(right.replace("grant ", "revoke ").replace(" to ", " from "))
    with pytest.raises(DatabaseError, match="grant the role") as caught:
        async with open_postgres(as_role(server, "limited"), schema="granted") as store:
            await _works(store)
    assert not caught.value.transient


# Servers that cannot be had


@pytest.mark.parametrize(
    ("dsn", "says", "transient"),
    [
        ("nonsense", "write postgresql://", False),
        (f"postgresql://app:{SECRET}@x@host/db", "percent-encoded", False),
        (f"postgresql://app:{SECRET}/x@host/db", "percent-encoded", False),
        (f"postgresql://app:{SECRET}@host:port/db", "percent-encoded", False),
        (f"host=h password='{SECRET}", "write postgresql://", False),
        (f"host=h passwort={SECRET}", "write postgresql://", False),
        (f"postgresql://app:{SECRET}@127.0.0.1:1/db", "cannot be reached", True),
        (f"postgresql://app:{SECRET}@127.0.0.1:1,127.0.0.1:2/db", "cannot be reached", True),
        (f"postgresql://app:{SECRET}@/db?host=/nowhere", "cannot be reached", True),
    ],
)
async def test_a_server_that_cannot_be_found_is_an_error_that_helps(
    dsn: str, says: str, transient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await _failure(dsn)
    assert says in str(error)
    assert error.transient is transient
    assert isinstance(error.__cause__, psycopg.Error)
    assert SECRET not in caplog.text


@one_loop
@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://app:{SECRET}\ud800@127.0.0.1:1/db",
        f"postgresql://app:{SECRET}%00@127.0.0.1:1/db",
        f"host=127.0.0.1 port=1 password={SECRET}\0",
        # fails through `open_store`: urlsplit quotes what is not as it should be
        f"postgresql://app:{SECRET}\uff20x@127.0.0.1:1/db",
        f"postgresql://app:{SECRET}]@127.0.0.1:1/db",
        f"postgresql://app:[{SECRET}@127.0.0.1:1/db",
        f"postgresql://app:{SECRET}\u2100@127.0.0.1:1/db",
    ],
)
@pytest.mark.parametrize("opener", [open_postgres, open_store])
async def test_a_password_of_odd_characters_is_shown_to_nobody(dsn: str, opener: Callable[..., Any]) -> None:
    with pytest.raises((DatabaseError, ValueError)) as caught:
        async with opener(dsn):
            pytest.fail("opened")
    assert SECRET not in said(caught.value)


@pytest.mark.parametrize(
    ("user", "database", "says"),
    [
        ("app:falsch-geheim", "postgres", "user and password"),
        ("app", "postgres", "user and password"),
        ("nobody:geheim", "postgres", "user and password"),
        (f"app:{SECRET}", "missing", "create it first"),
        (f"app:{SECRET}", "postgres", "grant"),
    ],
)
async def test_a_login_that_fails_is_an_error_that_helps(
    server: Server, user: str, database: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await _failure(f"postgresql://{user}@127.0.0.1:{server.port}/{database}", schema="not there")
    assert says in str(error)
    assert not error.transient
    assert isinstance(error.__cause__, psycopg.Error)
    assert SECRET not in caplog.text


async def test_an_open_store_shows_no_password(
    server: Server, administrator: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    administrator.execute("create schema shown authorization app")
    dsn = server.tcp_dsn.replace("postgres@", f"app:{SECRET}@")
    async with open_postgres(dsn, schema="shown") as store:
        engine: Any = store._engine
        await store.notify("c")
        administrator.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app' and pid <> %s",
            [administrator.info.backend_pid],
        )
        shown = [repr(store), str(store), repr(engine), repr(engine.server), repr(vars(engine))]
        shown += [repr(store.queue("q")), repr(engine.pool), repr(engine.voice), repr(vars(engine.voice))]
        await store.queue("q").enqueue(1)
    assert SECRET not in "".join(shown)
    assert SECRET not in caplog.text


@one_loop
async def test_a_listening_connection_that_cannot_be_had_is_an_error(server: Server, administrator: Connection) -> None:
    error = await _failure(server.dsn, listen_dsn=f"postgresql://app:{SECRET}x@127.0.0.1:{server.port}/postgres")
    assert "user and password" in str(error)
    assert administrator.execute(
        "select count(*) from pg_stat_activity where application_name = 'alkstore_trio' and state <> 'idle'"
    ).fetchone() == (0,)


@one_loop
async def test_an_old_server_is_refused(
    server: Server, administrator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_OLDEST", 99_00_00)
    error = await _failure(server.dsn, schema="too old")
    assert "needs 99 or later" in str(error)
    assert not error.transient


@one_loop
async def test_a_database_that_cannot_keep_every_text_is_refused(server: Server, administrator: Connection) -> None:
    for encoding in ("LATIN1", "SQL_ASCII", "UTF8"):
        name = f"encoded_{encoding.lower()}"
        administrator.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
        dsn = server.dsn.replace("@/postgres?", f"@/{name}?")
        if encoding == "LATIN1":
            error = await _failure(dsn, schema="s")
            assert "is encoded in LATIN1" in str(error)
            assert "encoding 'UTF8'" in str(error)
            assert not error.transient
        else:
            async with open_postgres(dsn, schema="s") as store:
                await store.queue("日本").enqueue("✗")
                assert [job.payload for job in await store.queue("日本").jobs()] == ["✗"]


@one_loop
async def test_a_server_of_the_systems_serves_as_that_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _OTHERS:
        pytest.skip("there is no other server than the wheel's")
    monkeypatch.setattr(servers, "find_binaries", lambda: _OTHERS[0].parent)
    with Server() as server:
        # fails on 13, 14 and 15: `to_regclass('')`, asked for the schema alone, is "invalid name syntax" there, so that
        # no schema can be made at all (server.py, `_upgrade`).
        async with open_postgres(server.dsn) as store:
            await _works(store)


@one_loop
async def test_a_standby_is_refused() -> None:
    with Server() as server:
        async with open_postgres(server.dsn):
            pass
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        error = await _failure(server.dsn)
    assert "standby" in str(error)
    assert "primary" in str(error)


# What a role or a database may have set for its sessions


@pytest.fixture
def setting(administrator: Connection) -> Iterator[Callable[[str], None]]:
    """Sets what new sessions of the role begin with."""

    def set_for_all(text: str) -> None:
        administrator.execute(f"alter role app set {text}")

    administrator.execute("grant create on database postgres to app")
    yield set_for_all
    administrator.execute("alter role app reset all")
    administrator.execute("revoke create on database postgres from app")


@pytest.mark.parametrize(
    "text",
    [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
        "extra_float_digits = 0",
        "timezone = 'Asia/Kathmandu'",
        "datestyle = 'German, DMY'",
        "search_path = ''",
        "search_path = 'taken', pg_catalog",
        "client_encoding = 'LATIN1'",
        "standard_conforming_strings = off",
        "array_nulls = off",
        "plan_cache_mode = force_custom_plan",
        "lock_timeout = 1",
        "bytea_output = 'escape'",
        "row_security = off",
        "idle_session_timeout = '1h'",
    ],
)
@one_loop
async def test_what_a_role_has_set_changes_nothing(
    server: Server, administrator: Connection, setting: Callable[[str], None], text: str
) -> None:
    setting(text)
    clock = ManualClock(1_700_000_000.123456789)
    ran: list[object] = []
    stop = StopToken()
    async with open_postgres(as_role(server, "app"), schema="set", clock=clock) as store:
        await _works(store)
        queue = store.queue("t")
        await queue.enqueue_many(range(40))
        got: list[int] = []

        async def claim() -> None:
            while handle := await queue.claim("w"):
                got.append(handle.job.payload)
                await handle.ack()

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(claim)
        assert sorted(got) == list(range(40))

        await store.schedule("x", "@every 7s", "fired", "\u20ac")
        [state] = await store.schedules()
        assert state.next_at == clock() + 7

        async def handler(job: Any) -> None:
            ran.append(job.payload)
            stop.cancel()

        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda **named: store.run_schedules(stop, **named))
            tasks.start_soon(lambda: store.queue("fired").run_worker(handler, stop=stop))
            with anyio.fail_after(_BOUND):
                while len(clock._sleepers) < 4:  # the runner, and a worker's claimer, renewer and sweeper
                    await checkpoint()
                clock.advance(7)
                await stop.wait()
    assert ran == ["\u20ac"]


@one_loop
async def test_what_concerns_only_the_applications_statements_is_left_to_it(
    server: Server, administrator: Connection, setting: Callable[[str], None]
) -> None:
    wanted = {
        "statement_timeout": "42s",
        "search_path": "mine",
        "timezone": "Asia/Kathmandu",
        "datestyle": "German, DMY",
        "work_mem": "5MB",
        "idle_in_transaction_session_timeout": "43s",
    }
    for name, value in wanted.items():
        setting(f"{name} = {value}" if name in ("search_path", "datestyle") else f"{name} = '{value}'")
    async with open_postgres(as_role(server, "app"), schema="left") as store, store.begin_tx() as tx:
        for name, value in wanted.items():
            assert await tx.execute(f"show {name}") == [(value,)]
        assert await tx.execute("show plan_cache_mode") == [("auto",)]
        assert await tx.execute("show transaction_isolation") == [("read committed",)]


@one_loop
async def test_a_role_that_only_reads_is_told_so(
    server: Server, administrator: Connection, setting: Callable[[str], None]
) -> None:
    setting("default_transaction_read_only = on")
    assert "only reads" in str(await _failure(as_role(server, "app"), schema="only read"))
    administrator.execute(script("postgres", "only read"))
    administrator.execute('grant usage on schema "only read" to app')
    administrator.execute('grant all on all tables in schema "only read" to app')
    async with open_postgres(as_role(server, "app"), schema="only read") as store:
        assert await store.queues() == []
        with pytest.raises(DatabaseError, match="only reads"):
            await store.queue("q").enqueue(1)


# Names and payloads of odd kinds

_ODD = [
    "it's",
    'say "x"',
    "100% %s %(x)s %%",
    "back\\slash \\x41 \\",
    "$1 $2 $jobs",
    ":now ::text",
    "{NULL} null",
    "{a,b}",
    "'; drop table jobs; --",
    "\u00e4\u20ac\U0001f600",
    "e\u0301 \u202e rtl",
    "tab\tnew\nline",
    "x" * 512,
    "\U0001f600" * 128,
]


@one_loop
@pytest.mark.parametrize("name", _ODD, ids=range(len(_ODD)))
async def test_a_name_is_a_name(server: Server, administrator: Connection, name: str) -> None:
    async with open_postgres(server.dsn, schema="odd") as store:
        queue, outbox, stream = store.queue(name), store.outbox(name[:100]), store.stream(name)
        payload = {name: name}
        ids = [await queue.enqueue(payload), *await queue.enqueue_many([payload, payload])]
        await outbox.enqueue(payload)
        assert name in await store.queues()
        handles = await queue.claim_batch(name, 3)
        assert [handle.job.id for handle in handles] == ids
        assert {(handle.job.queue, handle.job.worker_id) for handle in handles} == {(name, name)}
        assert await handles[0].fail(name)
        assert await handles[1].retry(name, 0)
        assert await queue.ack_batch(handles[2:]) == 1
        for job in await queue.jobs():
            assert (job.payload, job.last_error, job.queue) == (payload, name, name)
        assert (await queue.statistics()).dead == 1
        assert await queue.revive(ids) == 1
        assert len(await queue.jobs(JobState.PENDING)) == 2
        assert await queue.next_ready_at() is not None
        assert await queue.sweep_expired() == 0
        assert await queue.delete(ids) == 2
        assert await outbox.run_once(name, lambda handle: handle.heartbeat(9))

        assert await stream.publish_with_key(name, payload) == 1
        assert await stream.save_offset(name, 1)
        assert (await stream.statistics()).consumers == {name: 1}
        [event] = await stream.read_since(0, 9)
        assert (event.stream, event.key, event.payload) == (name, name, payload)
        assert await store.streams() == [name]

        lock = await store.try_lock(name, name, 9)
        assert lock is not None
        assert await lock.renew(9)
        assert await store.try_lock(name, "other", 9) is None
        assert await lock.release()

        await store.schedule(name, "@every 1h", name, payload)
        assert [state.schedule.name for state in await store.schedules()] == [name]
        assert await store.unschedule(name)

        async with store.listen(name) as wakes, store.begin_tx() as tx:
            job_id = await tx.enqueue_tx(name, payload)
            await tx.publish_with_key_tx(name, name, payload)
            await tx.save_offset_tx(name, name, 2)
            await tx.outbox_enqueue_tx(name[:100], payload)
            await tx.notify_tx(name)
            found = await tx.get_job_tx(name, job_id)
            assert found is not None
            assert found.payload == payload
            assert [event.key for event in await tx.read_since_tx(name, 0, 9)] == [name, name]
            assert await tx.execute("select %s::text", [name]) == [(name,)]
            await tx.commit()
            with anyio.fail_after(_BOUND):
                assert (await wakes.receive()).channel == name


@asynccontextmanager
async def long_numbers() -> AsyncIterator[None]:
    """An interpreter that takes numbers of 20,000 digits."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(20_000)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


_PAYLOADS: dict[str, Any] = {
    "NUL": ["\0", {"\0": "a\0b"}],
    "escapes": '\\u0000 \\ " \u2028 \x7f \x1f',
    "2 MiB": "\u00e4" * 2**20,
    "10,000 digits": 10**9_999 + 7,
    "floats": [0.1, 5e-324, HUGE, -0.0, 1e22],
    "empty": [None, {}, [], "", 0, False],
    "deep": [[[[[[[[[[1]]]]]]]]]],
    "many": list(range(50_000)),
    "what arrays make of it": '{NULL,"a",b}',
}


@pytest.mark.parametrize("kind", _PAYLOADS)
async def test_a_payload_comes_back_as_it_went(server: Server, administrator: Connection, kind: str) -> None:
    payload = _PAYLOADS[kind]
    clock = ManualClock(1e9)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(long_numbers())
        store = await stack.enter_async_context(open_postgres(server.dsn, schema="payloads", clock=clock))
        queue, stream = store.queue("q"), store.stream("s")
        ids = [await queue.enqueue(payload), *await queue.enqueue_many([payload, payload])]
        async with anyio.create_task_group() as tasks:  # what waits together travels together
            for _ in range(4):
                tasks.start_soon(queue.enqueue, payload)
                tasks.start_soon(stream.publish, payload)
        await stream.publish_many([payload, payload])
        async with store.transaction() as tx:
            ids.append(await tx.enqueue_tx("q", payload))
            await tx.publish_tx("s", payload)
            await tx.outbox_enqueue_tx("o", payload)
        with psycopg.Connection.connect(server.dsn) as connection:
            connection.execute("select 1")
            joined = store.join(connection)
            job_id = joined.enqueue_tx("q", payload)
            job = joined.get_job_tx("q", job_id)
            assert job is not None
            assert job.payload == payload
            joined.publish_tx("s", payload)
        bodies = {job.body for job in await queue.jobs()} | {event.body for event in await stream.read_since(0, 99)}
        assert len(bodies) == 1
        assert len(await stream.read_since(0, 99)) == 8
        found = await queue.get_job(ids[-1])
        assert found is not None
        assert found.payload == payload
        handles = await queue.claim_batch("w", 99)
        assert {handle.job.body for handle in handles} == bodies
        assert len(handles) == 9
        await store.schedule("x", "@every 1s", "fired", payload)
        stop = StopToken()

        async def handler(job: Any) -> None:
            assert job.payload == payload
            stop.cancel()

        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda **named: store.run_schedules(stop, **named))
            tasks.start_soon(lambda: store.queue("fired").run_worker(handler, stop=stop))
            clock.advance(1)
            with anyio.fail_after(_BOUND):
                await stop.wait()


@one_loop
async def test_a_password_is_taken_in_its_percent_encoding(server: Server, administrator: Connection) -> None:
    password = "p%@:/?# \u00e4'\\"
    administrator.execute(psycopg.sql.SQL("create role odd login password {}").format(password))
    try:
        dsn = f"postgresql://odd:{quote(password, safe='')}@127.0.0.1:{server.port}/postgres"
        administrator.execute("create schema odd authorization odd")
        async with open_store(dsn, schema="odd") as store:
            await store.queue("q").enqueue(1)
    finally:
        administrator.execute("drop schema odd cascade; drop role odd")
