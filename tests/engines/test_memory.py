"""What only the memory engine has: gaps, a wake per notify, indexes that stay small, transactions ended by dropping."""

import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from alkstore_trio import Job, Queue, StopToken, Store, StreamEvent, Wake, _loop, open_memory, open_store
from alkstore_trio._engines import memory
from alkstore_trio._engines.queue_table import QueueTable
from alkstore_trio._engines.tables import StreamTable
from alkstore_trio._rules.queue import JobRow
from alkstore_trio.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock, anyio_backend: str) -> AsyncIterator[Store]:
    async with open_memory(clock=clock) as opened:
        yield opened


# Opening


@pytest.mark.parametrize("options", [{}, {"clock": lambda: 5.0}])
async def test_a_memory_store_opens_by_url(options: dict[str, Any]) -> None:
    async with open_store("memory:", **options) as store:
        assert await store.queue("q").enqueue("x") == 1
        job = await store.queue("q").get_job(1)
        assert job is not None
        assert (job.created_at == 5.0) is ("clock" in options)


async def test_two_memory_stores_share_nothing() -> None:
    async with open_store("memory:") as one, open_store("memory:") as other:
        await one.queue("q").enqueue("x")
        assert await other.queues() == []


@pytest.mark.parametrize("url", ["", "memory", "memory:x", "memory://", "memory:?a=1", "redis://host", "://", "q:"])
async def test_a_bad_url_is_refused_at_the_call(url: str) -> None:
    with pytest.raises(ValueError, match="memory:"):
        open_store(url)


async def test_a_refused_url_keeps_its_password_to_itself() -> None:
    with pytest.raises(ValueError, match="unknown scheme 'mysql'") as refusal:
        open_store("mysql://user:secret@host/base")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (None, {}),
        (b"memory:", {}),
        ("memory:", {"path": "x"}),
        ("memory:", {"clock": 5.0}),
        ("memory:", {"clock": "now"}),
    ],
)
async def test_a_url_or_an_option_of_the_wrong_type_is_a_type_error_at_the_call(url: Any, options: Any) -> None:
    with pytest.raises(TypeError):
        open_store(url, **options)


async def test_there_is_no_connection_to_join(store: Store) -> None:
    with pytest.raises(RuntimeError, match="memory"):
        store.join(object())  # type: ignore[call-overload]  # which is what is tested


async def test_there_is_no_sql_to_execute_and_the_transaction_stays_usable(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RuntimeError, match="memory"):
            await tx.execute("select 1")
        await tx.enqueue_tx("q", "x")
    assert (await store.queue("q").statistics()).pending == 1


# Numbers


async def test_what_a_discarded_transaction_was_given_is_a_gap(store: Store) -> None:
    async with store.begin_tx() as tx:
        assert await tx.enqueue_tx("q", "x") == 1
        assert await tx.outbox_enqueue_tx("o", "x") == 2
        assert await tx.publish_tx("s", "x") == 1
        assert await tx.publish_tx("other", "x") == 1
    assert await store.queue("q").enqueue("x") == 3
    assert await store.stream("s").publish("x") == 2
    assert await store.stream("fresh").publish("x") == 1


async def test_ids_are_given_in_the_order_of_staging(store: Store) -> None:
    async with store.begin_tx() as one, store.begin_tx() as other:
        ids = [
            await one.enqueue_tx("q", "x"),
            await other.enqueue_tx("q", "x"),
            await store.queue("r").enqueue("x"),
            *await store.queue("q").enqueue_many("xy"),
            await one.enqueue_tx("q", "x"),
        ]
        await other.commit()
        await one.commit()
    assert ids == [1, 2, 3, 4, 5, 6]
    assert [job.id for job in await store.queue("q").jobs()] == [1, 2, 4, 5, 6]


# Wakes


