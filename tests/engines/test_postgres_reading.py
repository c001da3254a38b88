"""What a reading of the engine has found: ends in the middle of something, and what callers leave behind."""

import math
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from alkstore_trio import Closed, DatabaseError, Job, JobState, QueueStatistics, StopToken, Store, Stream, _worker
from alkstore_trio import _ops as ops
from alkstore_trio._engines.postgres import cursors, lanes, sqlops
from alkstore_trio._engines.postgres import tx as tx_module
from alkstore_trio._engines.postgres.lanes import Lane
from alkstore_trio._ops import Op
from alkstore_trio._tx import Tx
from alkstore_trio.testing.conformance.driving import watched
from tests.engines.places import Opening, engine_of

pytestmark = pytest.mark.anyio

_BOUND = 30.0  # seconds after which a test hangs


_WAITING = """
select count(distinct lock.pid)
from pg_locks as lock
join pg_locks as own on own.pid = lock.pid
join pg_class as table_ on table_.oid = own.relation
where not lock.granted and table_.relnamespace = to_regnamespace(%s)"""


async def _waiting_for(dsn: str, schema: str, sessions: int) -> None:
    """Wait until so many sessions that work in a schema wait for a lock; others have the server too."""
    with psycopg.connect(dsn, autocommit=True) as looking, anyio.fail_after(_BOUND):
        while True:
            [(waiting,)] = looking.execute(_WAITING, [schema]).fetchall()
            if waiting >= sessions:
                return
            await checkpoint()


async def _publish_within(scope: anyio.CancelScope, stream: Stream) -> None:
    with scope:
        await stream.publish("cancelled")


async def test_a_store_can_be_left_while_another_task_is_in_a_verb_that_is_yet_to_wake_somebody(
    opened: Opening, dsn: str, schema: str
) -> None:
    published: list[int] = []

    async def publish(store: Store) -> None:
        published.append(await store.stream("s").publish("x"))

    with anyio.fail_after(_BOUND):
        async with anyio.create_task_group() as tasks:
            with psycopg.connect(dsn) as holder:
                async with opened() as store:
                    await store.stream("s").publish("first")
                    holder.execute(f"update {schema}.streams set last = last")
                    tasks.start_soon(publish, store)
                    await _waiting_for(dsn, schema, 1)
                    tasks.start_soon(_commit_soon, holder)
        assert published == [2]


async def test_those_who_travel_together_when_the_store_is_left_arrive(opened: Opening, dsn: str, schema: str) -> None:
    published: list[int] = []

    async def publish(store: Store) -> None:
        published.append(await store.stream("s").publish("x"))

    async def commit_once_it_closes(store: Store, connection: psycopg.Connection[Any]) -> None:
        while not engine_of(store)._closed:
            await checkpoint()
        await _commit_soon(connection)

    def lock_the_events(connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"lock table {schema}.events in share mode")

    with anyio.fail_after(_BOUND), psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        async with anyio.create_task_group() as tasks, opened(lock_timeout=_BOUND) as store:
            await store.stream("s").publish("first")
            lane = engine_of(store)._named
            first.execute(f"update {schema}.streams set last = last")
            tasks.start_soon(publish, store)  # goes alone
            await _waiting_for(dsn, schema, 1)
            for _ in range(2):
                tasks.start_soon(publish, store)
            while len(lane["stream", "s"]._waiting) < 2:
                await checkpoint()
            async with anyio.create_task_group() as queueing:
                queueing.start_soon(anyio.to_thread.run_sync, lock_the_events, second)
                await _waiting_for(dsn, schema, 2)  # ahead of those two, who have yet to go
                first.commit()
            await _waiting_for(dsn, schema, 1)
            tasks.start_soon(commit_once_it_closes, store, second)
    assert sorted(published) == [2, 3, 4]


