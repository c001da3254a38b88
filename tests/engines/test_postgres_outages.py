"""A store whose server, sessions or network fail, or whose callers are cancelled, at known instants and random ones.

Random instants come from seeds; which of a store's steps they hit depends on the machine, so a test of them says what
is true whatever they hit. Otherwise facts are waited for: a bound turns a hang into a failure, and is well above what a
machine that is slow takes.
"""

import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Literal

import anyio
import anyio.to_thread
import attrs
import pytest
from psycopg.pq import TransactionStatus

from alkstore_trio import (
    AlkstoreError,
    Closed,
    CommitUnknown,
    DatabaseError,
    Job,
    JobState,
    LockHandle,
    StopToken,
    Store,
    Tx,
    Wake,
)
from alkstore_trio._engines.postgres import connection, engine, lanes, tx, wakes
from alkstore_trio._engines.postgres.connection import AsyncAnyioConnection
from alkstore_trio._waiting import bell_on
from tests.engines.books import pool_of, whole
from tests.engines.children import all_jobs
from tests.engines.places import Place, engine_of, until
from tests.proxy import Proxy, proxy
from tests.servers import Server

pytestmark = pytest.mark.anyio

RECONNECTED = Wake("__alkstore_listener_reconnected__")
KILLS = 60  # of sessions
ROUNDS = 60  # of cancellations, for each task
BOUND = 20.0  # seconds that nothing here takes
SOON = 0.2  # seconds, in the place of the store's own bounds where a test waits for one


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server, which a test that stops it starts again; what it has committed outlives its process."""
    with Server(tcp=True, settings={"synchronous_commit": "on"}) as server:
        yield server


_numbers = count(1)


@pytest.fixture
def place(server: Server) -> Place:
    """A place of a test's own."""
    return Place(server.dsn, f"outages_{next(_numbers)}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's bounds, so short that a test can wait for them."""
    monkeypatch.setattr(connection, "_CANCEL_BOUND", SOON)
    monkeypatch.setattr(connection, "_CONNECT_TIMEOUT", SOON * 5)
    monkeypatch.setattr(engine, "_LAST_STATEMENTS", SOON)
    monkeypatch.setattr(tx, "_ROLLBACK", SOON)
    monkeypatch.setattr(tx, "_COMMIT", SOON)
    monkeypatch.setattr(wakes, "_ANSWER", SOON)
    monkeypatch.setattr(wakes, "_LAST_WORDS", SOON)
    monkeypatch.setattr(wakes, "_ANSWER", SOON)
    monkeypatch.setattr(lanes, "_PATIENCE", SOON)


@asynccontextmanager
async def proxied(server: Server, place: Place, **options: Any) -> AsyncIterator[tuple[Store, Proxy]]:
    """A store behind a proxy."""
    async with proxy(("127.0.0.1", server.port)) as between, place.open(between.port, **options) as store:
        yield store, between


@contextmanager
def stopped(server: Server, mode: Literal["fast", "immediate"]) -> Iterator[None]:
    """A server that is down during the block."""
    server.stop(mode)
    try:
        yield
    finally:
        server.start()


def under_way(store: Store) -> bool:
    """Whether a statement is, for all that the store knows."""
    return any(taken.info.transaction_status is TransactionStatus.ACTIVE for taken in engine_of(store).pool._taken)


async def enqueue(store: Store) -> object:
    return await store.queue("jobs").enqueue("job")


async def claim_and_ack(store: Store) -> object:
    handle = await store.queue("jobs").claim("worker")
    return handle and await handle.ack()


async def publish(store: Store) -> object:
    return await store.stream("stream").publish("event")


async def save_offset(store: Store) -> object:
    return await store.stream("stream").save_offset("consumer", 1)


async def read(store: Store) -> object:
    return await store.stream("stream").read_since(0, 10)


async def statistics(store: Store) -> object:
    return await store.queue("jobs").statistics()


async def sweep(store: Store) -> object:
    return await store.queue("jobs").sweep_expired()


async def notify(store: Store) -> object:
    await store.notify("channel")
    return None


async def lock(store: Store) -> object:
    held = await store.try_lock("lock", "owner", 60)
    return held and await held.release()


async def schedule(store: Store) -> object:
    return await store.schedule("daily", "@every 1d", "jobs", "job")


async def names(store: Store) -> object:
    return await store.queues()


async def transact(store: Store) -> object:
    async def effects(tx: Tx) -> None:
        await tx.enqueue_tx("jobs", "job")
        await tx.publish_tx("stream", "event")

    return await store.with_tx(effects)


async def execute(store: Store) -> object:
    return await store.with_tx(lambda tx: tx.execute("select 1"))


async def perhaps(verb: "Verb", store: Store) -> None:
    """Do a verb that is cancelled where nobody answers, so that it may not be known what became of it."""
    with suppress(CommitUnknown):
        await verb(store)


Verb = Callable[[Store], Coroutine[Any, Any, object]]
VERBS: list[Verb] = [
    enqueue,
    claim_and_ack,
    publish,
    save_offset,
    read,
    statistics,
    sweep,
    notify,
    lock,
    schedule,
    names,
    transact,
    execute,
]


# A server that takes its time

HELD = 77  # the advisory lock that `slowed` statements wait for


def slowed(place: Place, table: str, when: str) -> None:
    """Have what is inserted into a table of the store's wait, at once or at the commit, for who holds a lock."""
    kinds = {
        "at once": f"create trigger slow before insert on {place.schema}.{table}",
        "at the commit": f"create constraint trigger slow after insert on {place.schema}.{table}"
        " deferrable initially deferred",
    }
    place.ask(
        f"create function {place.schema}.slow() returns trigger language plpgsql as"
        f" $$ begin perform pg_advisory_xact_lock({HELD}); return new; end $$;"
        f"{kinds[when]} for each row execute function {place.schema}.slow()"
    )


@asynccontextmanager
async def held(place: Place) -> AsyncIterator[None]:
    """Hold that lock during the block."""
    async with place.open() as store, store.begin_tx() as tx:
        await tx.execute(f"select pg_advisory_xact_lock({HELD})")
        yield


def waiting(place: Place) -> int:
    """How many sessions wait for a lock at the server."""
    return len(place.sessions("wait_event_type = 'Lock'"))


# Books


@attrs.define
class Books:
    """What tasks tried to bring into a store and what came of it, each by a unique name."""

    stood: set[str] = attrs.field(factory=set)  # it returned
    open: set[str] = attrs.field(factory=set)  # `CommitUnknown`
    failed: set[str] = attrs.field(factory=set)  # any other error, a cancellation included

    async def enter(self, unique: str, verb: Callable[[], Awaitable[object]]) -> bool:
        """Do a verb and enter what came of it; whether it returned."""
        try:
            await verb()
        except CommitUnknown:
            self.open.add(unique)
        except DatabaseError as error:
            if not error.transient:
                raise
            self.failed.add(unique)
        except anyio.get_cancelled_exc_class():
            self.failed.add(unique)
            raise
        else:
            self.stood.add(unique)
            return True
        return False

    def check(self, found: list[str], gone: "Books | None" = None) -> None:
        """Compare with what is there; ``gone`` is what was taken out."""
        assert max(Counter(found).values(), default=1) == 1
        there = set(found)
        assert there <= self.stood | self.open  # nothing is invented, and what failed did not happen
        out = gone or Books()
        assert there.isdisjoint(out.stood)
        assert self.stood <= there | out.stood | out.open  # nothing is lost
        assert out.failed & self.stood <= there | out.stood | out.open


@attrs.define
class Traffic:
    """Tasks that do all sorts of things to a store, and their books."""

    store: Store
    jobs: Books = attrs.field(factory=Books)
    acks: Books = attrs.field(factory=Books)
    events: Books = attrs.field(factory=Books)
    transactions: Books = attrs.field(factory=Books)

    async def step(self, unique: str, chance: random.Random) -> None:
        """One of the things; an error of an outage is entered and no more."""
        kind = chance.choice([self._enqueue, self._enqueue, self._claim, self._publish, self._transact, self._transact])
        await kind(unique, chance)

    async def _enqueue(self, unique: str, chance: random.Random) -> None:
        queue = self.store.queue("jobs", visibility_timeout=0.5, max_attempts=100_000)
        await self.jobs.enter(unique, lambda: queue.enqueue(unique))

    async def _claim(self, unique: str, chance: random.Random) -> None:
        try:
            handle = await self.store.queue("jobs").claim("worker")
        except DatabaseError as error:
            if error.transient or isinstance(error, CommitUnknown):
                return
            raise
        if handle is not None:
            job, refused = handle.job.payload, False

            async def ack() -> None:
                nonlocal refused
                refused = not await handle.ack()

            assert job not in self.acks.stood
            await self.acks.enter(job, ack)
            if refused:  # the claim lapsed, or an earlier ack of which nobody knew had landed
                self.acks.stood.discard(job)

    async def _publish(self, unique: str, chance: random.Random) -> None:
        await self.events.enter(unique, lambda: self.store.stream("events").publish(unique))

    async def _transact(self, unique: str, chance: random.Random) -> None:
        async def effects() -> None:
            async with self.store.transaction() as tx:
                await tx.publish_tx("events", f"tx {unique}")
                await anyio.sleep(chance.choice([0, 0.005]))  # held, so that others wait for it
                await tx.enqueue_tx("committed", unique)

        await self.transactions.enter(unique, effects)

    def has_committed(self, transactions: int) -> bool:
        """Whether so many transactions have returned."""
        return len(self.transactions.stood) >= transactions

    async def check(self, store: Store) -> None:
        """Compare the books with what is there."""
        self.jobs.check([job.payload for job in await all_jobs(store.queue("jobs"))], self.acks)
        events = [event.payload for event in await store.stream("events").read_since(0, 1_000_000)]
        self.events.check([event for event in events if not event.startswith("tx ")])
        committed = [job.payload for job in await all_jobs(store.queue("committed"))]
        self.transactions.check(committed)
        assert {event[3:] for event in events if event.startswith("tx ")} == set(committed)


async def check_whole(store: Store, place: Place, connections: int) -> None:
    """The pool can hand out all that it has, and the store's sessions hold nothing."""
    await until(lambda: not place.sessions("state like 'idle in transaction%%'") and not place.locks())
    assert pool_of(store) == whole(connections)
    with anyio.fail_after(BOUND):
        async with AsyncExitStack() as stack:
            for number in range(connections - 1):
                tx = await stack.enter_async_context(store.begin_tx())
                await tx.publish_tx(f"stream {number}", "event")
            assert pool_of(store)["taken"] == connections - 1
            await store.queues()  # by the one that transactions never get


# Sessions that are killed


async def test_sessions_killed_at_any_instant_take_nothing_along_and_invent_nothing(
    place: Place, anyio_backend: str
) -> None:
    chance = random.Random(f"kills on {anyio_backend}")
    over = False

    async def work(number: int) -> None:
        own = random.Random(f"{number} on {anyio_backend}")
        for n in count():
            if over:
                return
            await traffic.step(f"{number}.{n}", own)

    with anyio.fail_after(2 * BOUND):
        async with place.open(max_connections=4) as store:
            traffic = Traffic(store)
            async with store.listen("channel") as listener, anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(work, number)
                killed = 0
                while killed < KILLS:
                    await anyio.sleep(chance.uniform(0, 0.03))
                    sessions = place.sessions()
                    if sessions:
                        place.ask("select pg_terminate_backend(%s)", chance.choice(sessions))
                        killed += 1
                over = True
                while await listener.receive() != RECONNECTED:
                    pass
                await store.notify("channel")
                while await listener.receive() != Wake("channel"):
                    pass
            await traffic.check(store)
            await check_whole(store, place, 4)
    assert len(traffic.jobs.stood) > KILLS // 4
    assert len(traffic.transactions.stood) > KILLS // 8


async def test_a_listener_whose_connection_is_killed_is_told_that_it_may_have_missed_wakes(place: Place) -> None:
    async with place.open() as store, store.listen("channel") as listener:
        [listening] = place.sessions("query like 'listen%%'")
        place.ask("select pg_terminate_backend(%s)", listening)
        with anyio.fail_after(BOUND):
            assert await listener.receive() == RECONNECTED
            async with place.open() as other:
                await other.notify("channel")
            assert await listener.receive() == Wake("channel")


async def transact_and_be_killed(store: Store, place: Place, *, goes_on: bool) -> None:
    async with store.transaction() as tx:
        await tx.publish_tx("stream", "lost")
        [(pid,)] = await tx.execute("select pg_backend_pid()")
        place.ask("select pg_terminate_backend(%s, 10000)", pid)
        if goes_on:
            await tx.enqueue_tx("jobs", "lost")


async def test_a_transaction_whose_session_was_killed_is_transient_and_can_be_begun_again(place: Place) -> None:
    async with place.open() as store:
        with pytest.raises(DatabaseError) as failure:
            await transact_and_be_killed(store, place, goes_on=True)
        assert failure.value.transient
        async with store.transaction() as tx:
            await tx.publish_tx("stream", "there")
        assert [event.payload for event in await store.stream("stream").read_since(0, 10)] == ["there"]
        await check_whole(store, place, 10)


async def test_a_transaction_that_the_server_has_ended_for_its_idleness_is_transient(place: Place) -> None:
    async def transact_and_be_idle() -> None:
        async with store.transaction() as tx:
            await tx.publish_tx("stream", "lost")
            await tx.execute("set local idle_in_transaction_session_timeout to 100")
            [(pid,)] = await tx.execute("select pg_backend_pid()")
            await until(lambda: pid not in place.sessions())
            await tx.publish_tx("stream", "lost")

    async with place.open() as store:
        with pytest.raises(DatabaseError, match="idle_in_transaction_session_timeout") as failure:
            await transact_and_be_idle()
        assert failure.value.transient
        assert not isinstance(failure.value, CommitUnknown)
        assert await store.stream("stream").read_since(0, 10) == []


async def test_a_commit_on_a_session_that_had_been_killed_before_is_transient_and_nothing_stands(place: Place) -> None:
    async with place.open() as store:
        with pytest.raises(DatabaseError) as failure:
            await transact_and_be_killed(store, place, goes_on=False)
        assert await store.stream("stream").read_since(0, 10) == []
        await check_whole(store, place, 10)
        assert failure.value.transient


async def test_a_commit_that_the_server_refuses_is_never_commit_unknown(place: Place) -> None:
    async with place.open() as store:
        place.ask(f"create table {place.schema}.mine (x int unique deferrable initially deferred)")
        for before in ("select 1", "set local work_mem to '1MB'", "set work_mem to '1MB'"):
            async with store.begin_tx() as tx:
                await tx.publish_tx("stream", "lost")
                await tx.execute(before)
                await tx.execute(f"insert into {place.schema}.mine values (1), (1)")
                with pytest.raises(DatabaseError, match="unique") as failure:
                    await tx.commit()
            assert type(failure.value) is DatabaseError, before
        assert await store.stream("stream").read_since(0, 10) == []
        await check_whole(store, place, 10)


# A server that is down


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_verbs_fail_at_once_and_transiently_while_the_server_is_down_and_work_again_after(
    server: Server, place: Place, mode: Literal["fast", "immediate"]
) -> None:
    async with place.open() as store:
        for verb in VERBS:
            await verb(store)
        with stopped(server, mode):
            for verb in VERBS:
                with anyio.fail_after(BOUND), pytest.raises(DatabaseError) as failure:
                    await verb(store)
                assert failure.value.transient, verb
                assert not isinstance(failure.value, CommitUnknown)
                assert failure.value.__cause__ is not None
        for verb in VERBS:
            await verb(store)
        await check_whole(store, place, 10)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_whoever_waits_goes_on_after_a_restart(
    server: Server, place: Place, mode: Literal["fast", "immediate"]
) -> None:
    handled, send = anyio.create_memory_object_stream[Any](100), StopToken()
    beats, stop = anyio.create_memory_object_stream[Any](100), send

    async def handle(job: Job) -> None:
        await handled[0].send(job.payload)

    async def beat(job: Job) -> None:
        beats[0].send_nowait(job.id)

    with anyio.fail_after(3 * BOUND):
        async with AsyncExitStack() as stack:
            for end in (*handled, *beats):
                stack.enter_context(end)
            store = await stack.enter_async_context(place.open())
            tasks = await stack.enter_async_context(anyio.create_task_group())
            wakes = await stack.enter_async_context(store.listen("channel"))
            events = await stack.enter_async_context(store.stream("stream").subscribe("consumer"))
            await tasks.start(partial(store.queue("jobs").run_worker, handle, stop=stop))
            await tasks.start(partial(store.queue("beats").run_worker, beat, stop=stop))
            await tasks.start(partial(store.run_schedules, stop, standby=True))
            await store.schedule("beat", "@every 1s", "beats", "beat")
            await beats[1].receive()
            with stopped(server, mode):
                pass
            assert await wakes.receive() == RECONNECTED
            await store.queue("jobs").enqueue("job")
            await store.stream("stream").publish("event")
            await store.notify("channel")
            assert await handled[1].receive() == "job"
            assert (await events.receive()).payload == "event"
            while (wake := await wakes.receive()) == RECONNECTED:  # again, if an answer was lost
                pass
            assert wake == Wake("channel")
            while beats[1].statistics().current_buffer_used:
                beats[1].receive_nowait()
            await beats[1].receive()
            stop.cancel()


async def test_a_store_opened_on_a_server_that_is_down_says_so(server: Server, place: Place) -> None:
    with stopped(server, "fast"), pytest.raises(DatabaseError, match="cannot be reached") as failure:
        async with place.open():
            pass
    assert failure.value.transient


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_what_had_returned_is_there_after_the_server_crashed(anyio_backend: str) -> None:
    crashed = 0

    async def work(traffic: Traffic, crash: int, number: int) -> None:
        chance = random.Random(f"{crash}.{number}")
        for n in count():
            if crashed > crash:
                return
            await traffic.step(f"{crash}.{number}.{n}", chance)

    with Server(fsync=True) as server, anyio.fail_after(3 * BOUND):
        place = Place(server.dsn, "crashes")
        async with place.open(max_connections=4) as store:
            traffic = Traffic(store)
            for crash in range(2):
                enough = len(traffic.transactions.stood) + 20
                async with anyio.create_task_group() as tasks:
                    for number in range(6):
                        tasks.start_soon(work, traffic, crash, number)
                    await until(partial(traffic.has_committed, enough))
                    await anyio.to_thread.run_sync(server.stop, "immediate")
                    crashed += 1
                server.start()
                await traffic.check(store)
            await check_whole(store, place, 4)


# A server that no longer answers


async def test_closing_an_idle_store_takes_bounded_time_where_nobody_answers(
    server: Server, place: Place, impatient: None
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            await enqueue(store)
            between.half_open()


async def test_leaving_a_transaction_and_its_store_takes_bounded_time_where_nobody_answers(
    server: Server, place: Place, impatient: None
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), store.begin_tx() as tx:
            await tx.publish_tx("stream", "event")
            between.half_open()


async def test_closing_takes_bounded_time_while_transactions_stay_open_where_nobody_answers(
    server: Server, place: Place, impatient: None
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), store.begin_tx() as tx:
            await tx.publish_tx("stream", "event")
            between.half_open()
            await store.aclose()
            with pytest.raises(Closed):
                await tx.publish_tx("stream", "event")


@pytest.mark.parametrize("verb", [enqueue, claim_and_ack, transact])
async def test_leaving_a_store_takes_bounded_time_with_a_statement_cancelled_where_nobody_answers(
    server: Server, place: Place, impatient: None, verb: Verb
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            await verb(store)
            async with anyio.create_task_group() as tasks:
                between.half_open()
                tasks.start_soon(perhaps, verb, store)
                await until(lambda: under_way(store))
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("verb", [enqueue, claim_and_ack])
async def test_a_statement_under_way_ends_when_its_store_is_closed_where_nobody_answers(
    server: Server, place: Place, impatient: None, verb: Verb
) -> None:
    outcome: list[BaseException] = []

    async def waiting(store: Store) -> None:
        try:
            await verb(store)
        except AlkstoreError as error:
            outcome.append(error)

    with anyio.fail_after(BOUND / 4):
        async with proxied(server, place) as (store, between):
            await verb(store)
            async with anyio.create_task_group() as tasks:
                between.half_open()
                tasks.start_soon(waiting, store)
                await until(lambda: under_way(store))
                await store.aclose()
    assert len(outcome) == 1


# A network that fails


async def test_a_commit_whose_connection_is_cut_before_it_arrives_is_commit_unknown(
    server: Server, place: Place
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            outcome: list[BaseException] = []
            stalled = anyio.Event()

            async def commits() -> None:
                try:
                    async with store.transaction() as tx:
                        await tx.publish_tx("stream", "event")
                        between.stall()
                        stalled.set()
                except DatabaseError as error:
                    outcome.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(commits)
                await stalled.wait()
                await until(lambda: under_way(store))
                between.cut()
            between.resume()
            [error] = outcome
            assert isinstance(error, CommitUnknown)
            assert not error.transient
            assert not error.retryable
            assert error.__cause__ is not None
            assert await store.stream("stream").read_since(0, 10) == []
            await check_whole(store, place, 10)


async def test_a_commit_whose_connection_is_cut_before_its_answer_is_commit_unknown_and_may_stand(
    server: Server, place: Place
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            slowed(place, "events", "at the commit")
            outcome: list[DatabaseError] = []

            async def commits() -> None:
                try:
                    async with store.transaction() as tx:
                        await tx.publish_tx("stream", "event")
                except DatabaseError as error:
                    outcome.append(error)

            async with held(place), anyio.create_task_group() as tasks:
                tasks.start_soon(commits)
                await until(lambda: place.sessions("query = 'commit' and wait_event_type = 'Lock'"))
                between.cut()
            assert [type(error) for error in outcome] == [CommitUnknown]
            await until(lambda: not place.sessions("state = 'active'"))
            assert [event.payload for event in await store.stream("stream").read_since(0, 10)] == ["event"]


async def test_a_write_whose_connection_is_cut_is_commit_unknown_and_a_read_transient(
    server: Server, place: Place
) -> None:
    writes = [enqueue, claim_and_ack, publish, save_offset, sweep, notify, lock, schedule]
    reads = [read, statistics, names]
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            for verb in (*writes, *reads):
                await verb(store)
                between.stall()
                with pytest.raises(DatabaseError) as failure:
                    async with _cut_under_way(store, between):
                        await verb(store)
                assert isinstance(failure.value, CommitUnknown) is (verb in writes), verb
                assert failure.value.transient is (verb in reads), verb
                between.resume()
            await check_whole(store, place, 10)


@asynccontextmanager
async def _cut_under_way(store: Store, between: Proxy) -> AsyncIterator[None]:
    """Cut all connections once a statement is under way in the block."""
    error: BaseException | None = None

    async def cut() -> None:
        await until(lambda: under_way(store))
        between.cut()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cut)
        try:
            yield
        except DatabaseError as failure:
            error = failure
    if error is not None:
        raise error


async def test_calls_that_travel_together_and_whose_connection_is_cut_are_not_sent_again(
    server: Server, place: Place
) -> None:
    outcomes: list[DatabaseError] = []

    async def enqueues(unique: str) -> None:
        try:
            await store.queue("jobs").enqueue(unique)
        except DatabaseError as error:
            outcomes.append(error)

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            slowed(place, "jobs", "at once")
            async with held(place), anyio.create_task_group() as tasks:
                for unique in ("alone", "one", "two", "three"):
                    tasks.start_soon(enqueues, unique)
                await until(lambda: waiting(place) == 1)
                between.cut()  # the first; then the others go together
                await until(lambda: len(outcomes) == 1 and waiting(place) == 2)
                between.cut()
            assert [type(error) for error in outcomes] == [CommitUnknown] * 4
            assert len({id(error) for error in outcomes}) == 4  # each is raised in a task of its own
            await until(lambda: not place.sessions("state = 'active'"))
            assert sorted(job.payload for job in await all_jobs(store.queue("jobs"))) == [
                "alone",
                "one",
                "three",
                "two",
            ]


async def test_a_worker_outlives_a_claim_whose_connection_is_cut(server: Server, place: Place) -> None:
    done = anyio.Event()

    async def handle(job: Job) -> None:
        done.set()

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), anyio.create_task_group() as tasks:
            await tasks.start(store.queue("jobs").run_worker, handle)
            await until(lambda: not under_way(store))
            between.stall()
            engine_of(store).hub.reconnected()  # so that it looks
            await until(lambda: under_way(store))
            between.cut()
            between.resume()
            async with place.open() as other:
                await other.queue("jobs").enqueue("job")
            await done.wait()
            tasks.cancel_scope.cancel()


async def test_a_worker_outlives_an_ack_whose_connection_is_cut(server: Server, place: Place) -> None:
    handled: list[Any] = []
    both = anyio.Event()

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), anyio.create_task_group() as tasks:

            async def handle(job: Job) -> None:
                handled.append(job.payload)
                if len(handled) == 1:
                    between.stall()
                    tasks.start_soon(cut)
                else:
                    both.set()

            async def cut() -> None:
                await until(lambda: ("acks", "jobs") in engine_of(store)._named and under_way(store))
                between.cut()
                between.resume()

            await store.queue("jobs").enqueue("first")
            await tasks.start(store.queue("jobs").run_worker, handle)
            await until(lambda: handled)
            async with place.open() as other:
                await other.queue("jobs").enqueue("second")
            await both.wait()
            tasks.cancel_scope.cancel()


async def test_a_leader_outlives_a_renewal_whose_connection_is_cut(server: Server, place: Place) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), anyio.create_task_group() as tasks:
            await tasks.start(store.run_schedules)
            await until(lambda: not under_way(store))
            between.stall()
            engine_of(store).hub.reconnected()  # so that it renews
            await until(lambda: under_way(store))
            between.cut()
            between.resume()
            async with place.open() as other:
                await other.schedule("beat", "@every 1s", "beats", "beat")
                while not await other.queue("beats").jobs():
                    pass
            tasks.cancel_scope.cancel()


async def test_a_lock_is_kept_over_a_renewal_whose_connection_is_cut(
    server: Server, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, renew = 0, LockHandle.renew

    async def cut_once(self: LockHandle, ttl: float) -> bool:
        nonlocal cut
        cut += 1
        if cut == 2:  # the first is of the entry
            between.stall()
            async with _cut_under_way(store, between):
                return await renew(self, ttl)
        between.resume()
        return await renew(self, ttl)

    monkeypatch.setattr(LockHandle, "renew", cut_once)
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), store.hold_lock("lock", ttl=3):
            await until(lambda: cut > 2)
            [(expires_in,)] = place.ask(
                f"select expires_at - extract(epoch from clock_timestamp()) from {place.schema}.locks"
            )
            assert expires_in > 0


@pytest.mark.parametrize("verb", [enqueue, claim_and_ack, publish, read, transact])
async def test_a_verb_that_is_cancelled_where_nobody_answers_ends_in_bounded_time(
    server: Server, place: Place, impatient: None, verb: Verb
) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            await verb(store)
            between.half_open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(perhaps, verb, store)
                await until(lambda: under_way(store))
                tasks.cancel_scope.cancel()
            between.resume()
            await verb(store)
            pool = engine_of(store).pool
            assert (pool._taken, pool._places, pool._shares) == ({}, 10, 9)


async def test_a_verb_that_travels_with_others_and_is_cancelled_where_nobody_answers_ends_in_bounded_time(
    server: Server, place: Place, impatient: None
) -> None:
    given_up, left = False, 0
    first = anyio.CancelScope()

    async def go_first() -> None:
        with first:
            await enqueue(store)

    async def go_with_others() -> None:
        nonlocal left
        try:
            await perhaps(enqueue, store)
        finally:
            left += 1

    async def give_up() -> None:
        """End a wait that no cancellation ends."""
        nonlocal given_up
        with anyio.move_on_after(BOUND / 4, shield=True):
            await until(lambda: left == 2)
            return
        given_up = True
        between.cut()

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            slowed(place, "jobs", "at once")
            async with held(place), anyio.create_task_group() as tasks:
                tasks.start_soon(go_first)
                await until(lambda: waiting(place) == 1)
                for _ in range(2):
                    tasks.start_soon(go_with_others)
                await until(lambda: len(engine_of(store)._enqueues._waiting) == 2)
                first.cancel()  # this one is called off, and then the others go together
                await until(lambda: not engine_of(store)._enqueues._waiting and waiting(place) == 1)
                between.half_open()
                tasks.start_soon(give_up)
                tasks.cancel_scope.cancel()
            assert not given_up, "they would have waited for good"


async def test_a_cancellation_that_cannot_tell_whether_its_statement_stands_does_not_say_that_it_does_not(
    server: Server, place: Place, impatient: None
) -> None:
    outcome: list[str] = []

    async def enqueues() -> None:
        try:
            await store.queue("jobs").enqueue("perhaps")
        except CommitUnknown:
            outcome.append("unknown")
        except anyio.get_cancelled_exc_class():
            outcome.append("cancelled")
            raise
        else:
            outcome.append("stands")

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between):
            slowed(place, "jobs", "at once")
            async with held(place), anyio.create_task_group() as tasks:
                tasks.start_soon(enqueues)
                await until(lambda: waiting(place) == 1)
                between.half_open()  # the server has the statement, and neither its answer nor a cancel gets through
                tasks.cancel_scope.cancel()
            await until(lambda: not place.sessions("state = 'active'"))
            [(stands,)] = place.ask(f"select count(*) from {place.schema}.jobs where body like '%%perhaps%%'")
            assert stands == 1
            assert outcome == ["unknown"]


