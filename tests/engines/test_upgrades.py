"""Databases that are in use: what each released version of the schema has stored is read and used by today's code.

What is stored is made by `tests.upgrades.make`, which also says what is to become of it. As long as there is one
version alone, a second one is played, to see two of them on one database.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import psycopg
import pytest

from alkstore_trio import DatabaseError, JobHandle, JobState, LockHandle, Store, open_postgres, open_sqlite
from alkstore_trio._engines import schema as versions
from alkstore_trio._engines.postgres import server
from alkstore_trio._engines.sqlite import file
from alkstore_trio._engines.sqlite.file import File, Session
from alkstore_trio._ops import Ack
from alkstore_trio.testing import ManualClock, tick
from tests.engines.places import until
from tests.upgrades.make import FOLDER, SCHEMA, dump_of_postgres, dump_of_sqlite, snapshot

pytestmark = pytest.mark.anyio

_VERSIONS = sorted(int(path.name) for path in FOLDER.iterdir() if path.name.isdigit())
_BOUND = 30.0  # seconds after which a test hangs


@attrs.frozen
class Database:
    """A file or a schema of a test's own."""

    open: Callable[..., AbstractAsyncContextManager[Store]]
    dump: Callable[[], str]  # all that is in it
    ask: Callable[[str], list[Any]]  # the rows of a statement, with `$` before the tables' names; it commits
    load: Callable[[str], None]  # what a stored dump makes
    shape: Callable[[], list[Any]]  # its tables and indexes, whatever is in them and whatever they were made by


def _of_sqlite(path: Path) -> Database:
    def connected() -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(path, isolation_level=None))

    def ask(text: str) -> list[Any]:
        with connected() as connection:
            return connection.execute(versions.prefixed(text, versions.PREFIX)).fetchall()

    def load(text: str) -> None:
        with connected() as connection:
            connection.executescript(text)

    def shape() -> list[Any]:
        assert ask("pragma integrity_check") == [("ok",)]
        return [
            ask("select name, wr, strict from pragma_table_list where name not like 'sqlite_%' order by 1"),
            ask(
                """select m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk
                from sqlite_master as m, pragma_table_xinfo(m.name) as c where m.type = 'table' order by 1, 2"""
            ),
            ask("select name, replace(sql, char(10), ' ') from sqlite_master where type = 'index' order by 1"),
        ]

    return Database(partial(open_sqlite, path), partial(dump_of_sqlite, path), ask, load, shape)


def _of_postgres(dsn: str, name: str) -> Database:
    def ask(text: str) -> list[Any]:
        with psycopg.Connection.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(versions.placed(text, name).encode())
            return cursor.fetchall() if cursor.description else []

    def load(text: str) -> None:
        with psycopg.Connection.connect(dsn, autocommit=True) as connection:
            connection.execute(text.replace(f'"{SCHEMA}"', f'"{name}"').encode())

    def shape() -> list[Any]:
        found = [
            ask(text.replace("?", f"'{name}'"))
            for text in (
                """select table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity,
                identity_generation from information_schema.columns where table_schema = ? order by 1, 2""",
                "select indexname, indexdef from pg_indexes where schemaname = ? order by 1",
                """select relname, relkind, reloptions from pg_class where relnamespace = to_regnamespace(?)
                order by 1""",
                """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
                where connamespace = to_regnamespace(?) order by 1, 2""",
                """select sequencename, data_type::text, start_value, increment_by from pg_sequences
                where schemaname = ? order by 1""",
            )
        ]
        return json.loads(json.dumps(found).replace(name, "*"))

    def dump() -> str:
        return dump_of_postgres(dsn, name).partition("delete from")[2]  # without the script, which is of today

    return Database(partial(open_postgres, dsn, schema=name), dump, ask, load, shape)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Database]]:
    """Gives a place where there is nothing yet."""
    made: list[str] = []

    def place() -> Database:
        made.append(f"{request.getfixturevalue('schema') if engine == 'postgres' else 'store'}_{len(made)}")
        if engine == "sqlite":
            return _of_sqlite(tmp_path / f"{made[-1]}.db")
        return _of_postgres(request.getfixturevalue("dsn"), made[-1])

    yield place
    if engine == "postgres":
        with psycopg.Connection.connect(request.getfixturevalue("dsn"), autocommit=True) as connection:
            for name in made:
                connection.execute(f'drop schema if exists "{name}" cascade'.encode())