async def test_a_worker_does_not_ask_on_and_on_for_a_job_that_somebody_else_has_locked(
    opened: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_worker, "_NO_LUCK", _BOUND)
    asked: list[Op[Any]] = []
    handled: list[Any] = []
    stop = StopToken()

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    async def handle(job: Job) -> None:
        handled.append(job.payload)
        if len(handled) == 2:
            stop.cancel()

    async with opened() as store:
        await store.queue("q").enqueue("locked")
        with psycopg.connect(dsn) as holder, anyio.fail_after(_BOUND):
            holder.execute(f"select from {schema}.jobs for update")
            async with anyio.create_task_group() as tasks:
                await tasks.start(partial(watched(store, note).queue("q").run_worker, handle, stop=stop))
                for _ in range(50):
                    await store.queues()
                assert sum(isinstance(op, ops.Claim) for op in asked) <= 2
                holder.commit()
                await store.queue("q").enqueue("free")
        assert handled == ["locked", "free"]


async def test_a_claim_passes_over_a_job_that_somebody_else_has_locked(opened: Opening, dsn: str, schema: str) -> None:
    async with opened() as store:
        await store.queue("q").enqueue_many(["locked", "free"])
        with psycopg.connect(dsn) as holder, anyio.fail_after(_BOUND):
            holder.execute(f"select from {schema}.jobs where body = '\"locked\"' for update")
            claims = await store.queue("q").claim_batch("w", 2)
            assert [claim.job.payload for claim in claims] == ["free"]


async def _commit_soon(connection: psycopg.Connection[Any]) -> None:
    for _ in range(20):
        await checkpoint()
    connection.commit()


async def test_one_who_gives_up_does_not_fail_those_who_travel_with_him(
    opened: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_PATIENCE", 0.05)
    published: list[int] = []
    giving_up = anyio.CancelScope()

    async with opened(lock_timeout=_BOUND) as store:
        stream = store.stream("s")
        await stream.publish("first")
        lane = engine_of(store)._named

        async def publish() -> None:
            published.append(await stream.publish("x"))

        with psycopg.connect(dsn) as holder, anyio.fail_after(_BOUND):
            holder.execute(f"update {schema}.streams set last = last")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)  # goes first
                await _waiting_for(dsn, schema, 1)
                tasks.start_soon(publish)
                tasks.start_soon(_publish_within, giving_up, stream)
                while len(lane["stream", "s"]._waiting) < 2:
                    await checkpoint()
                holder.commit()
                holder.execute(f"update {schema}.streams set last = last")  # perhaps before the two
                for _ in range(10):
                    await checkpoint()
                giving_up.cancel()
                await anyio.sleep(0.2)  # longer than he has patience
                holder.commit()
        assert len(published) == 2


async def test_a_lane_is_forgotten_whose_last_call_is_withdrawn_before_it_is_sent(
    opened: Opening, dsn: str, schema: str
) -> None:
    giving_up = anyio.CancelScope()
    sends = anyio.Event()

    async with opened(lock_timeout=_BOUND) as store:
        stream = store.stream("s")
        await stream.publish("first")
        named = engine_of(store)._named

        with psycopg.connect(dsn) as holder, anyio.fail_after(_BOUND):
            holder.execute(f"update {schema}.streams set last = last")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.publish, "second")  # goes first
                while ("stream", "s") not in named:
                    await checkpoint()
                await _waiting_for(dsn, schema, 1)
                tasks.start_soon(_publish_within, giving_up, stream)
                lane = named["stream", "s"]
                while not lane._waiting:
                    await checkpoint()

                async def later(serve: Any) -> None:
                    await sends.wait()
                    await serve()

                lane._start_soon = lambda serve: tasks.start_soon(later, serve)
                holder.commit()
                while not await stream.read_since(1, 1):
                    await checkpoint()
                giving_up.cancel()
                while lane._waiting:
                    await checkpoint()
                sends.set()
        assert named == {}
        assert [event.payload for event in await stream.read_since(0, 10)] == ["first", "second"]


async def test_the_last_of_an_old_lane_leaves_a_new_one_alone(opened: Opening) -> None:
    async with opened() as store:
        lanes_of_the_stream = set()

        async def publish() -> None:
            for _ in range(30):
                await store.stream("s").publish("x")
                engine = engine_of(store)
                lane = engine._named.get(("stream", "s"))
                lanes_of_the_stream.add(lane)
                busy = [one for one in lanes_of_the_stream if one is not None and not one.idle]
                assert len(busy) <= 1, "two that do not know of each other"

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(publish)
        assert engine_of(store)._named == {}