async def test_a_listening_connection_that_is_half_open_is_noticed_and_replaced(
    server: Server, place: Place, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "_PROBE", SOON)
    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), store.listen("channel") as listener:
            between.half_open()
            between.resume()  # for new connections
            assert await listener.receive() == RECONNECTED
            async with place.open() as other:
                await other.notify("channel")
            while await listener.receive() != Wake("channel"):
                pass


async def test_a_connection_that_is_half_open_before_it_listens_is_noticed_too(
    server: Server, place: Place, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "_PROBE", SOON)
    listen, failures = AsyncAnyioConnection.listen, 1

    async def half_open_first(self: AsyncAnyioConnection, channel: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            between.half_open()
            between.resume()  # for new connections
        await listen(self, channel)

    with anyio.fail_after(BOUND):
        async with proxied(server, place) as (store, between), store.listen("channel") as listener:
            monkeypatch.setattr(AsyncAnyioConnection, "listen", half_open_first)
            between.cut()
            with anyio.fail_after(BOUND / 4):
                assert await listener.receive() == RECONNECTED


async def test_a_store_whose_telling_connection_is_half_open_tells_others_again(
    server: Server, place: Place, impatient: None
) -> None:
    with anyio.fail_after(BOUND):
        async with place.open() as other, proxied(server, place) as (store, between):
            with bell_on(engine_of(other), "__alkstore_queue_wake:jobs") as bell:
                woken = bell.arm()
                await enqueue(store)
                await woken.wait()
                between.half_open()
                between.resume()  # for new connections
                for own in engine_of(store).pool._idle:
                    own.abort()  # the pool's have been found out
                woken = bell.arm()
                with anyio.fail_after(BOUND / 4):
                    while not woken.is_set():  # a wake may be lost, but not all that follow
                        await enqueue(store)
                        await anyio.sleep(0.05)


async def test_a_peer_that_vanished_with_a_statement_under_way_is_found_out_by_the_kernel(
    server: Server, place: Place
) -> None:
    connected = await AsyncAnyioConnection.connect(place.url(server.port))
    with socket.socket(fileno=socket.dup(connected.pgconn.socket)) as own:
        timeout = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    connected.abort()
    assert 0 < timeout <= 60_000


# Callers that are cancelled


async def test_verbs_cancelled_at_any_instant_did_nothing_or_all_and_leave_the_store_whole(
    place: Place, anyio_backend: str
) -> None:
    cancelled = 0

    async def work(number: int) -> None:
        nonlocal cancelled
        chance = random.Random(f"cancellations {number} on {anyio_backend}")
        for n in range(ROUNDS):
            with anyio.move_on_after(chance.uniform(0, 0.03)) as scope:
                await traffic.step(f"{number}.{n}", chance)
            cancelled += scope.cancelled_caught

    with anyio.fail_after(2 * BOUND):
        async with place.open(max_connections=5) as store:
            traffic = Traffic(store)
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(work, number)
            await traffic.check(store)
            await check_whole(store, place, 5)
            assert {job.state for job in await all_jobs(store.queue("jobs"))} <= {JobState.PENDING, JobState.PROCESSING}
    assert cancelled > ROUNDS
    assert len(traffic.jobs.stood) + len(traffic.transactions.stood) > ROUNDS // 2
    assert traffic.jobs.open | traffic.acks.open | traffic.events.open | traffic.transactions.open == set()


async def test_each_verb_cancelled_at_any_instant_leaves_the_store_whole(place: Place, anyio_backend: str) -> None:
    chance = random.Random(f"verbs on {anyio_backend}")
    with anyio.fail_after(2 * BOUND):
        async with place.open(max_connections=3) as store:
            for verb in VERBS:
                await verb(store)
                for _ in range(20):
                    with anyio.move_on_after(chance.uniform(0, 0.006)):
                        await verb(store)
                await check_whole(store, place, 3)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tasks_cancelled_at_any_instant_without_a_scope_did_nothing_or_all(
    place: Place, anyio_backend: str
) -> None:
    import asyncio

    cancelled = 0

    async def work(number: int) -> None:
        nonlocal cancelled
        chance = random.Random(f"tasks {number}")
        for n in range(ROUNDS):
            task = asyncio.create_task(traffic.step(f"{number}.{n}", chance))
            await asyncio.wait([task], timeout=chance.uniform(0, 0.03))
            task.cancel()
            await asyncio.wait([task])
            cancelled += task.cancelled()
            if not task.cancelled():
                await task

    with anyio.fail_after(2 * BOUND):
        async with place.open(max_connections=5) as store:
            traffic = Traffic(store)
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(work, number)
            await traffic.check(store)
            await check_whole(store, place, 5)
    assert cancelled > ROUNDS // 2


async def test_a_verb_that_is_cancelled_while_it_connects_gives_its_place_back(server: Server, place: Place) -> None:
    with anyio.fail_after(BOUND):
        async with proxied(server, place, max_connections=3) as (store, between):
            between.stall()
            idle = engine_of(store).pool._idle
            while idle:
                idle.pop().abort()
            for verb in (enqueue, claim_and_ack, transact):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(verb, store)
                    await until(lambda: len(between._links) > 1)  # the one that listens, and one that comes to be
                    tasks.cancel_scope.cancel()
            between.resume()
            await check_whole(store, place, 3)


# Who waits for whom


async def test_of_two_transactions_that_publish_in_opposite_order_one_is_retryable(place: Place) -> None:
    outcomes: list[DatabaseError | None] = []

    async with place.open() as store:
        both = Meeting(2)

        async def publish(first: str, second: str) -> None:
            try:
                async with store.transaction() as tx:
                    await tx.publish_tx(first, "event")
                    await both.meet()
                    await tx.publish_tx(second, "event")
            except DatabaseError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)

        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish, "one", "two")
                tasks.start_soon(publish, "two", "one")
        [error] = [outcome for outcome in outcomes if outcome is not None]
        assert len(outcomes) == 2
        assert error.retryable
        assert not error.transient
        for stream in ("one", "two"):
            assert len(await store.stream(stream).read_since(0, 10)) == 1
        await check_whole(store, place, 10)