async def test_every_notify_is_a_wake_until_the_buffer_is_full(store: Store) -> None:
    async with store.listen("c") as wakes:
        for _ in range(3):
            await store.notify("c")
        assert [wakes.receive_nowait() for _ in range(3)] == [Wake("c")] * 3
        for _ in range(10_000):
            await store.notify("c")
        for _ in range(4_096):
            wakes.receive_nowait()
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()
        await store.notify("c")
        assert wakes.receive_nowait() == Wake("c")


async def test_a_transaction_keeps_its_duplicates(store: Store) -> None:
    async with store.listen("c") as wakes:
        async with store.transaction() as tx:
            for channel in ("c", "d", "c"):
                await tx.notify_tx(channel)
        assert [wakes.receive_nowait() for _ in range(2)] == [Wake("c")] * 2
        with pytest.raises(anyio.WouldBlock):
            wakes.receive_nowait()


async def test_a_wake_is_there_when_its_verb_returns(store: Store) -> None:
    async with store.listen("c") as wakes:
        await store.notify("c")
        wakes.receive_nowait()
        async with store.begin_tx() as tx:
            await tx.notify_tx("c")
            await tx.commit()
            wakes.receive_nowait()


# Fairness

VERBS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "enqueue": lambda store: store.queue("q").enqueue("x", expires=-1),
    "claim": lambda store: store.queue("q").claim("w"),
    "claim_batch of none": lambda store: store.queue("q").claim_batch("w", 0),
    "statistics": lambda store: store.queue("q").statistics(),
    "publish": lambda store: store.stream("s").publish("x"),
    "read_since": lambda store: store.stream("s").read_since(0, 1),
    "read_since none": lambda store: store.stream("s").read_since(0, 0),
    "notify": lambda store: store.notify("c"),
    "try_lock": lambda store: store.try_lock("l", "o", 1),
    "transaction": lambda store: store.with_tx(lambda tx: tx.enqueue_tx("q", "x")),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_loop_of_verbs_lets_other_tasks_have_their_turns(
    store: Store, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    for module in memory, _loop:
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) * 1e-5)  # each look at it takes 10 microseconds
    turns = calls = 0

    async def other() -> None:
        nonlocal turns
        while turns < 20:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        while turns < 20:
            await VERBS[verb](store)
            calls += 1
            assert calls < 20 * 50  # a turn of "a few hundred microseconds" is at most fifty looks
    assert calls > 20 * 2  # and no verb pays a full turn of the loop each time


async def test_a_receiver_that_always_finds_something_lets_other_tasks_have_their_turns(store: Store) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        for _ in range(5):
            await checkpoint()
            turns += 1

    async with store.listen("c") as wakes, anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(100_000):
            await store.notify("c")
            await wakes.receive()
            if turns == 5:
                break
        assert turns == 5


# Dropped transactions


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Whatever goes, goes because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _hold_back(store: Store) -> Any:
    """An open block whose transaction holds back an event of the stream ``s``."""
    block = store.begin_tx()
    tx = await block.__aenter__()
    await tx.publish_tx("s", "held")
    await tx.enqueue_tx("q", "x")
    await tx.save_offset_tx("s", "c", 5)
    await tx.get_job_tx("q", 1)
    await tx.read_since_tx("s", 0, 10)
    await tx.read_from_consumer_tx("s", "c", 10)
    with suppress(ValueError):
        await tx.publish_tx("", "refused")
    assert await store.stream("s").publish("after") == 2
    assert await store.stream("s").read_since(0, 10) == []
    return block


async def _uncovered(store: Store) -> None:
    """Returns once the event after the dropped one is seen; nothing of the dropped one ever is."""
    for _ in range(10):
        await checkpoint()
    assert [event.offset for event in await store.stream("s").read_since(0, 10)] == [2]
    assert await store.queues() == []
    assert await store.stream("s").get_offset("c") == 0


