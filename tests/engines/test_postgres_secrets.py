"""A password of a conninfo, however it is written there, is in nothing that anybody is shown.

Not in an error, whatever it is chained to, not in a log record, not in the ``repr`` of what a store is made of: over
all the ways in which opening one fails, and those in which one that is open does.
"""

import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import psycopg
import pytest
from psycopg import sql

from alkstore_trio import AlkstoreError, DatabaseError, Store, open_postgres, open_store
from alkstore_trio.testing.conformance.kit import anyio_backend
from tests.engines.places import until
from tests.servers import Server

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

Connection = psycopg.Connection[Any]

one_loop = pytest.mark.parametrize("anyio_backend", ["trio"])  # where the loop makes no difference

_SECRET = "geheim"  # of letters alone, so that no way of writing it down changes it
_PASSWORD = f"{_SECRET} %@:/?#&=+\u00e4'\\\"{_SECRET}"
_BOUND = 20.0  # seconds after which a test hangs


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that asks for a password over TCP."""
    with Server(tcp=True) as server:
        with psycopg.connect(server.dsn, autocommit=True) as administrator:
            administrator.execute(sql.SQL("create role app login password {}").format(_PASSWORD))
            administrator.execute("create schema app authorization app; create schema taken authorization app")
            administrator.execute("create table taken.schema(mine int); alter table taken.schema owner to app")
            administrator.execute(sql.SQL("create role idle nologin password {}").format(_PASSWORD))
            administrator.execute(sql.SQL("create role crowded login connection limit 0 password {}").format(_PASSWORD))
        server.ask_for_passwords()
        yield server


@pytest.fixture
def administrator(server: Server) -> Iterator[Connection]:
    with psycopg.Connection.connect(server.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No record of any logger's has it, at any level, in its message, its arguments or its traceback."""
    caplog.set_level(logging.DEBUG)
    yield
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    for record in records:
        assert _SECRET not in f"{logging.Formatter().format(record)} {vars(record)}"


