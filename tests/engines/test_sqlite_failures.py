"""What fails in the file: the n-th statement, a full disk. A verb did all or nothing, and the store works on."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from alkstore_trio import DatabaseError, Store, Tx, open_sqlite
from alkstore_trio._engines.sqlite import file, writer
from alkstore_trio.testing import ManualClock, hold_lease, tick
from tests.engines.books import balances, check_unlocked
from tests.engines.faults import places

pytestmark = pytest.mark.anyio

_BOUND = 20.0  # seconds that nothing here takes
_UNCOUNTED = {"alkstore_counters", "alkstore_wakes"}  # gaps, and hints


class Faults:
    """What fails next of a store's connections: the n-th statement from now, or so many rollbacks of its writer."""

    def __init__(self) -> None:
        self.left = self.rollbacks = 0

    def before(self, text: str) -> None:
        if self.rollbacks and text == "rollback" and threading.current_thread().name == "alkstore writer":
            self.rollbacks -= 1
            raise sqlite3.OperationalError("made to fail: a rollback")
        if self.left and text not in ("rollback", "pragma wal_checkpoint(passive)"):
            self.left -= 1
            if not self.left:
                raise sqlite3.OperationalError(f"made to fail: {text}")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    faults = Faults()

    class Cursor(sqlite3.Cursor):
        def execute(self, text: str, *params: Any) -> "Cursor":
            faults.before(text)
            super().execute(text, *params)
            return self

        def executemany(self, text: str, *params: Any) -> "Cursor":
            faults.before(text)
            super().executemany(text, *params)
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    class Driver:
        def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
            return sqlite3.connect(*arguments, factory=Connection, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(sqlite3, name)

    monkeypatch.setattr(file, "sqlite3", Driver())
    yield faults
    faults.left = 0


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[tuple[Store, ManualClock]]:
    clock = ManualClock()
    async with open_sqlite(path, durability="normal", clock=clock) as store:
        yield store, clock


def _all_that_is(path: Path) -> dict[str, list[Any]]:
    """Every row of every table that is not a counter."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {
            table: connection.execute(f"select * from {table} order by 1, 2").fetchall()
            for table in tables
            if table not in _UNCOUNTED and table != "alkstore_schema"
        }


Verb = Callable[[], Awaitable[object]]


async def _enqueue(store: Store, clock: ManualClock) -> Verb:
    return lambda: store.queue("q").enqueue_many(range(3))


async def _enqueue_past_the_block(store: Store, clock: ManualClock) -> Verb:
    return lambda: store.queue("q").enqueue_many(range(600))


async def _claim(store: Store, clock: ManualClock) -> Verb:
    """One that buries, promotes and files."""
    queue = store.queue("q", visibility_timeout=5, max_attempts=1)
    await queue.enqueue("spent")
    await queue.claim("w")
    await queue.enqueue("expired", expires=1, priority=9)
    await queue.enqueue("delayed", delay=3)
    await queue.enqueue("ready")
    clock.advance(6)
    return lambda: queue.claim_batch("w", 5)


async def _sweep(store: Store, clock: ManualClock) -> Verb:
    queue = store.queue("q", dead_retention=1)
    await queue.enqueue_many(range(2), expires=1)
    clock.advance(2)
    await queue.sweep_expired()
    await queue.enqueue_many(range(2), expires=1)
    clock.advance(2)
    return queue.sweep_expired


async def _handle(store: Store, clock: ManualClock, name: str, *arguments: Any) -> Verb:
    await store.queue("q").enqueue("x")
    handle = await store.queue("q").claim("w")
    clock.advance(1)
    return lambda: getattr(handle, name)(*arguments)


async def _tick(store: Store, clock: ManualClock) -> Verb:
    await store.schedule("a", "@every 1s", "q", "x")
    await store.schedule("b", "@every 9s", "q", "x")
    clock.advance(5)
    return lambda: tick(store)


async def _transaction(store: Store, clock: ManualClock) -> Verb:
    async def effects(tx: Tx) -> None:
        await tx.enqueue_tx("q", 1)
        await tx.outbox_enqueue_tx("o", 1)
        await tx.save_offset_tx("s", "consumer", 1)
        await tx.notify_tx("c")

    return lambda: store.with_tx(effects)


async def _writing_transaction(store: Store, clock: ManualClock) -> Verb:
    async def effects(tx: Tx) -> None:
        await tx.enqueue_tx("q", 1)
        await tx.publish_tx("s", 1)
        await tx.execute("create table if not exists mine(x, y)")
        await tx.execute("insert into mine values (?, ?)", (1, 2))
        await tx.enqueue_tx("q", 2)
        await tx.save_offset_tx("s", "consumer", 1)

    return lambda: store.with_tx(effects)


async def _schedule(store: Store, clock: ManualClock) -> Verb:
    return lambda: store.schedule("n", "@every 1s", "q", "x")


async def _lock(store: Store, clock: ManualClock) -> Verb:
    return lambda: store.try_lock("l", "owner", 9)


async def _publish(store: Store, clock: ManualClock) -> Verb:
    return lambda: store.stream("s").publish_many(range(3))


_VERBS: dict[str, Callable[[Store, ManualClock], Awaitable[Verb]]] = {
    "enqueue_many": _enqueue,
    "enqueue_many past the reserved ids": _enqueue_past_the_block,
    "claim_batch": _claim,
    "sweep_expired": _sweep,
    "ack": lambda store, clock: _handle(store, clock, "ack"),
    "retry": lambda store, clock: _handle(store, clock, "retry", "text"),
    "heartbeat": lambda store, clock: _handle(store, clock, "heartbeat"),
    "release": lambda store, clock: _handle(store, clock, "release"),
    "publish_many": _publish,
    "try_lock": _lock,
    "schedule": _schedule,
    "a transaction": _transaction,
    "a transaction that takes the writer": _writing_transaction,
}


@pytest.mark.parametrize("arrange", _VERBS.values(), ids=_VERBS)
async def test_a_verb_whose_nth_statement_fails_did_all_or_nothing(
    tmp_path: Path, faults: Faults, arrange: Callable[[Store, ManualClock], Awaitable[Verb]]
) -> None:
    for n in places("a verb"):
        path = tmp_path / f"{n}.db"
        async with balances(f"statement {n}"), _opened(path) as (store, clock):
            verb = await arrange(store, clock)
            before = _all_that_is(path)
            faults.left = n
            failure: DatabaseError | None = None
            try:
                await verb()
            except DatabaseError as error:
                failure = error
            reached, faults.left = not faults.left, 0
            if failure is not None:
                assert isinstance(failure.__cause__, sqlite3.OperationalError)
                assert _all_that_is(path) == before, f"the statement number {n} failed"
            await verb()
            assert _all_that_is(path) != before
            await store.queue("afterwards").enqueue("works")
        if not reached:
            assert n > 2
            break


async def test_a_verb_whose_rollback_fails_too_did_nothing_and_the_store_works_on(
    tmp_path: Path, faults: Faults
) -> None:
    path = tmp_path / "a.db"
    async with balances("the store"), _opened(path) as (store, _):
        with closing(sqlite3.connect(path)) as other:
            other.execute(
                "create trigger picky after insert on alkstore_events begin select raise(abort, 'made to fail'); end"
            )
        before = _all_that_is(path)
        faults.rollbacks = 1
        with pytest.raises(DatabaseError, match="made to fail"):
            await store.stream("s").publish("x")
        assert _all_that_is(path) == before
        await store.queue("afterwards").enqueue("works")
        assert not faults.rollbacks
        check_unlocked(path, "afterwards")


async def test_a_failed_tick_has_fired_each_schedule_wholly_or_not_at_all(tmp_path: Path, faults: Faults) -> None:
    for n in places("a tick"):
        path = tmp_path / f"{n}.db"
        async with _opened(path) as (store, clock):
            verb = await _tick(store, clock)
            faults.left = n
            with suppress(DatabaseError):
                await verb()
            reached, faults.left = not faults.left, 0
            lease = await hold_lease(store, "another", 1)
            if lease is not None:
                await lease.release()
            fired = (await store.queue("q").statistics()).pending
            [a, b] = await store.schedules()
            assert (fired, a.next_at > clock()) in [(0, False), (5, True)], f"the statement number {n} failed"
            assert b.next_at > clock()
        if not reached:
            break


async def test_one_that_fails_does_not_take_its_neighbours_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_GROUP", 3_600.0)  # all of them in one
    async with _opened(tmp_path / "a.db") as (store, _):
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            other.execute(
                "create trigger picky before insert on alkstore_events when new.body = '7' "
                "begin select raise(abort, 'no seven'); end"
            )
            other.execute("begin immediate")  # so that all of them wait together
            failed: list[int] = []
            landed: list[int] = []

            async def publish(number: int) -> None:
                try:
                    await store.stream("s").publish(number)
                    landed.append(number)
                except DatabaseError:
                    failed.append(number)

            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(publish, number)
                await anyio.wait_all_tasks_blocked()
                other.execute("rollback")
        kept = [event.payload for event in await store.stream("s").read_since(0, 100)]
    assert failed == [7]
    assert sorted(landed) == sorted(kept) == [number for number in range(12) if number != 7]


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with _opened(path) as (store, _):
        queue = store.queue("q")
        await queue.enqueue("small")
        session = store._engine._writer._session  # type: ignore[attr-defined]  # what is tested is SQLite's
        [(pages,)] = session.query("pragma page_count")
        session.query(f"pragma max_page_count = {pages + 4}")
        before = _all_that_is(path)
        with pytest.raises(DatabaseError, match="full") as caught:
            await queue.enqueue("x" * 2**20)
        assert caught.value.transient
        assert _all_that_is(path) == before
        handle = await queue.claim("w")
        assert handle is not None
        assert await handle.ack()
        async with anyio.create_task_group() as tasks:  # a neighbour in the same group

            async def too_large() -> None:
                with pytest.raises(DatabaseError, match="full"):
                    await queue.enqueue("x" * 2**20)

            tasks.start_soon(too_large)
            tasks.start_soon(queue.enqueue, "fits")
        session.query("pragma max_page_count = 1000000")
        await queue.enqueue("x" * 2**20)
        assert (await queue.statistics()).pending == 2


async def test_a_transaction_whose_statement_failed_can_only_be_rolled_back(tmp_path: Path) -> None:
    async with _opened(tmp_path / "a.db") as (store, _):
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", 1)
            with pytest.raises(DatabaseError, match="no such table"):
                await tx.execute("insert into missing values (1)")
            for verb in (lambda: tx.enqueue_tx("q", 2), lambda: tx.publish_tx("s", 2), tx.commit):
                with pytest.raises(RuntimeError, match="rolled back"):
                    await verb()
            await store.queue("q").enqueue("the writer is free")
            await tx.rollback()
        assert [job.payload for job in await store.queue("q").jobs()] == ["the writer is free"]


@pytest.mark.parametrize(
    ("sql", "params", "error"),
    [
        ("commit", (), ValueError),
        ("  -- so\n /* hidden */ ; RollBack", (), ValueError),
        ("savepoint x", (), ValueError),
        ("\ufeffcommit", (), ValueError),
        ("select ?", (), ValueError),
        ("select ?", (object(),), ValueError),
        ("select 1; select 2", (), ValueError),
        (b"select 1", (), TypeError),
    ],
)
async def test_a_statement_that_is_refused_leaves_the_transaction_usable(
    tmp_path: Path, sql: Any, params: Any, error: type[Exception]
) -> None:
    async with _opened(tmp_path / "a.db") as (store, _):
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", 1)
            with pytest.raises(error):
                await tx.execute(sql, params)
            assert await tx.execute("select :a + 1", {"a": 1}) == [(2,)]
            await tx.enqueue_tx("q", 2)
            await tx.commit()
        assert [job.payload for job in await store.queue("q").jobs()] == [1, 2]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize(
    ("changes", "shows", "as_it_was"),
    [
        ("pragma recursive_triggers = on", "pragma recursive_triggers", [(0,)]),
        ("/* so */ PRAGMA locking_mode = exclusive", "pragma locking_mode", [("normal",)]),
        ("create temp table jobs(x)", "select name from sqlite_temp_schema", []),
        ("attach ':memory:' as mine", "select name from pragma_database_list where name = 'mine'", []),
    ],
)
async def test_what_a_caller_changes_in_the_connection_ends_with_his_transaction(
    tmp_path: Path, changes: str, shows: str, as_it_was: list[Any], ends: str
) -> None:
    async with _opened(tmp_path / "a.db") as (store, _):
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", "first")
            await tx.execute(changes)
            if ends == "commit":
                await tx.commit()
        await store.queue("q").enqueue("second")
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)) as other:
            other.execute("begin immediate")
        async with store.begin_tx() as tx:
            assert await tx.execute(shows) == as_it_was
        kept = [job.payload for job in await store.queue("q").jobs()]
        assert kept == (["first", "second"] if ends == "commit" else ["second"])


async def test_a_transaction_that_ended_while_another_task_was_taking_the_writer_lets_go_of_it(tmp_path: Path) -> None:
    async with _opened(tmp_path / "a.db") as (store, _), anyio.create_task_group() as tasks:
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            published = anyio.Event()

            async def publish(tx: Tx) -> None:
                await tx.publish_tx("s", 1)
                published.set()

            async with store.begin_tx() as tx:
                tasks.start_soon(publish, tx)
                await anyio.wait_all_tasks_blocked()
            other.execute("rollback")
        with anyio.fail_after(20):
            await published.wait()
            await store.queue("q").enqueue("the writer is free")
        assert await store.stream("s").read_since(0, 9) == []


async def test_a_long_statement_is_broken_off_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    async with _opened(tmp_path / "a.db") as (store, _):
        with anyio.move_on_after(0.05) as scope:
            async with store.transaction() as tx:
                await tx.enqueue_tx("q", 1)
                await tx.execute(endless)
        assert scope.cancelled_caught
        assert await store.queue("q").enqueue("the writer is free")
        assert [job.payload for job in await store.queue("q").jobs()] == ["the writer is free"]


async def test_a_statement_that_is_broken_off_too_late_takes_no_other_with_it(tmp_path: Path) -> None:
    asked, submitted, runs, goes_on = (threading.Event() for _ in range(4))

    def fail() -> None:
        asked.set()
        submitted.wait(_BOUND)
        raise RuntimeError

    def run() -> int:
        runs.set()
        goes_on.wait(_BOUND)
        return 1

    counting = (
        "with recursive n(i) as (select run() union all select i + 1 from n where i < 1000) select count(*) from n"
    )
    async with _opened(tmp_path / "a.db") as (store, _):
        writer = store._engine._writer  # type: ignore[attr-defined]  # what is tested is SQLite's
        await store.queue("q").enqueue("first")  # so that there are ids, and nobody asks for any
        writer._session.connection.create_function("fail", 0, fail)
        writer._session.connection.create_function("run", 0, run)
        scope = anyio.CancelScope()

        async def failing() -> None:
            with scope:
                async with store.begin_tx() as tx:
                    await tx.execute("select fail()")
            goes_on.set()

        async def bystanding() -> None:
            async with store.transaction() as tx:
                await tx.enqueue_tx("q", "bystander")
                assert await tx.execute(counting) == [(1000,)]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(failing)
            assert await anyio.to_thread.run_sync(asked.wait, _BOUND)
            tasks.start_soon(bystanding)
            while writer._inbox.empty():  # noqa: ASYNC110  # the writer, which would say so, is busy
                await anyio.sleep(0.001)
            submitted.set()
            assert runs.wait(_BOUND)  # the loop stands still: it does not know that the other has failed
            scope.cancel()
        assert scope.cancelled_caught
        assert [job.payload for job in await store.queue("q").jobs()] == ["first", "bystander"]