@pytest.mark.usefixtures("no_collector")
async def test_a_transaction_that_is_dropped_is_discarded_at_once(store: Store) -> None:
    block = await _hold_back(store)
    del block
    await _uncovered(store)


@pytest.mark.usefixtures("no_collector")
async def test_a_transaction_that_is_dropped_in_another_thread_is_discarded(store: Store) -> None:
    held = [await _hold_back(store)]
    await anyio.to_thread.run_sync(held.clear)
    await _uncovered(store)


@pytest.mark.usefixtures("no_collector")
async def test_a_dropped_transaction_wakes_the_subscriber_that_it_held_back(store: Store) -> None:
    async with store.stream("s").subscribe("other") as events:
        block = await _hold_back(store)
        with pytest.raises(anyio.WouldBlock):
            events.receive_nowait()
        del block
        with anyio.fail_after(5):
            assert (await events.receive()).offset == 2


async def test_a_transaction_that_is_dropped_after_its_loop_is_no_error(anyio_backend: str) -> None:
    left: list[Any] = []

    async def leave() -> None:
        async with open_memory() as store:
            left.append(await _hold_back(store))

    await anyio.to_thread.run_sync(lambda: anyio.run(leave, backend=anyio_backend))
    left.clear()


# Indexes

JOBS = 100_000
ROUND = 1_000
ENTRIES = 5 * ROUND  # what a round leaves behind may be stale entries of every index, and no more


def _entries() -> int:
    """The job rows that anything refers to, and the index entries that refer to one."""
    gc.collect()
    return sum(type(thing[-1] if type(thing) is tuple and thing else thing) is JobRow for thing in gc.get_objects())


async def _acked(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(ROUND))
    await queue.ack_batch(await queue.claim_batch("w", ROUND))


async def _acked_before_they_expire(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(ROUND), expires=1e6)
    await queue.ack_batch(await queue.claim_batch("w", ROUND))


async def _deleted_while_ready(queue: Queue, clock: ManualClock) -> None:
    await queue.delete(await queue.enqueue_many(range(ROUND)))


async def _deleted_while_delayed(queue: Queue, clock: ManualClock) -> None:
    await queue.delete(await queue.enqueue_many(range(ROUND), delay=1e6))