def _all_of(error: BaseException) -> str:
    """All that is shown of an error and of those that it is chained to."""
    parts, waiting, seen = [], [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        parts += [str(one), repr(one), repr(one.args), *getattr(one, "__notes__", ())]
        parts += traceback.format_exception(one)
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        if isinstance(one, psycopg.Error):
            parts += [str(one.diag.message_primary), str(one.diag.message_detail), repr(one.pgconn)]
    return "\n".join(parts)


async def _failure(*arguments: Any, opener: Callable[..., Any] = open_postgres, **options: Any) -> str:
    """What is shown of opening a store that cannot be opened."""
    with pytest.raises((DatabaseError, ValueError)) as caught:
        async with opener(*arguments, **options):
            pytest.fail("opened")
    shown = _all_of(caught.value)
    assert _SECRET not in shown
    return shown


# How a conninfo may be written


def _url(parameters: dict[str, str]) -> str:
    rest = {
        name: value for name, value in parameters.items() if name not in ("host", "port", "user", "password", "dbname")
    }
    where = "{user}:{password}@{host}:{port}/{dbname}".format(**{k: quote(v, safe="") for k, v in parameters.items()})
    return f"postgresql://{where}?{'&'.join(f'{name}={quote(value)}' for name, value in rest.items())}"


def _url_with_all_behind(parameters: dict[str, str]) -> str:
    return "postgresql://?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())


def _keywords(parameters: dict[str, str]) -> str:
    escaped = {name: value.replace("\\", r"\\").replace("'", r"\'") for name, value in parameters.items()}
    return " ".join(f"{name}='{value}'" for name, value in escaped.items())


_FORMS = [_url, _url_with_all_behind, _keywords]
each_form = pytest.mark.parametrize("form", _FORMS, ids=["url", "url with all behind", "keywords"])


def _parameters(server: Server, **changed: str) -> dict[str, str]:
    right = {"host": "127.0.0.1", "port": str(server.port), "user": "app", "password": _PASSWORD, "dbname": "postgres"}
    return right | changed


@one_loop
@each_form
async def test_each_form_is_one_that_leads_there(server: Server, form: Callable[..., str]) -> None:
    dsn = form(_parameters(server))
    assert _SECRET in dsn
    async with open_postgres(dsn, schema="app", listen_dsn=dsn) as store:
        await store.queue("q").enqueue(1)


# Opening


_WRONG: dict[str, dict[str, str]] = {
    "password": {"password": f"{_PASSWORD}x"},
    "user": {"user": "nobody"},
    "a role that may not log in": {"user": "idle"},
    "a role that has no connection left": {"user": "crowded"},
    "database": {"dbname": "missing"},
    "port": {"port": "1"},
    "port that is a word": {"port": "port"},
    "host": {"host": "nowhere.invalid"},
    "hostaddr": {"hostaddr": "1.2.3.4.5"},
    "hosts, more than ports": {"host": "127.0.0.1,127.0.0.1,127.0.0.1", "port": "1,1"},
    "socket": {"host": "/nowhere"},
    "keyword": {"passwort": _PASSWORD},
    "sslmode": {"sslmode": "sometimes"},
    "sslmode, where there is no TLS": {"sslmode": "require"},
    "sslrootcert": {"sslmode": "verify-full", "sslrootcert": "/nowhere"},
    "sslpassword": {"sslmode": "require", "sslkey": "/nowhere", "sslcert": "/nowhere", "sslpassword": _PASSWORD},
    "channel_binding": {"channel_binding": "require"},
    "require_auth": {"require_auth": "none"},
    "target_session_attrs": {"target_session_attrs": "standby"},
    "target_session_attrs that is a word": {"target_session_attrs": "best"},
    "connect_timeout": {"connect_timeout": "soon"},
    "options": {"options": "-c nothing=1"},
    "gssencmode": {"gssencmode": "never mind"},
    "service": {"service": "missing"},
    "a conninfo in the place of a name": {"dbname": f"postgresql://app:{_SECRET}@127.0.0.1:1/db"},
    "keywords in the place of a name": {"dbname": f"host=127.0.0.1 port=1 password={_SECRET}"},
}


@one_loop
@each_form
@pytest.mark.parametrize("wrong", _WRONG)
async def test_a_conninfo_that_leads_nowhere_shows_no_password(
    server: Server, form: Callable[..., str], wrong: str
) -> None:
    dsn = form(_parameters(server, **_WRONG[wrong]))
    await _failure(dsn)
    await _failure(form(_parameters(server)), schema="app", listen_dsn=dsn)
    if not dsn.startswith("host"):
        await _failure(dsn, opener=open_store)


_MALFORMED = [
    f"postgresql://app:{_SECRET}@x@127.0.0.1/db",
    f"postgresql://app:{_SECRET}/x@127.0.0.1/db",
    f"postgresql://app:{_SECRET}?x@127.0.0.1/db",
    f"postgresql://app:{_SECRET}#x@127.0.0.1/db",
    f"postgresql://app:x:{_SECRET}@127.0.0.1/db",
    f"postgresql://app:{_SECRET}%zz@127.0.0.1/db",
    f"postgresql://app:{_SECRET}%00@127.0.0.1/db",
    f"postgresql://app:{_SECRET} @127.0.0.1:1/db",
    f"postgresql://app:{_SECRET}@[::1/db",
    f"postgresql://127.0.0.1:1/db?password={_SECRET}&password",
    f"postgresql://127.0.0.1:1/db?password={_SECRET}&x={_SECRET}",
    f"postgres:app:{_SECRET}@127.0.0.1:1/db",
    f"host=127.0.0.1 port=1 password='{_SECRET}",
    f"host=127.0.0.1 port=1 password={_SECRET} x",
    f"host=127.0.0.1 port=1 {_SECRET}=password",
    f"host=127.0.0.1 port=1 password = {_SECRET} {_SECRET}",
    f"host=127.0.0.1 port=1 connect_timeout={_SECRET}",
    f"host=127.0.0.1 port={_SECRET} password=x",
    f"password={_SECRET}@127.0.0.1:1/db port=1 host=127.0.0.1",
    f"{_SECRET}",
    f"mysql://app:{_SECRET}@127.0.0.1/db",
]


@one_loop
@pytest.mark.parametrize("number", range(len(_MALFORMED)))
async def test_a_conninfo_that_is_malformed_is_not_quoted(
    server: Server, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    dsn = _MALFORMED[number]
    await _failure(dsn)
    await _failure(_keywords(_parameters(server)), schema="app", listen_dsn=dsn)
    await _failure(dsn, opener=open_store)


@one_loop
@pytest.mark.parametrize("how", ["in the conninfo", "in the environment"])
async def test_a_password_of_a_passfile_or_a_service_is_not_shown_either(
    server: Server, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passfile, services = tmp_path / "passwords", tmp_path / "services"
    passfile.write_text(f"127.0.0.1:{server.port}:*:app:{_SECRET}x\n*:*:*\n{_SECRET}\n")
    passfile.chmod(0o600)
    services.write_text(
        f"[shop]\nhost=127.0.0.1\nport={server.port}\nuser=app\npassword={_SECRET}x\n[bad]\n{_SECRET}\n"
    )
    where = f"host=127.0.0.1 port={server.port} dbname=postgres user=app"
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    if how == "in the conninfo":
        await _failure(f"{where} passfile={passfile}")
        assert "password" in await _failure("service=shop dbname=postgres")
        await _failure("service=bad dbname=postgres")
    else:
        monkeypatch.setenv("PGPASSFILE", str(passfile))
        assert "password" in await _failure(where)
        monkeypatch.setenv("PGPASSWORD", f"{_SECRET}x")
        assert "password" in await _failure(where)
        monkeypatch.setenv("PGSERVICE", "bad")
        await _failure(where)
    passfile.chmod(0o644)
    await _failure(f"{where} passfile={passfile}")
    passfile.unlink()
    os.mkdir(passfile)
    await _failure(f"{where} passfile={passfile}")


@one_loop
@each_form
async def test_a_schema_that_cannot_be_had_shows_no_password(
    server: Server, administrator: Connection, form: Callable[..., str]
) -> None:
    dsn = form(_parameters(server))
    assert "use another schema" in await _failure(dsn, schema="taken")
    assert "grant" in await _failure(dsn, schema="not there")
    async with open_postgres(dsn, schema="app"):
        pass
    administrator.execute("update app.schema set version = 99")
    assert "version 99" in await _failure(dsn, schema="app")
    administrator.execute("update app.schema set version = 1")
    administrator.execute("drop table app.locks; drop sequence app.tokens")
    try:
        async with open_postgres(dsn, schema="app") as store:
            with pytest.raises(DatabaseError) as caught:
                await store.try_lock("l", "o", 1)
            assert _SECRET not in _all_of(caught.value)
    finally:
        administrator.execute("drop schema app cascade; create schema app authorization app")


# Running


def _parts(root: object) -> list[object]:
    """What a store is made of, as far as it is the library's own."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += part
        elif type(part).__module__.startswith("alkstore_trio") and id(part) not in found:
            found[id(part)] = part
            slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*slots, *getattr(part, "__dict__", ())]
            waiting += [getattr(part, name) for name in names if hasattr(part, name) and not name.startswith("__")]
    return list(found.values())


@one_loop
@each_form
async def test_nothing_that_an_open_store_is_made_of_shows_it(server: Server, form: Callable[..., str]) -> None:
    dsn = form(_parameters(server))
    async with open_postgres(dsn, schema="app", listen_dsn=dsn) as store, store.begin_tx() as tx:
        await tx.enqueue_tx("q", 1)
        await store.notify("c")
        handle_on = [store.queue("q"), store.stream("s"), store.outbox("o"), tx]
        parts = [part for root in [store, *handle_on] for part in _parts(root)]
        kinds = {type(part).__name__ for part in parts}
        assert {
            "Store",
            "PostgresEngine",
            "Server",
            "Pool",
            "Ears",
            "Voice",
            "AsyncAnyioConnection",
            "PostgresTx",
        } <= kinds
        for part in parts:
            assert _SECRET not in f"{part!r} {part}", type(part)


async def _kill(administrator: Connection) -> None:
    administrator.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app'")


async def _verbs(store: Store) -> list[Callable[[], Awaitable[object]]]:
    handle = await store.queue("q").claim("w")
    assert handle is not None

    async def commit() -> None:
        async with store.transaction() as tx:
            await tx.publish_tx("s", 1)

    async def listen() -> None:
        async with store.stream("s").subscribe("c") as events:
            events.receive_nowait()

    return [
        store.queues,
        lambda: store.queue("q").enqueue(1),
        lambda: store.stream("s").publish(1),
        lambda: store.try_lock("l", "o", 1),
        partial(store.run_schedules, standby=False),
        lambda: store.notify("c"),
        handle.ack,
        commit,
        listen,
    ]


@each_form
async def test_no_failure_of_a_store_that_is_open_shows_it(
    server: Server, administrator: Connection, form: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    dsn = form(_parameters(server))
    shown = []
    async with open_postgres(dsn, schema="app", listen_dsn=dsn, lock_timeout=0.05) as store:
        await store.queue("q").enqueue_many(range(9))
        for verb in await _verbs(store):
            async with store.begin_tx() as tx:
                await tx.enqueue_tx("q", 1)
                await _kill(administrator)
                for again in (verb, tx.commit):
                    with suppress(anyio.WouldBlock), anyio.move_on_after(1):
                        try:
                            await again()
                        except AlkstoreError as error:
                            shown.append(_all_of(error))
        async with store.begin_tx() as tx:
            with pytest.raises(DatabaseError) as caught:
                await tx.execute("select nothing from nowhere where x = %s", ["y"])
            shown.append(_all_of(caught.value))
        with psycopg.Connection.connect(server.dsn) as another:
            another.execute("lock table app.jobs")
            with pytest.raises(DatabaseError) as caught:
                await store.queue("q").enqueue(1)
            shown.append(_all_of(caught.value))

        # As if the password had been changed under it: it has to connect again, and cannot
        administrator.execute("alter role app password 'another'")
        told = len(caplog.records)
        try:
            await _kill(administrator)
            for verb in (store.queues, lambda: store.queue("q").enqueue(1)):
                with pytest.raises(DatabaseError) as caught:
                    await verb()
                shown.append(_all_of(caught.value))
            await until(lambda: any("cannot listen" in record.getMessage() for record in caplog.records[told:]))
        finally:
            administrator.execute(sql.SQL("alter role app password {}").format(_PASSWORD))
    assert len(shown) > 9
    assert all(_SECRET not in text for text in shown)