# What was stored


def test_each_version_of_the_schema_has_its_stored_database() -> None:
    assert list(range(1, versions.VERSION + 1)) == _VERSIONS, "run `python -m tests.upgrades.make` at a release"


@pytest.fixture(params=_VERSIONS)
def said(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What was stored, and what is to become of it."""
    return json.loads((FOLDER / str(request.param) / "stored.json").read_text(encoding="utf-8"))


@pytest.fixture
def database(
    engine: str, new: Callable[[], Database], said: dict[str, Any], request: pytest.FixtureRequest
) -> Database:
    """Where the dump of a version was loaded."""
    version = request.node.callspec.params["said"]
    database = new()
    database.load((FOLDER / str(version) / f"{engine}.sql").read_text(encoding="utf-8"))
    assert database.ask("select version from $schema") == [(version,)]
    return database


@pytest.fixture
def clock(said: dict[str, Any]) -> ManualClock:
    """It stands where it stood."""
    return ManualClock(said["now"])


@pytest.fixture
def opened(database: Database, clock: ManualClock) -> AbstractAsyncContextManager[Store]:
    """A store on what was stored."""
    return database.open(clock=clock)


def _ack(store: Store, claim: list[int], token: int | None = None) -> Any:
    """Ack a claim of before by its token."""
    return store._engine.do(Ack("mail", ((claim[0], claim[1] if token is None else token),)))


def _notes(handles: list[JobHandle]) -> list[str]:
    return [handle.job.payload["note"] for handle in handles]


async def test_every_field_is_as_it_was_written(database: Database, said: dict[str, Any], clock: ManualClock) -> None:
    for _ in range(2):  # as it was stored, and as today's code has left it
        async with database.open(clock=clock) as store:
            assert await snapshot(store) == said["stored"]
    assert database.ask("select version from $schema") == [(versions.VERSION,)]


async def test_what_was_upgraded_has_the_shape_of_what_is_new(
    new: Callable[[], Database], database: Database, opened: AbstractAsyncContextManager[Store]
) -> None:
    fresh = new()
    async with opened, fresh.open():
        assert database.shape() == fresh.shape()


async def test_jobs_are_claimed_in_their_order_and_those_without_attempts_die(
    opened: AbstractAsyncContextManager[Store], said: dict[str, Any]
) -> None:
    async with opened as store:
        mail = store.queue("mail")
        before = {job.id: job for job in await mail.jobs(limit=1_000)}
        handles = await mail.claim_batch("new", 1_000)
        assert _notes(handles) == said["becomes"]["claimed"]
        for handle in handles:
            old = before[handle.job.id]
            assert handle.job == attrs.evolve(
                old,
                state=handle.job.state,
                attempts=old.attempts + 1,
                worker_id="new",
                claim_expires_at=said["now"] + old.visibility_timeout,
            )
        buried = [job for job in await mail.jobs(limit=1_000) if job.state != before[job.id].state]
        died = [job.payload["note"] for job in buried if job.died_at == said["now"]]
        assert died == said["becomes"]["buried at the first claim"]
        assert await mail.ack_batch(handles) == len(handles)


async def test_a_claim_of_before_is_acked_by_its_token_alone(
    opened: AbstractAsyncContextManager[Store], said: dict[str, Any]
) -> None:
    claims = said["claims"]
    async with opened as store:
        assert await _ack(store, claims["lapsed"]) == 0
        assert await _ack(store, claims["claimed twice"], token=1) == 0
        assert await _ack(store, claims["claimed twice"]) == 1
        [relapsed] = [
            handle for handle in await store.queue("mail").claim_batch("new", 9) if _notes([handle]) == ["lapsed"]
        ]
        assert await _ack(store, claims["lapsed"]) == 0
        assert await relapsed.ack()
        assert await _ack(store, claims["live"]) == 1
        assert await store.queue("mail").get_job(claims["live"][0]) is None


async def test_ids_go_on(opened: AbstractAsyncContextManager[Store], said: dict[str, Any]) -> None:
    following = said["becomes"]["next job id"]
    async with opened as store:
        assert await store.queue("mail").enqueue(0) == following
        async with store.transaction() as tx:
            assert await tx.outbox_enqueue_tx("webhooks", 0) == following + 1
        assert await store.queue("new").enqueue_many([0, 0]) == [following + 2, following + 3]


async def test_the_dead_are_revived_and_swept_as_was_said_of_them(
    opened: AbstractAsyncContextManager[Store], said: dict[str, Any], clock: ManualClock
) -> None:
    clock.advance(3600)
    swept = said["becomes"]["swept an hour later"]
    async with opened as store:
        mail = store.queue("mail")
        before = {job.payload["note"]: job.id for job in await mail.jobs(JobState.DEAD)}
        assert await mail.sweep_expired() == len(swept["deleted"]) + len(swept["buried"])
        after = {job.payload["note"]: job.id for job in await mail.jobs(JobState.DEAD)}
        assert after.keys() == {*before, *swept["buried"]} - {*swept["deleted"]}
        assert await mail.revive(before.values()) == len(before.keys() & after.keys())
        assert await mail.revive(after.values()) == len(swept["buried"])


async def test_a_message_is_delivered(opened: AbstractAsyncContextManager[Store]) -> None:
    delivered: list[str] = []

    async def deliver(handle: JobHandle) -> None:
        delivered.extend(_notes([handle]))

    async with opened as store:
        while await store.outbox("webhooks").run_once("new", deliver):
            pass
        assert delivered == ["hook"]
        assert (await store.outbox("webhooks").statistics()).dead == 1


async def test_offsets_go_on_behind_the_last_that_was_given_out_trimmed_or_not(
    opened: AbstractAsyncContextManager[Store], said: dict[str, Any]
) -> None:
    async with opened as store:
        for name, following in said["becomes"]["next offsets"].items():
            assert await store.stream(name).publish(name) == following
        orders = store.stream("orders")
        assert [event.offset for event in await orders.read_from_consumer("billing", 9)] == [4, 5]
        assert not await orders.save_offset("billing", 2)
        assert await orders.save_offset("billing", 5)
        async with orders.subscribe("it's é💡") as events:
            with anyio.fail_after(_BOUND):
                assert (await events.receive()).payload == "orders"


async def test_a_hold_of_before_is_renewed_by_its_token_and_new_tokens_are_greater(
    engine: str, opened: AbstractAsyncContextManager[Store], said: dict[str, Any]
) -> None:
    locks = said["locks"][engine]
    async with opened as store:
        held, lapsed, lost, taken = (
            LockHandle(store._engine, name.partition(",")[0], *locks[name])
            for name in ("held", "lapsed", "taken over", "taken over, now")
        )
        assert await store.try_lock("held", "another", 1) is None
        again = await store.try_lock("held", held.owner, 1)
        assert again is not None
        assert again.token == held.token
        assert await held.renew(60)
        assert not await lapsed.renew(60)
        assert not await lost.renew(60)
        assert not await lost.release()
        assert await taken.renew(60)
        tokens = [token for _, token in locks.values()]
        for name in ("lapsed", "released", "never seen"):
            lock = await store.try_lock(name, "another", 60)
            assert lock is not None
            assert lock.token > max(tokens)
            tokens.append(lock.token)
        assert not await lapsed.release()
        assert await held.release()


async def test_schedules_fire_on_the_grid_that_they_had(
    opened: AbstractAsyncContextManager[Store], said: dict[str, Any], clock: ManualClock
) -> None:
    becomes = said["becomes"]
    async with opened as store:
        await store.schedule("nightly", "@every 24h", "reports", {"note": "nightly"}, max_attempts=7)
        assert await tick(store) == sum(becomes["fires"].values())
        for name, fires in becomes["fires"].items():
            jobs = await store.queue(name).jobs()
            assert [(job.run_at, job.payload["note"]) for job in jobs] == [(said["now"], "odd")] * fires
        states = await store.schedules()
        assert {state.schedule.name: state.next_at for state in states} == becomes["next boundaries"]
        clock.set(becomes["next boundaries"]["nightly"])
        await tick(store)
        [report] = await store.queue("reports").jobs()
        assert (report.payload, report.max_attempts) == ({"note": "nightly"}, 7)


# Two versions on one database

_ADDED = """
alter table $jobs add column remark text;
create table $remarks(
 name text primary key
);
"""
_BROKEN = """
create table $remarks(
 name text primary key
);
alter table $nowhere add column remark text;
"""


@pytest.fixture
def today(new: Callable[[], Database]) -> Database:
    """A place of which nothing is known but today's version."""
    return new()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Plays that one more version was released, with a step that cannot be run twice; or takes that back."""
    added = versions.VERSION + 1

    def release(step: str | None = _ADDED) -> None:
        monkeypatch.undo()
        if step is not None:
            for steps in ("_SQLITE", "_POSTGRES"):
                monkeypatch.setattr(versions, steps, (*getattr(versions, steps), step))
            for module in (versions, file, server):
                monkeypatch.setattr(module, "VERSION", added)

    yield release
    monkeypatch.undo()


def _version(database: Database) -> int:
    [(version,)] = database.ask("select version from $schema")
    return version


async def test_an_older_database_is_upgraded_under_an_open_store_which_goes_on(
    today: Database, released: Callable[..., None]
) -> None:
    clock = ManualClock()
    async with today.open(clock=clock) as older:
        queue, stream = older.queue("q"), older.stream("s")
        await queue.enqueue_many(["a", "b"])
        await stream.publish("one")
        claim = await queue.claim("w")
        lock = await older.try_lock("l", "o", 600)
        assert claim is not None
        assert lock is not None
        before = await snapshot(older)
        released()
        async with older.listen("c") as wakes, today.open(clock=clock) as newer:
            assert _version(today) == versions.VERSION
            assert today.ask("select remark from $jobs") == [(None,), (None,)]
            assert await snapshot(newer) == before == await snapshot(older)
            async with newer.listen("d") as answers:
                await newer.notify("c")
                await older.notify("d")
                with anyio.fail_after(_BOUND):
                    await wakes.receive()
                    await answers.receive()
            assert await claim.ack()
            assert await lock.renew(600)
            assert await stream.publish("two") == 2
            assert await newer.stream("s").publish("three") == 3
            third = await newer.queue("q").enqueue("c")
            claims = [await older.queue("q").claim("w"), await newer.queue("q").claim("w")]
            assert [handle and handle.job.payload for handle in claims] == ["b", "c"]
            async with older.transaction() as tx:
                assert await tx.enqueue_tx("q", "d") not in (1, 2, third)
            assert len(await queue.jobs()) == 3


async def test_many_stores_that_open_an_older_database_at_once_upgrade_it_once(
    today: Database, released: Callable[..., None]
) -> None:
    async with today.open() as store:
        await store.queue("q").enqueue(0)
    released()
    ids: list[int] = []

    async def open_one() -> None:
        async with today.open() as store:
            ids.append(await store.queue("q").enqueue(0))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(open_one)
    assert len(set(ids)) == 6
    assert _version(today) == versions.VERSION
    assert today.ask("select count(*), count(remark) from $jobs") == [(7, 0)]


async def test_a_file_that_somebody_upgrades_between_the_look_and_the_lock_is_taken_as_it_is_then(
    tmp_path: Path, released: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = _of_sqlite(tmp_path / "store.db")
    async with database.open() as store:
        await store.queue("q").enqueue(0)
    released()
    look, looked = File._version, []

    def look_and_let_another_upgrade(self: File, session: Session) -> int:
        found = look(self, session)
        looked.append(found)
        if len(looked) == 1:
            with closing(self.connect()) as another:
                self.prepare(another)
        return found

    monkeypatch.setattr(File, "_version", look_and_let_another_upgrade)
    async with database.open() as store:
        assert await store.queue("q").enqueue(0) == 2
    older, newer = versions.VERSION - 1, versions.VERSION
    assert looked == [older, older, older, newer]


async def test_an_upgrade_that_fails_leaves_everything_as_it_was(
    today: Database, released: Callable[..., None]
) -> None:
    async with today.open() as store:
        await store.queue("q").enqueue(0)
    before, shape = today.dump(), today.shape()
    released(_BROKEN)
    with pytest.raises(DatabaseError, match="nowhere") as caught:
        async with today.open():
            pytest.fail("opened")
    assert not caught.value.transient
    assert (today.dump(), today.shape()) == (before, shape)
    released(None)
    async with today.open() as store:
        assert await store.queue("q").enqueue(1) == 2
    released()
    async with today.open() as store:
        assert len(await store.queue("q").jobs()) == 2


async def test_a_newer_database_is_refused_with_all_that_is_in_it_as_it_was(
    today: Database, released: Callable[..., None]
) -> None:
    released()
    async with today.open() as newer:
        await newer.queue("q").enqueue({"é": 1})
        await newer.stream("s").publish(1)
        await newer.schedule("x", "@every 1h", "q", 0)
        before, shape = today.dump(), today.shape()
        theirs = versions.VERSION
        released(None)
        with pytest.raises(
            DatabaseError, match=rf"version {theirs}, newer than .* {theirs - 1}: use a newer"
        ) as caught:
            async with today.open():
                pytest.fail("opened")
        assert not caught.value.transient
        assert not caught.value.retryable
        assert (today.dump(), today.shape()) == (before, shape)
        assert await newer.queue("q").enqueue(2) == 2


async def test_an_upgrade_waits_for_a_transaction_in_its_way_and_gives_up_in_time(
    engine: str, today: Database, released: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: dict[str, Any] = {"busy_timeout" if engine == "sqlite" else "lock_timeout": 0.1}
    upgraded = anyio.Event()
    prepare, attempts = File.prepare, []

    def counted(self: File, session: Session) -> None:
        attempts.append(session)
        prepare(self, session)

    async def upgrade() -> None:
        async with today.open():
            upgraded.set()

    async with today.open() as older, anyio.create_task_group() as tasks:
        async with older.transaction() as tx:
            await tx.publish_tx("s", 1)
            await tx.enqueue_tx("q", 0)
            released()
            with pytest.raises(DatabaseError) as caught:
                async with today.open(**patience):
                    pytest.fail("opened")
            assert caught.value.transient
            assert _version(today) == versions.VERSION - 1
            monkeypatch.setattr(File, "prepare", counted)  # which `released` would have taken back
            tasks.start_soon(upgrade)
            if engine == "sqlite":
                await until(lambda: len(attempts) > 1)  # the first was in vain
            else:
                waiting = "select 1 from pg_locks where not granted and relation = '$jobs'::regclass"
                await until(lambda: today.ask(re.sub("'\\$jobs'", "$'jobs'", waiting)))
            assert not upgraded.is_set()
        with anyio.fail_after(_BOUND):
            await upgraded.wait()
        assert _version(today) == versions.VERSION
        assert (await older.queue("q").statistics()).pending == 1