async def _deleted_out_of_order(queue: Queue, clock: ManualClock) -> None:
    for step in range(ROUND // 100):
        ids = await queue.enqueue_many(range(100), run_at=-step, priority=step % 40)
        await queue.delete(ids)


async def _renewed_again_and_again(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(10))
    handles = await queue.claim_batch("w", 10)
    for _ in range(ROUND // 10):
        for handle in handles:
            await handle.heartbeat()
    await queue.ack_batch(handles)


async def _released_again_and_again(queue: Queue, clock: ManualClock) -> None:
    ids = await queue.enqueue_many(range(10), expires=1e6)
    for step in range(ROUND // 10):
        for handle in await queue.claim_batch("w", 10):
            await handle.release(delay=-step % 7)
    await queue.delete(ids)


async def _retried_later(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(ROUND), max_attempts=2)
    for handle in await queue.claim_batch("w", ROUND):
        await handle.retry("x", 1)
    clock.advance(1)
    await queue.ack_batch(await queue.claim_batch("w", ROUND))


async def _lapsed(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(ROUND))
    await queue.claim_batch("w", ROUND)
    clock.advance(301)
    await queue.ack_batch(await queue.claim_batch("w", ROUND))


async def _dead_and_revived(queue: Queue, clock: ManualClock) -> None:
    ids = await queue.enqueue_many(range(ROUND // 2))
    for _ in range(2):
        for handle in await queue.claim_batch("w", ROUND):
            await handle.fail("x")
        await queue.revive(ids)
    await queue.ack_batch(await queue.claim_batch("w", ROUND))


async def _buried_and_swept(queue: Queue, clock: ManualClock) -> None:
    await queue.enqueue_many(range(ROUND), expires=0)
    await queue.sweep_expired()
    clock.advance(60)
    await queue.sweep_expired()


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
@pytest.mark.parametrize(
    "churn",
    [
        _acked,
        _acked_before_they_expire,
        _deleted_while_ready,
        _deleted_while_delayed,
        _deleted_out_of_order,
        _renewed_again_and_again,
        _released_again_and_again,
        _retried_later,
        _lapsed,
        _dead_and_revived,
        _buried_and_swept,
    ],
)
async def test_nothing_grows_however_many_jobs_pass(
    store: Store, clock: ManualClock, churn: Callable[[Queue, ManualClock], Awaitable[None]]
) -> None:
    queue = store.queue("q", dead_retention=60)
    rounds = (JOBS if churn is _acked else JOBS // 10) // ROUND
    await queue.enqueue("stays")
    await queue.enqueue("stays", priority=-50, delay=1e9)
    (stays,) = await queue.claim_batch("w", 1)
    await stays.heartbeat(1e9)
    for _ in range(rounds):
        await churn(queue, clock)
    assert _entries() < ENTRIES
    assert [job.id for job in await queue.jobs()] == [1, 2]


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_queues_that_are_empty_are_forgotten(store: Store) -> None:
    for number in range(1_000):
        queue = store.queue(f"q{number}")
        await queue.enqueue("x")
        handle = await queue.claim("w")
        assert handle is not None
        await handle.ack()
        await store.queue(f"never{number}").statistics()
    gc.collect()
    assert sum(type(thing) is QueueTable for thing in gc.get_objects()) < 500
    assert await store.queues() == []


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_queues_that_hold_a_job_are_kept(store: Store) -> None:
    names = sorted(f"q{number}" for number in range(1_000))
    for name in names:
        await store.queue(name).enqueue("x")
        await store.queue(f"never-{name}").claim("w")
    assert await store.queues() == names


async def test_a_rolled_back_transaction_leaves_no_rows(store: Store) -> None:
    before = _entries()
    for number in range(100):
        async with store.begin_tx() as tx:
            await tx.enqueue_tx("q", "x")
            assert await tx.get_job_tx("q", 1 + number) is not None
    assert _entries() <= before + 1  # the last one is still named here


# Clocks


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_store_without_a_clock_reads_the_hosts(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def created_at() -> float:
        async with open_memory() as store:
            await store.queue("q").enqueue("x")
            (job,) = await store.queue("q").jobs()
            return job.created_at

    monkeypatch.setattr("time.time", lambda: 123.5)
    assert anyio.run(created_at, backend=backend) == 123.5


# The hub


async def test_nobody_stays_attached_who_has_stopped_waiting(store: Store) -> None:
    stop = StopToken()

    async def handle(job: Job) -> None:
        pass

    await store.queue("q").enqueue("x")
    async with anyio.create_task_group() as tasks, store.hold_lock("l", 5), store.listen("c"):
        async with store.stream("s").subscribe("consumer"):
            await tasks.start(
                lambda task_status: store.queue("q").run_worker(handle, stop=stop, task_status=task_status)
            )
            await tasks.start(lambda task_status: store.run_schedules(stop, task_status=task_status))
            await anyio.wait_all_tasks_blocked()
            assert len(store._engine.hub.channels) >= 5
        stop.cancel()
    assert store._engine.hub.channels == {}


# Streams


@pytest.mark.parametrize("events", [kept for n in range(6) for kept in itertools.combinations(range(1, 6), n)])
def test_an_offset_is_found_whichever_are_missing(events: tuple[int, ...]) -> None:
    table = StreamTable()
    table.events = [StreamEvent(offset, "s", None, "null", 0.0) for offset in events]
    for table.last in range(max(events, default=0), 7):
        for offset in (-(2**63), *range(-2, 10), 2**63 - 1):
            assert table.up_to(offset) == sum(event <= offset for event in events)
