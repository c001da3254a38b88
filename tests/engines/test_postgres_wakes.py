"""What lies beside the verbs: wakes between stores, poolers, cursors past a graveyard, upkeep."""

import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from alkstore_trio import DatabaseError, Job, StopToken, Store, Wake, _receivers, _waiting, _worker
from alkstore_trio._engines.postgres import cursors, sqlops, upkeep, wakes
from alkstore_trio._engines.postgres import engine as module
from alkstore_trio._engines.postgres.server import Server
from alkstore_trio._ops import Claim, Heartbeat, Op, Release
from alkstore_trio._rules.names import RECONNECTED, queue_wake
from alkstore_trio._waiting import bell_on
from alkstore_trio._wake import Bell, Hub
from alkstore_trio.testing import ManualClock
from tests.engines.places import Opening, engine_of

pytestmark = pytest.mark.anyio

_BOUND = 30.0  # seconds after which a test hangs


async def _received(receiver: Any) -> Any:
    with anyio.fail_after(_BOUND):
        return await receiver.receive()


# Between stores


async def test_a_commit_in_one_store_wakes_whoever_waits_in_another(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    for waiting in (_receivers, _waiting, _worker):
        monkeypatch.setattr(waiting, "SLICE", 3_600.0)  # nobody looks unasked
    worked = anyio.Event()
    stop = StopToken()

    async def work(job: Job) -> None:
        stop.cancel()
        worked.set()

    async with (
        opened() as one,
        opened() as other,
        other.stream("s").subscribe("me") as events,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(lambda task_status: other.queue("q").run_worker(work, stop=stop, task_status=task_status))
        await one.stream("s").publish("x")
        assert (await _received(events)).payload == "x"
        async with one.transaction() as tx:
            await tx.publish_tx("s", "y")
            await tx.enqueue_tx("q", "x")
        assert (await _received(events)).payload == "y"
        with anyio.fail_after(_BOUND):
            await worked.wait()


@contextmanager
def _wakes_of(store: Store, queue: str) -> Iterator[Bell]:
    """What rings when a store is told of a queue, and never by itself."""
    with bell_on(engine_of(store), queue_wake(queue)) as bell:
        yield bell


async def test_what_was_written_just_before_its_store_was_left_wakes_others(opened: Opening) -> None:
    async with opened() as other:
        with _wakes_of(other, "q") as woken:
            for _ in range(5):
                event = woken.arm()
                async with opened() as store:
                    await store.queue("q").enqueue("x")
                with anyio.fail_after(_BOUND):
                    await event.wait()


async def test_nothing_of_a_store_that_was_closed_early_is_left(opened: Opening, dsn: str, schema: str) -> None:
    for _ in range(5):
        async with opened() as store:
            await store.queue("q").enqueue("x")
            await store.aclose()
            assert engine_of(store)._tasks == {}
            assert engine_of(store).voice._connection is None


async def test_whoever_tells_others_notices_that_his_session_was_ended(
    opened: Opening, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as store, opened() as other:
        with _wakes_of(other, "q") as woken:
            for _ in range(3):
                event = woken.arm()
                await store.queue("q").enqueue("x")
                with anyio.fail_after(_BOUND):
                    await event.wait()
                    voice = engine_of(store).voice
                    while voice._speaking:
                        await anyio.lowlevel.checkpoint()
                    assert voice._connection is not None
                    with psycopg.connect(dsn, autocommit=True) as foreign:
                        foreign.execute(
                            "select pg_terminate_backend(%s, 10000)", [voice._connection.pgconn.backend_pid]
                        )


async def test_a_notify_is_part_of_its_transaction_in_other_stores_too(opened: Opening) -> None:
    async with opened() as one, opened() as other, other.listen("c") as wakes_:
        async with one.begin_tx() as tx:
            await tx.notify_tx("c")
        await one.notify("marker")
        async with other.listen("later") as later:
            await one.notify("later")
            assert await _received(later) == Wake("later")  # so what was notified before has come
        with pytest.raises(anyio.WouldBlock):
            wakes_.receive_nowait()
        async with one.transaction() as tx:
            await tx.notify_tx("c")
        assert await _received(wakes_) == Wake("c")


async def test_a_store_takes_no_notice_of_its_own_voice(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as one, opened() as other, one.listen("c") as mine, other.listen("c") as theirs:
        for _ in range(5):
            await one.notify("c")
            assert await _received(theirs) == Wake("c")
        await other.notify("c")  # comes after all that the server had for this store
        for _ in range(6):
            assert await _received(mine) == Wake("c")
        with pytest.raises(anyio.WouldBlock):
            mine.receive_nowait()


async def test_what_is_told_is_told_once_however_often_it_happens_meanwhile(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    tell = sqlops.tell

    def noted(channel: str, payloads: list[str]) -> Any:
        said.append(len(payloads))
        return tell(channel, payloads)

    monkeypatch.setattr(sqlops, "tell", noted)
    monkeypatch.setattr(wakes, "_QUIET", 3_600.0)
    async with opened() as store:
        await store.queue("q").enqueue_many(range(3))
        with anyio.fail_after(_BOUND):
            while not said:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await store.queue("q").enqueue("x")
            await store.queue("another").enqueue("x")
    assert len(said) == 2  # at once, and at the end what had gathered
    assert said[1] == 2


async def test_where_nobody_listens_everybody_looks_now_and_then(
    opened: Opening, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLIND_POLL", 0.01)
    async with opened(wakes="poll") as store, store.listen("c") as heard, opened() as other:
        assert await _received(heard) == Wake(RECONNECTED)
        async with store.stream("s").subscribe("me") as events:
            await other.stream("s").publish("x")
            assert (await _received(events)).payload == "x"
        with psycopg.connect(dsn) as connection:
            [listening] = connection.execute(
                "select count(*) from pg_stat_activity where query = %s", [f'listen "{engine_of(store).channel}"']
            ).fetchall()
        assert listening == (1,)  # the other's


# Claims that are lost while somebody waits for their rows


@pytest.mark.parametrize("settled", [1, 2])
async def test_acks_that_have_waited_for_a_row_leave_one_alone_that_was_claimed_anew_meanwhile(
    opened: Opening, dsn: str, schema: str, settled: int
) -> None:
    landed: list[int] = []

    async with opened() as store:
        queue = store.queue("q")
        await queue.enqueue_many(range(settled))
        claims = await queue.claim_batch("w", settled)

        async def ack() -> None:
            landed.append(await queue.ack_batch(claims))

        await _robbed(claims[0].job.id, ack, dsn, schema)
        assert landed == [settled - 1]
        assert [job.id for job in await queue.jobs()] == [claims[0].job.id]


@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("kind", [Release, Heartbeat], ids=lambda kind: kind.__name__)
async def test_moves_that_have_waited_for_a_row_leave_one_alone_that_was_claimed_anew_meanwhile(
    opened: Opening, dsn: str, schema: str, kind: type[Release | Heartbeat], asked: int
) -> None:
    landed: list[tuple[int, int]] = []

    async with opened() as store:
        queue = store.queue("q")
        ids = await queue.enqueue_many(range(asked))
        claims = tuple((row.id, row.token) for row in await store._engine.do(Claim("q", "w", asked)))
        op: Op[list[tuple[int, int]]] = kind("q", claims, 600.0)
        before = await queue.get_job(ids[0])

        async def move() -> None:
            moved = await store._engine.do(op)
            landed.extend(moved)

        await _robbed(ids[0], move, dsn, schema)
        assert landed == list(claims[1:])
        assert await queue.get_job(ids[0]) == before


async def _robbed(job_id: int, verb: Callable[[], Coroutine[Any, Any, None]], dsn: str, schema: str) -> None:
    """Do what waits for the row of a job, which has another claim by then."""
    with psycopg.connect(dsn, autocommit=True) as looking, psycopg.connect(dsn) as thief:
        thief.execute(f'update "{schema}".jobs set token = token + 1 where id = %s', [job_id])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(verb)
            with anyio.fail_after(_BOUND):
                while not looking.execute(
                    "select 1 from pg_locks where not granted and %s = any(pg_blocking_pids(pid))",
                    [thief.info.backend_pid],
                ).fetchall():
                    await anyio.lowlevel.checkpoint()
            thief.commit()


# Behind a pooler


@contextmanager
def _pooler(dsn: str) -> Iterator[str]:
    """A pgbouncer in transaction mode before a server; gives its DSN."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("there is no pgbouncer here")
    server = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "pgbouncer.ini")
        there = " ".join(f"{name}={server[name]}" for name in ("host", "port", "user") if server.get(name))
        config.write_text(
            f"[databases]\npostgres = {there} dbname={server.get('dbname', 'postgres')}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\n"
        )
        config.chmod(0o644)
        account: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
        with subprocess.Popen([program, "-q", str(config)], stderr=subprocess.PIPE, **account) as process:
            try:
                where = f"host=127.0.0.1 port={port} dbname=postgres user=postgres"
                for _ in range(500):
                    if psycopg.pq.PGconn.ping(where.encode()) == psycopg.pq.Ping.OK:
                        break
                    time.sleep(0.02)
                else:
                    raise AssertionError(process.stderr and process.stderr.read())
                yield where
            finally:
                process.kill()


async def test_a_store_works_behind_a_pooler_in_transaction_mode(opened: Opening, dsn: str) -> None:
    with _pooler(dsn) as pooled:
        async with opened(pooled, listen_dsn=dsn) as store, opened() as direct, store.listen("c") as heard:
            queue = store.queue("q")

            async def work() -> None:
                for number in range(10):
                    await queue.enqueue(number)
                    async with store.transaction() as tx:
                        await tx.publish_tx("s", number)
                        await tx.save_offset_tx("s", "me", 1)
                        assert await tx.execute("select %s::int", [number]) == [(number,)]
                    handle = await queue.claim("w")
                    assert handle is not None
                    assert await handle.ack()

            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(work)
            assert (await store.stream("s").statistics()).last == 80
            assert await queue.jobs() == []
            await direct.notify("c")
            assert await _received(heard) == Wake("c")
            await store.schedule("n", "@every 1s", "q", None)
            lock = await store.try_lock("l", "me", 5)
            assert lock is not None
            assert await lock.renew(5)


async def test_behind_a_pooler_a_publish_still_waits_no_longer_than_the_lock_timeout(opened: Opening, dsn: str) -> None:
    with _pooler(dsn) as pooled:
        async with opened(pooled, listen_dsn=dsn, lock_timeout=0.2) as store, opened() as other:
            async with other.begin_tx() as tx:
                await tx.publish_tx("s", "x")
                with pytest.raises(DatabaseError, match="another connection") as failed:
                    await store.stream("s").publish("y")
                assert failed.value.transient
            await store.stream("s").publish("z")


async def test_who_listens_through_a_pooler_is_warned(
    opened: Opening, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with _pooler(dsn) as pooled, caplog.at_level(logging.WARNING, "alkstore_trio"):
        async with opened(pooled):
            pass
    assert "listen_dsn" in caplog.text


# Past a graveyard


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim counts as one that took long."""
    monkeypatch.setattr(cursors, "_LONG", -1.0)
    monkeypatch.setattr(cursors, "_LASTS", 3_600.0)


async def test_claims_go_on_where_a_slow_one_ended(opened: Opening, slow: None, dsn: str, schema: str) -> None:
    async with opened() as store:
        queue = store.queue("q")
        ids = await queue.enqueue_many(range(4))
        await queue.enqueue("later", run_at=5, priority=-1)
        claims = [await queue.claim("w")]
        with psycopg.connect(dsn, autocommit=True) as foreign:  # which tells nobody
            foreign.execute(f'update "{schema}".jobs set priority = 9 where id = %s', [ids[3]])
        claims += [await queue.claim("w") for _ in range(2)]
        assert [claim.job.id for claim in claims if claim] == ids[:3]  # the last is before the cursor
        rest = await queue.claim_batch("w", 5)
        assert [claim.job.payload for claim in rest] == [3, "later"]  # too few behind it, so from the head


async def test_a_row_before_the_cursor_is_found_once_anybody_tells_of_it(opened: Opening, slow: None) -> None:
    async with opened() as store, opened() as other:
        queue = store.queue("q")
        await queue.enqueue_many(range(5))
        for one in (store, other):
            assert await queue.claim("w")
            with anyio.fail_after(_BOUND):
                async with store.listen("told") as told:
                    await one.queue("q").enqueue("first", priority=1)
                    if one is other:
                        while "q" in engine_of(store)._cursors._cursors:
                            await anyio.lowlevel.checkpoint()
                    await one.notify("told")
                    await told.receive()
            claim = await queue.claim("w")
            assert claim is not None
            assert claim.job.payload == "first"


async def test_a_queue_that_comes_back_empty_behind_its_cursor_is_looked_at_from_its_head(
    opened: Opening, slow: None, dsn: str, schema: str
) -> None:
    async with opened() as store:
        queue = store.queue("q")
        ids = await queue.enqueue_many(range(2))
        assert await queue.claim("w")
        with psycopg.connect(dsn, autocommit=True) as foreign:
            foreign.execute(f'update "{schema}".jobs set priority = 9 where id = %s', [ids[1]])
        claim = await queue.claim("w")
        assert claim is not None
        assert claim.job.id == ids[1]


async def test_a_quick_claim_leaves_no_cursor(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "_LONG", 3_600.0)
    async with opened() as store:
        await store.queue("q").enqueue_many(range(2))
        assert await store.queue("q").claim("w")
        assert engine_of(store)._cursors._cursors == {}


async def test_a_claim_of_many_may_take_longer_before_it_leaves_a_cursor() -> None:
    for n, seconds, leaves in ((1, 0.005, True), (200, 0.005, False), (200, 0.02, True)):
        known = cursors.Cursors(Hub())
        with known.claiming("q") as claiming:
            claiming.claimed(n, (0, 0.0, n), seconds)
        assert bool(known._cursors) == leaves, (n, seconds)


async def test_a_cursor_lasts_no_longer_than_it_may(
    opened: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cursors._LASTS == 1.0  # which is what is promised
    monkeypatch.setattr(cursors, "_LONG", -1.0)
    monkeypatch.setattr(cursors, "_LASTS", 0.0)
    async with opened() as store:
        queue = store.queue("q")
        ids = await queue.enqueue_many(range(3))
        assert await queue.claim("w")
        with psycopg.connect(dsn, autocommit=True) as foreign:  # which tells nobody
            foreign.execute(f'update "{schema}".jobs set priority = 9 where id = %s', [ids[2]])
        claim = await queue.claim("w")
        assert claim is not None
        assert claim.job.id == ids[2]


# Upkeep


async def test_a_store_that_has_stirred_many_rows_has_them_vacuumed(
    opened: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_MANY", 50)
    async with opened() as store:
        queue = store.queue("q")
        with psycopg.connect(dsn, autocommit=True) as connection:

            async def stirred() -> bool:
                await queue.enqueue_many(range(60))
                await queue.ack_batch(await queue.claim_batch("w", 60))
                [(vacuums,)] = connection.execute(
                    "select vacuum_count from pg_stat_all_tables where schemaname = %s and relname = 'jobs'", [schema]
                ).fetchall()
                return bool(vacuums)

            with anyio.fail_after(_BOUND):
                while not await stirred():  # the server counts dead rows with a delay
                    await anyio.lowlevel.checkpoint()


async def test_a_session_that_keeps_dead_rows_alive_is_named(
    opened: Opening, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "_MANY", 10)
    monkeypatch.setattr(upkeep, "_OLD", 0.0)
    with psycopg.connect(dsn, application_name="forgetful") as forgetful:
        forgetful.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        forgetful.execute("select count(*) from pg_class")
        with caplog.at_level(logging.WARNING, "alkstore_trio"):
            async with opened() as store:
                with anyio.fail_after(_BOUND):
                    while "forgetful" not in caplog.text:
                        await store.queue("q").enqueue_many(range(20))
                        await store.queue("q").ack_batch(await store.queue("q").claim_batch("w", 20))
        warned = [record for record in caplog.records if "forgetful" in record.getMessage()]
        assert f"pid {forgetful.info.backend_pid}" in warned[0].getMessage()


async def test_a_lock_that_nobody_has_taken_for_a_day_is_forgotten_and_its_token_is_not(
    opened: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_MANY_LOCKS", 1)
    clock = ManualClock()
    async with opened(clock=clock) as store:
        lock = await store.try_lock("l", "me", 5)
        assert lock is not None
        assert await lock.release()
        lapsed = await store.try_lock("lapsed", "me", 5)
        clock.advance(86_300)
        recent = await store.try_lock("recent", "me", 5)
        assert recent is not None
        assert await recent.release()
        clock.advance(200)
        with psycopg.connect(dsn, autocommit=True) as connection:
            with anyio.fail_after(_BOUND):
                while connection.execute(f"select 1 from \"{schema}\".locks where name = 'l'").fetchall():
                    assert await store.try_lock("another", "me", 5)
        again = await store.try_lock("l", "me", 5)
        assert again is not None
        assert again.token > lock.token
        with psycopg.connect(dsn) as connection:
            assert connection.execute(f"select 1 from \"{schema}\".locks where name = 'recent'").fetchall()
        assert lapsed is not None
        assert await lapsed.release()


async def test_an_idle_store_asks_the_server_nothing(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    run = Server.run

    async def noted(self: Server, connection: Any, steps: Any) -> Any:
        asked.append(repr(steps))
        return await run(self, connection, steps)

    async with opened() as store, anyio.create_task_group() as tasks:
        for number in range(100):

            async def listen(channel: str = f"channel {number}") -> None:
                async with store.listen(channel) as heard:
                    await heard.receive()

            tasks.start_soon(listen)
        monkeypatch.setattr(Server, "run", noted)
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert asked == []
        tasks.cancel_scope.cancel()