def _departures(lane: Lane[Any, Any], **meanwhile: Callable[[], Awaitable[None]]) -> list[int]:
    """How many have gone together at each departure from now on, and what is done before the n-th, `_n`, is sent."""
    departures: list[int] = []
    send = lane._send_all

    async def noting(together: Sequence[Any]) -> list[Any]:
        departures.append(len(together))
        if what := meanwhile.get(f"_{len(departures)}"):
            await what()
        return await send(together)

    lane._send_all = noting
    return departures


async def _waiting_in(lane: Lane[Any, Any], calls: int) -> None:
    while len(lane._waiting) < calls:
        await checkpoint()


async def test_those_who_have_gone_together_do_not_leave_one_by_one(opened: Opening) -> None:
    async with opened() as store:
        lane = engine_of(store)._enqueues
        departures = _departures(lane)

        async def enqueue(times: int) -> None:
            for _ in range(times):
                await store.queue("q").enqueue("x")

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(enqueue, 5)
        assert departures == [1, 4, 4, 4, 4, 3]
        departures.clear()
        for _ in range(lanes._OF_LATE):
            assert lane._company.expected
            await enqueue(1)
        assert not lane._company.expected  # of somebody who has been alone for a while
        assert set(departures) == {1}


@pytest.mark.parametrize(("quick", "leave"), [(math.inf, [40, 39]), (0.0, [79])])
async def test_many_go_in_two_halves_where_commits_are_quick(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, quick: float, leave: list[int]
) -> None:
    monkeypatch.setattr(lanes, "_QUICK", quick)
    async with opened() as store:
        departures = _departures(engine_of(store)._enqueues)
        for tasks_at_once in (2, 80):
            departures.clear()
            async with anyio.create_task_group() as tasks:
                for _ in range(tasks_at_once):
                    tasks.start_soon(store.queue("q").enqueue, "x")
        assert departures == [1, *leave]