async def test_with_attempts_left_both_of_two_transactions_that_publish_in_opposite_order_succeed(
    place: Place,
) -> None:
    async with place.open() as store:
        both, attempts = Meeting(2), 0

        async def publish(first: str, second: str, tx: Tx) -> str:
            nonlocal attempts
            attempts += 1
            await tx.publish_tx(first, "event")
            await both.meet()
            await tx.publish_tx(second, "event")
            return first

        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as tasks:
                for order in (("one", "two"), ("two", "one")):
                    tasks.start_soon(partial(store.with_tx, partial(publish, *order), attempts=3))
        assert attempts > 2  # who waits for who tries again may meet it once more
        for stream in ("one", "two"):
            assert len(await store.stream(stream).read_since(0, 10)) == 2
        await check_whole(store, place, 10)


class Meeting:
    """Where so many wait for each other, once."""

    def __init__(self, members: int) -> None:
        self._missing = members
        self._complete = anyio.Event()

    async def meet(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._complete.set()
        await self._complete.wait()


async def _holds(store: Store, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Hold a stream and an offset, until cancelled."""
    async with store.begin_tx() as tx:
        await tx.publish_tx("stream", "held")
        await tx.save_offset_tx("stream", "consumer", 5)
        task_status.started()
        await anyio.sleep_forever()


async def in_another_tx(verb: Callable[[Tx], Awaitable[object]], store: Store) -> object:
    return await store.with_tx(verb)


WAITING: list[Verb] = [
    publish,
    save_offset,
    partial(in_another_tx, lambda tx: tx.publish_tx("stream", "event")),
    partial(in_another_tx, lambda tx: tx.save_offset_tx("stream", "consumer", 7)),
]


async def test_a_write_that_waits_for_another_tasks_transaction_in_vain_is_transient_and_names_the_task(
    place: Place,
) -> None:
    with anyio.fail_after(BOUND):
        async with place.open(lock_timeout=0.3) as store:
            async with anyio.create_task_group() as tasks:
                await tasks.start(_holds, store, name="the one that holds")
                for verb in WAITING:
                    with pytest.raises(DatabaseError, match="the one that holds") as failure:
                        await verb(store)
                    assert failure.value.transient
                    assert "'stream'" in str(failure.value)
                    assert "0.3 s" in str(failure.value)
                tasks.cancel_scope.cancel()
            for verb in WAITING:
                await verb(store)
            await check_whole(store, place, 10)


async def test_a_write_that_waits_for_another_stores_transaction_in_vain_is_transient_and_says_so(
    place: Place,
) -> None:
    with anyio.fail_after(BOUND):
        async with place.open() as other, place.open(lock_timeout=0.3) as store, anyio.create_task_group() as tasks:
            await tasks.start(_holds, other, name="the one that holds")
            [holding] = place.sessions("state = 'idle in transaction'")
            for verb in WAITING:
                with pytest.raises(DatabaseError, match="another connection") as failure:
                    await verb(store)
                assert failure.value.transient
                assert f"pid {holding}" in str(failure.value)
                assert "the one that holds" not in str(failure.value)
            tasks.cancel_scope.cancel()


async def test_a_write_that_would_wait_for_its_own_task_is_refused_at_once(place: Place) -> None:
    with anyio.fail_after(BOUND):
        async with place.open() as store:
            async with store.transaction() as tx:
                await tx.publish_tx("stream", "event")
                await tx.save_offset_tx("stream", "consumer", 5)
                for verb in WAITING:
                    with pytest.raises(RuntimeError, match="of this task"):
                        await verb(store)
                await tx.publish_tx("stream", "event")  # nothing is spoiled
            for verb in WAITING:
                await verb(store)
            await check_whole(store, place, 10)


async def test_a_holder_that_is_gone_holds_nobody_up(place: Place) -> None:
    async with place.open() as store:
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as tasks:
                await tasks.start(_holds, store)
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(publish, store)
                    await until(lambda: place.sessions("wait_event_type = 'Lock'"))
                    tasks.cancel_scope.cancel()
        assert [event.payload for event in await store.stream("stream").read_since(0, 10)] in ([], ["event"])
        await check_whole(store, place, 10)