async def test_of_many_rows_a_half_goes_first(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUICK", 0.0)
    async with opened() as store:
        departures = _departures(engine_of(store)._enqueues)
        async with anyio.create_task_group() as tasks:
            for _ in range(9):
                tasks.start_soon(store.queue("q").enqueue_many, ["x"] * 50)
        assert departures == [1, 4, 4]
        departures.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(9):
                tasks.start_soon(store.queue("q").enqueue_many, ["x"] * 50)
        assert departures == [5, 4]  # those of before are not expected back


async def test_behind_a_huge_one_many_go_in_two_halves_too(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUICK", math.inf)
    async with opened() as store, anyio.create_task_group() as tasks:
        lane = engine_of(store)._enqueues

        async def many_come() -> None:
            for _ in range(150):
                tasks.start_soon(store.queue("q").enqueue, "x")
            await _waiting_in(lane, 150)

        departures = _departures(lane, _2=many_come)
        tasks.start_soon(store.queue("q").enqueue, "first")
        while lane.idle:
            await checkpoint()
        tasks.start_soon(store.queue("q").enqueue_many, ["x"] * 5_000)
    assert departures[:3] == [1, 1, 101]


async def test_commits_are_as_quick_for_a_lane_that_is_new(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUICK", math.inf)
    async with opened() as store:
        engine = engine_of(store)
        for name, leave in (("one", 79), ("another", 40)):
            lane = engine._named[("stream", name)] = engine._lane_for(ops.Publish(name, None, ()), ("stream", name))
            departures = _departures(lane)
            async with anyio.create_task_group() as tasks:
                for _ in range(80):
                    tasks.start_soon(store.stream(name).publish, "x")
            assert leave in departures, departures


async def test_two_halves_stay_as_large_as_each_other(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUICK", 0.0)
    async with opened() as store, anyio.create_task_group() as tasks:
        lane = engine_of(store)._enqueues

        async def work() -> None:
            for _ in range(3):
                await store.queue("q").enqueue_many(["x"] * 50)

        async def five_come() -> None:
            for _ in range(5):
                tasks.start_soon(work)
            await _waiting_in(lane, 5)

        departures = _departures(lane, _2=five_come)
        for _ in range(3):
            tasks.start_soon(work)
    assert departures[:3] == [1, 3, 4]  # of the five that wait one goes with the three, who come back


async def test_of_those_who_were_called_off_a_half_goes_first(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUICK", 0.0)
    monkeypatch.setattr(lanes, "_PATIENCE", 0.0)
    async with opened() as store, anyio.create_task_group() as tasks:
        lane, leaving = engine_of(store)._enqueues, anyio.CancelScope()

        async def give_up() -> None:
            with leaving:
                await store.queue("q").enqueue_many(["never"] * 50)

        async def others_come() -> None:
            tasks.start_soon(give_up)
            await _waiting_in(lane, 1)
            for _ in range(7):
                tasks.start_soon(store.queue("q").enqueue_many, ["x"] * 50)
            await _waiting_in(lane, 8)

        async def nothing_comes() -> None:
            leaving.cancel()
            await anyio.sleep_forever()

        departures = _departures(lane, _1=others_come, _2=nothing_comes)
        tasks.start_soon(store.queue("q").enqueue, "first")
    assert departures == [1, 4, 4, 3]
    assert leaving.cancelled_caught


async def test_calls_of_no_rows_go_as_others_do(opened: Opening) -> None:
    async with opened() as store:
        with anyio.fail_after(_BOUND):
            async with anyio.create_task_group() as tasks:
                for rows in (0, 0, 1, 0, 0):
                    tasks.start_soon(store.queue("q").enqueue_many, ["x"] * rows)
        assert len(await store.queue("q").jobs()) == 1


async def test_what_is_large_does_not_go_all_together(opened: Opening) -> None:
    large = "x" * 2**20
    async with opened() as store:
        departures = _departures(engine_of(store)._enqueues)
        async with anyio.create_task_group() as tasks:
            for _ in range(9):
                tasks.start_soon(store.queue("q").enqueue, large)
        assert departures == [1, 3, 3, 2]


def _row(number: int, worker: str, priority: int = 0) -> tuple[Any, ...]:
    """What a claim gives of a job."""
    stamps = 3, 300.0, 5.0, None
    return number, "q", "1", 1, priority, 0.5, None, 1, *stamps, worker, 300.0, 1, 0.0, None, None, 0.0, False, False


def test_each_of_those_who_claim_together_gets_what_was_claimed_in_his_name() -> None:
    steps = sqlops.claim([ops.Claim("q", worker, 2) for worker in ("a", "b")], None, None)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([_row(1, "b"), _row(2, "a"), _row(3, "b")])
    [[of_a], of_b], last, _ = end.value.value
    assert (of_a[0], [job_id for job_id, *_ in of_b]) == (2, [1, 3])
    assert last is None  # there are three of four


def test_a_claim_ends_at_the_last_of_as_many_rows_as_were_asked_for() -> None:
    steps = sqlops.claim([ops.Claim("q", "a", 2)], None, None)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([_row(7, "a", 3), _row(8, "a", 4)])
    [own], last, _ = end.value.value
    assert ([job_id for job_id, *_ in own], last) == ([8, 7], (~3, 0.5, 7))


async def test_a_verb_of_a_queue_touches_no_other_of_its_hash(opened: Opening, dsn: str, schema: str) -> None:
    async with opened() as store:
        queue, other = store.queue("q"), store.queue("other")
        ids = [await queue.enqueue(n, priority=9) for n in range(4)]
        own = await other.enqueue("own")
        claims = await queue.claim_batch("w", 2)
        await claims[0].fail("dead")
        with psycopg.connect(dsn, autocommit=True) as foreign:
            foreign.execute(
                f"""alter table "{schema}".jobs drop constraint jobs_hashed;
                update "{schema}".jobs
                set queue_hash = (select queue_hash from "{schema}".jobs where queue = 'other')"""
            )
        assert [job.id for job in await other.jobs()] == [own]
        assert await other.jobs(JobState.DEAD) == []
        assert await other.statistics() == QueueStatistics(1, 0, 0, 1)
        for verb in (other.delete, other.revive):
            assert await verb(ids) == 0
        [claim] = await other.claim_batch("w", 9)
        assert claim.job.id == own
        ready_at, deadline = await other.next_ready_at(), claim.job.claim_expires_at
        assert ready_at is not None
        assert deadline is not None
        assert ready_at >= deadline  # of its own claim, the last


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
async def test_who_ends_while_others_have_their_turn_has_sent_nothing_and_lets_them_go(
    opened: Opening, ends: str
) -> None:
    outcomes: dict[str, object] = {}
    leaving = anyio.CancelScope()

    async def enqueue(payload: str) -> None:
        try:
            outcomes[payload] = await store.queue("q").enqueue(payload)
        except Closed:
            outcomes[payload] = None

    async def give_up() -> None:
        with leaving:
            await enqueue("never")

    with anyio.fail_after(_BOUND):
        async with opened() as store, anyio.create_task_group() as tasks:
            lane = engine_of(store)._enqueues
            lane._company.went(2)
            others = anyio.Event()
            lane._pause = others.wait
            tasks.start_soon(give_up)
            while lane.idle:
                await checkpoint()
            tasks.start_soon(enqueue, "other")
            while not lane._waiting:
                await checkpoint()
            if ends == "cancelled":
                leaving.cancel()
            else:
                tasks.start_soon(store.aclose)
                while not lane._closed:
                    await checkpoint()
                others.set()
    assert outcomes == ({"other": 1} if ends == "cancelled" else {"other": None, "never": None})
    async with opened() as store:
        assert [job.payload for job in await store.queue("q").jobs()] == (["other"] if ends == "cancelled" else [])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_cancelled_once_his_answer_is_there_concerns_nobody_else(
    opened: Opening, anyio_backend: str
) -> None:
    import asyncio

    async with opened() as store:
        lane = engine_of(store)._enqueues
        send, departures = lane._send_all, list[float]()

        async def sending(together: Sequence[Any]) -> list[Any]:
            if len(departures) == 1:
                others.append(asyncio.create_task(store.queue("q").enqueue("d")))
                while not lane._waiting:
                    await checkpoint()
            elif len(departures) == 2:
                others[1].cancel()  # it was told, and has not gone on yet
                await checkpoint()
            departures.append(lane._patience.deadline if departures else math.inf)
            return await send(together)

        lane._send_all = sending
        others = [asyncio.create_task(store.queue("q").enqueue(name)) for name in "abc"]
        await asyncio.wait(others)
        ids = await asyncio.gather(*others)
        assert sorted(ids) == [1, 2, 3, 4]
        assert departures == [math.inf] * 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_cancelled_while_his_store_is_closed_is_told_so(opened: Opening, anyio_backend: str) -> None:
    import asyncio

    async with opened() as store:
        lane = engine_of(store)._enqueues
        first, second = (asyncio.create_task(store.queue("q").enqueue(name)) for name in "ab")
        while not lane._waiting:
            await checkpoint()
        lane.close()
        second.cancel()
        await first
        with pytest.raises(Closed):
            await second


async def test_streams_that_somebody_else_holds_leave_a_connection_to_everything_else(
    opened: Opening, dsn: str, schema: str
) -> None:
    names = [f"s{n}" for n in range(4)]
    async with opened(max_connections=3, lock_timeout=_BOUND) as store:
        for name in names:
            await store.stream(name).publish("x")
        with anyio.fail_after(_BOUND), psycopg.connect(dsn) as holder:
            holder.execute(f"update {schema}.streams set last = last")
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(store.stream(name).publish, "y")
                await _waiting_for(dsn, schema, 2)
                for n in range(3):
                    assert await store.queue("q").enqueue("x") == n + 1
                holder.commit()
        assert [(await store.stream(name).statistics()).last for name in names] == [2] * 4


# What callers leave in a session, as (what leaves it, what shows that it is there).
_LEFT = {
    "a setting": ("set app.tenant = 'ann'", "select coalesce(current_setting('app.tenant', true), '') <> ''"),
    "a setting of a function": (
        "select set_config('app.tenant', 'ann', false)",
        "select coalesce(current_setting('app.tenant', true), '') <> ''",
    ),
    "a setting of a block": (
        "do $$ begin set default_transaction_read_only = on; end $$",
        "select current_setting('default_transaction_read_only') = 'on'",
    ),
    "a role": ("set role pg_monitor", "select current_user <> session_user"),
    "an encoding": ("set client_encoding to latin1", "select current_setting('client_encoding') <> 'UTF8'"),
    "a prepared statement": (
        "prepare mine as select 1",
        "select exists (select from pg_prepared_statements where name = 'mine')",
    ),
    "a lock": (
        "select pg_advisory_lock(73)",
        "select exists (select from pg_locks where locktype = 'advisory' and objid = 73)",
    ),
    "a listener": ("listen mine", "select exists (select from pg_listening_channels())"),
    "a table": ("create temp table mine(x int)", "select to_regclass('pg_temp.mine') is not null"),
    "a cursor": (
        "declare mine cursor with hold for select 1",
        "select exists (select from pg_cursors where name = 'mine')",
    ),
}


@pytest.mark.parametrize("ends", ["commit", "rollback", "an error"])
async def test_what_a_caller_sets_ends_with_his_transaction(opened: Opening, ends: str) -> None:
    async with opened(max_connections=2) as store:
        await store.queue("q").enqueue("before")
        for what, (leaves, shows) in _LEFT.items():
            async with store.begin_tx() as tx:
                await tx.execute(leaves)
                if ends == "commit":
                    await tx.commit()
                elif ends == "an error":
                    with pytest.raises(DatabaseError):
                        await tx.execute("select 1 / 0")
            await store.queue("q").enqueue(what)
            async with store.transaction() as tx:
                assert await tx.execute(shows) == [(False,)], what
        assert len(await store.queue("q").jobs()) == 1 + len(_LEFT)


async def test_what_a_caller_leaves_is_gone_when_his_transaction_has_ended(
    opened: Opening, dsn: str, schema: str
) -> None:
    async with opened(max_connections=2) as store:
        async with store.transaction() as tx:
            [(pid,)] = await tx.execute("select pg_backend_pid() from pg_advisory_lock(74)")
        with psycopg.connect(dsn, autocommit=True) as looking:
            assert looking.execute("select pg_try_advisory_lock(74)").fetchone() == (True,)
        async with store.transaction() as tx:  # and the connection has been kept, with its settings
            assert await tx.execute("select pg_backend_pid()") == [(pid,)]
        [connection] = engine_of(store).pool._idle
        assert await connection.run("show plan_cache_mode") == [("force_generic_plan",)]


async def test_a_session_that_cannot_be_reset_is_closed_and_the_commit_stands(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(max_connections=2) as store:
        async with store.transaction() as tx:
            [(pid,)] = await tx.execute("select pg_backend_pid()")
            await tx.enqueue_tx("q", 1)
            [connection] = engine_of(store).pool._taken
            with monkeypatch.context() as patch:

                async def lost(*_: Any) -> None:
                    raise psycopg.OperationalError("lost")

                patch.setattr(connection, "execute_own", lost)
                await tx.commit()
        assert connection.closed
        assert len(await store.queue("q").jobs()) == 1
        async with store.transaction() as tx:
            assert await tx.execute("select pg_backend_pid()") != [(pid,)]


async def test_the_session_of_a_pooler_is_not_reset_and_its_connection_is_closed(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    async with opened(max_connections=2) as store:
        for ends in Tx.commit, Tx.rollback:
            async with store.begin_tx() as tx:
                await tx.enqueue_tx("q", 1)
                [connection] = engine_of(store).pool._taken
                connection.pooled = True
                await tx.execute("select 1")
                monkeypatch.setattr(connection, "execute_own", sent.append)
                await ends(tx)
            assert connection.closed
        assert sent == []
        assert len(await store.queue("q").jobs()) == 1


async def test_a_transaction_that_executes_nothing_sends_nothing_more(opened: Opening) -> None:
    async with opened(max_connections=2) as store:
        await store.with_tx(lambda tx: tx.enqueue_tx("q", 1))
        [connection] = engine_of(store).pool._idle
        plans = dict(connection._plans)
        await store.with_tx(lambda tx: tx.enqueue_tx("q", 1))
        assert engine_of(store).pool._idle == [connection]
        assert connection._plans == plans


@pytest.mark.parametrize(
    "sql",
    [
        "select 1; commit",
        "select 1; commit; begin",
        "select 1; commit; select 1/0",
        "select 1; select 2",
    ],
)
async def test_what_is_not_one_statement_is_refused_and_nothing_can_be_committed(opened: Opening, sql: str) -> None:
    async with opened(max_connections=2) as store:
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", 1)
            with pytest.raises(ValueError, match="one at a time"):
                await tx.execute(sql)
            with pytest.raises(RuntimeError, match="rolled back"):
                await tx.commit()
        assert await store.queue("q").jobs() == []
        await store.queue("q").enqueue("usable")


async def test_a_copy_is_refused_and_nothing_can_be_committed(opened: Opening, schema: str) -> None:
    async with opened(max_connections=2) as store:
        for sql in (f"copy {schema}.jobs from stdin", f"copy {schema}.jobs to stdout"):
            async with store.begin_tx() as tx:
                await tx.enqueue_tx("q", 1)
                with pytest.raises(ValueError, match="COPY"):
                    await tx.execute(sql)
                with pytest.raises(RuntimeError, match="rolled back"):
                    await tx.commit()
        assert await store.queue("q").jobs() == []


@pytest.mark.parametrize("sql", ["do $$ begin commit; end $$", "call {schema}.ends()"])
async def test_code_that_would_end_the_transaction_fails(opened: Opening, schema: str, sql: str) -> None:
    async with opened(max_connections=2) as store:
        async with store.transaction() as tx:
            await tx.execute(f"create procedure {schema}.ends() language plpgsql as 'begin commit; end'")
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", 1)
            with pytest.raises(DatabaseError, match="transaction termination"):
                await tx.execute(sql.format(schema=schema))
        assert await store.queue("q").jobs() == []


async def test_an_end_that_is_overlooked_is_noticed(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tx_module, "checked_statement", str)
    async with opened() as store, store.begin_tx() as tx:
        await tx.execute("select 1")
        with pytest.raises(ValueError, match="has ended this one"):
            await tx.execute("rollback")
        with pytest.raises(RuntimeError):
            await tx.enqueue_tx("q", "x")


async def test_a_statement_without_parameters_is_sent_as_it_is_and_answered_as_any_other(opened: Opening) -> None:
    async with opened() as store, store.transaction() as tx:
        await tx.execute("create type mood as enum ('fine')")
        sql = "select 'fine'::mood, 7 % 4, '%s', array[1, null], null::text, '\\x00'::bytea, '€', 1.5::numeric"
        [plain] = await tx.execute(sql)
        [adapted] = await tx.execute(f"{sql.replace('%', '%%')}, %s::int", [5])
        assert plain == ("fine", 3, "%s", [1, None], None, b"\0", "€", Decimal("1.5"))
        assert adapted == (*plain, 5)
        assert await tx.execute("") == await tx.execute("-- nothing") == await tx.execute("do $$ begin end $$") == []
        await tx.rollback()


async def test_our_statements_go_on_in_a_transaction_whose_caller_makes_the_server_forget_them(opened: Opening) -> None:
    async with opened(max_connections=2) as store:
        for forgets in ("deallocate all", "discard plans", "do $$ begin execute 'deallocate all'; end $$"):
            async with store.transaction() as tx:
                await tx.enqueue_tx("q", 1)
                await tx.execute(forgets)
                await tx.enqueue_tx("q", 2)
            await store.queue("q").enqueue(3)
        assert [job.payload for job in await store.queue("q").jobs()] == [1, 2, 3] * 3


async def test_a_statement_that_another_task_is_about_to_send_does_not_outlive_its_transaction(
    opened: Opening, schema: str
) -> None:
    ended: list[str] = []

    async with opened() as store:
        await store.queue("q").enqueue("x")

        async def execute(tx: Any) -> None:
            try:
                await tx.execute(f"delete from {schema}.jobs")
            except RuntimeError:
                ended.append("told")

        for turns in range(40):
            async with anyio.create_task_group() as tasks, store.begin_tx() as tx:
                tasks.start_soon(execute, tx)
                for _ in range(turns):
                    await checkpoint()
            assert len(await store.queue("q").jobs()) == 1
    assert ended


async def test_a_joined_write_that_would_wait_for_its_own_task_is_refused(opened: Opening, dsn: str) -> None:
    async with opened() as store:
        with psycopg.connect(dsn) as connection:
            connection.execute("select 1")
            joined = store.join(connection)
            async with store.begin_tx() as tx:
                await tx.publish_tx("s", "x")
                with pytest.raises(RuntimeError, match="this task"):
                    joined.publish_tx("s", "y")
            assert joined.publish_tx("s", "y") == 1


async def test_a_claim_under_way_when_its_queue_is_woken_leaves_no_cursor(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_LONG", -1.0)
    async with opened() as store:
        queue = store.queue("q")
        await queue.enqueue_many(range(3))
        engine = engine_of(store)
        with engine._cursors.claiming("q") as claim:
            [row] = await engine.do(ops.Claim("q", "w", 1))
            engine._cursors.drop("q")
            await queue.enqueue("urgent", priority=1)
            claim.claimed(1, (~row.priority, row.run_at, row.id), 1.0)
        assert engine._cursors._cursors == {}
        claimed = await queue.claim("w")
        assert claimed is not None
        assert claimed.job.payload == "urgent"


async def test_whoever_waits_too_long_behind_another_store_is_told_without_waiting_for_a_second_connection(
    opened: Opening, dsn: str, schema: str
) -> None:
    async with opened(max_connections=2, lock_timeout=0.2) as store:
        await store.stream("s").publish("first")
        with psycopg.connect(dsn, application_name="the holder") as holder:
            holder.execute(f"update {schema}.streams set last = last")
            async with store.begin_tx() as tx:
                await tx.publish_tx("another", "x")
                with pytest.raises(DatabaseError, match="the holder") as failed:
                    await store.stream("s").publish("x")
                assert failed.value.transient


# In a lane


async def test_one_that_fails_does_not_fail_those_who_travel_with_him(opened: Opening, dsn: str, schema: str) -> None:
    failed: list[int] = []
    landed: list[int] = []

    async with opened() as store:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"alter table {schema}.events add check (body <> '7')")

        async def publish(number: int) -> None:
            try:
                await store.stream("s").publish(number)
                landed.append(number)
            except DatabaseError:
                failed.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(publish, number)
        kept = [event.payload for event in await store.stream("s").read_since(0, 100)]
    assert failed == [7]
    assert sorted(landed) == sorted(kept) == [number for number in range(12) if number != 7]


async def test_those_who_wait_in_a_lane_that_is_held_up_can_go(opened: Opening, dsn: str, schema: str) -> None:
    told: list[type[Exception]] = []
    cancelled = anyio.CancelScope()

    with anyio.fail_after(_BOUND), psycopg.connect(dsn) as holder:
        async with opened(lock_timeout=_BOUND) as store, anyio.create_task_group() as tasks:
            stream = store.stream("s")
            lane = engine_of(store)._named

            async def publish(payload: str) -> None:
                try:
                    await stream.publish(payload)
                except Closed as error:
                    told.append(type(error))

            await stream.publish("first")
            holder.execute(f"update {schema}.streams set last = last")
            tasks.start_soon(publish, "second")
            await _waiting_for(dsn, schema, 1)
            tasks.start_soon(_publish_within, cancelled, stream)
            while len(lane["stream", "s"]._waiting) < 1:
                await checkpoint()
            cancelled.cancel()
            while lane["stream", "s"]._waiting:
                await checkpoint()
            holder.commit()
            while ("stream", "s") in lane:
                await checkpoint()
            holder.execute(f"update {schema}.streams set last = last")
            tasks.start_soon(publish, "third")
            await _waiting_for(dsn, schema, 1)
            for _ in range(2):
                tasks.start_soon(publish, "too late")
            while len(lane["stream", "s"]._waiting) < 2:
                await checkpoint()
            tasks.start_soon(store.aclose)
            while len(told) < 2:
                await checkpoint()
            holder.commit()
    async with opened() as store:
        assert [event.payload for event in await store.stream("s").read_since(0, 9)] == ["first", "second", "third"]
