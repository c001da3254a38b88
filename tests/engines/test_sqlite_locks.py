"""Who waits for whom on one SQLite file, what a waiting store does meanwhile, and that it leaves nothing behind.

Times here are real: what is measured gets several tries, since a busy machine may spoil some.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import pytest
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from alkstore_trio import Closed, DatabaseError, LockLost, Store, Tx, open_sqlite
from alkstore_trio._engines.sqlite import engine
from alkstore_trio._engines.sqlite.ids import Pool
from alkstore_trio._engines.sqlite.requests import nothing
from alkstore_trio._ops import DueSchedules, Fire
from alkstore_trio.testing import LoopClock, ManualClock, hold_lease

pytestmark = pytest.mark.anyio

T = TypeVar("T")

_TICK = 0.005  # seconds
_GAP = 0.05  # seconds for which the loop may stand still, and by which a return may be late
_TRIES = 10  # of a measurement; what is wrong is late in each, and tests that run beside this one in a few
_BOUND = 20.0  # seconds that nothing here takes
_WAL_BOUND = 3 * 4 * 2**20  # bytes: the limit, a few large transactions, and what came while a reader read
_OPENINGS = 30


# A lock that another connection holds


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Another connection, which has the write lock during the block."""
    with closing(sqlite3.connect(path, timeout=_BOUND, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """The seconds between the ticks of a task that does nothing else."""
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await anyio.sleep(_TICK)
            last = _ticked(last, gaps)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        yield gaps
        tasks.cancel_scope.cancel()


@contextmanager
def ticking_thread() -> Iterator[list[float]]:
    """The same of a thread without a loop: how long the machine itself keeps a sleeper waiting."""
    gaps: list[float] = []
    ended = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not ended.wait(_TICK):
            last = _ticked(last, gaps)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield gaps
    finally:
        ended.set()
        thread.join()


def _ticked(last: float, gaps: list[float]) -> float:
    now = time.monotonic()
    gaps.append(now - last)
    return now


async def soon(measure: Callable[[], Awaitable[float]], bound: float) -> None:
    """A measure is below its bound in one of a few tries."""
    measured = []
    for _ in range(_TRIES):
        with anyio.fail_after(_BOUND):
            measured.append(await measure())
        if measured[-1] < bound:
            return
    raise AssertionError(f"measured {measured}, each above {bound}")


async def test_the_loop_goes_on_and_writes_wait_while_another_connection_writes(path: str) -> None:
    async with open_sqlite(path) as store:
        queue = store.queue("jobs")

        async def largest_gap() -> float:
            """Beyond what the machine causes."""
            entered: list[int] = []

            async def enqueue() -> None:
                entered.append(await queue.enqueue("job"))

            async with anyio.create_task_group() as tasks:
                with locked(path), ticking_thread() as machine_gaps:
                    async with ticking() as gaps:
                        for _ in range(5):
                            tasks.start_soon(enqueue)
                        await anyio.sleep(2)
                        assert entered == []
            assert len(set(entered)) == 5
            assert max(gaps) < 1  # whatever the machine does
            return max(gaps) - max(machine_gaps)

        await soon(largest_gap, _GAP)


async def test_writes_that_wait_for_another_connection_are_cancelled_at_once_and_leave_no_trace(path: str) -> None:
    async with open_sqlite(path) as store:
        queue, stream = store.queue("jobs"), store.stream("events")
        await queue.enqueue("first")  # so that there are ids, and the next one waits for its write itself

        async def late() -> float:
            with locked(path):
                began = time.monotonic()
                with anyio.move_on_after(0.2) as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(queue.enqueue, "cancelled")
                        tasks.start_soon(queue.claim, "worker")
                        tasks.start_soon(stream.publish, "cancelled")
                        tasks.start_soon(store.with_tx, lambda tx: tx.save_offset_tx("events", "consumer", 7))
                took = time.monotonic() - began
                assert scope.cancelled_caught
            await queue.enqueue("marker")  # nothing is stuck, and what came before has been done by now
            return took - 0.2

        await soon(late, _GAP)
        jobs = await queue.jobs()
        assert {(job.payload, job.attempts) for job in jobs} == {("first", 0), ("marker", 0)}
        assert await stream.read_since(0, 10) == []
        assert await stream.get_offset("consumer") == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("alkstore")]


async def test_a_first_job_that_waits_for_its_id_is_cancelled_at_once_and_leaves_no_trace(path: str) -> None:
    async with open_sqlite(path) as store:
        with locked(path), anyio.move_on_after(0.05) as scope:
            await store.queue("jobs").enqueue("cancelled")
        assert scope.cancelled_caught
        await store.queue("jobs").enqueue("marker")
        assert [job.payload for job in await store.queue("jobs").jobs()] == ["marker"]


async def test_a_write_that_another_connection_keeps_waiting_fails_as_transient_after_the_busy_timeout(
    path: str,
) -> None:
    async with open_sqlite(path, busy_timeout=0.3) as store:
        queue = store.queue("jobs")

        async def late() -> float:
            with locked(path):
                began = time.monotonic()
                with pytest.raises(DatabaseError, match="another connection") as failure:
                    await queue.enqueue("refused")
                took = time.monotonic() - began
            assert failure.value.transient
            assert not failure.value.retryable
            assert took >= 0.3
            return took - 0.3

        await soon(late, 0.2)
        await queue.enqueue("marker")
        assert {job.payload for job in await queue.jobs()} == {"marker"}


async def _kept_waiting_past_a_lease(path: str, clock: ManualClock, verb: Callable[[], Awaitable[T]]) -> T:
    """The answer of a verb that waits for another connection until a lease of 10 seconds is over."""
    answers: list[T] = []

    async def ask() -> None:
        answers.append(await verb())

    async with anyio.create_task_group() as tasks:
        with locked(path):
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            clock.advance(11)
    return answers[0]


async def test_a_hold_that_lapses_while_its_renewal_waits_for_another_connection_is_lost(path: str) -> None:
    clock = ManualClock()
    async with open_sqlite(path, clock=clock) as store:
        hold = await store.try_lock("lock", "holder", 10)
        assert hold is not None
        assert await _kept_waiting_past_a_lease(path, clock, partial(hold.renew, 10)) is False
        assert await store.try_lock("lock", "another", 10) is not None


async def test_a_leader_whose_lease_lapses_while_it_waits_for_another_connection_fires_nothing(path: str) -> None:
    clock = ManualClock()
    async with open_sqlite(path, clock=clock) as store:
        await store.schedule("schedule", "@every 1s", "jobs", "job")
        await store.queue("warm").enqueue("so that there are ids")
        clock.advance(1)
        lease = await hold_lease(store, "leader", 10)
        assert lease is not None
        [due] = (await store._engine.do(DueSchedules())).schedules
        fire = Fire(due.name, due.next_at, due.next_at + 1, 1, due.next_at, lease.name, lease.token)
        assert await _kept_waiting_past_a_lease(path, clock, partial(store._engine.do, fire)) is None
        assert await store.queues() == ["warm"]


async def test_a_store_goes_by_a_clock_that_follows_the_loop(path: str, anyio_backend: str) -> None:
    clock = LoopClock(100)
    async with open_sqlite(path, clock=clock) as store:
        async with store.transaction() as tx:
            first = await tx.enqueue_tx("jobs", "staged")
        for job_id in (first, await store.queue("jobs").enqueue("job")):
            job = await store.queue("jobs").get_job(job_id)
            assert job is not None
            assert 100 <= job.created_at <= clock()


async def test_a_clock_that_fails_while_nobody_asks_ends_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SAFETY_POLL", 0.001)
    readings = iter([100.0])  # as it opens
    async with open_sqlite(path, clock=lambda: next(readings)) as store, store.listen("channel"):
        await anyio.sleep(0.1)


async def test_a_hold_ends_with_its_lease_while_another_connection_keeps_its_renewal_waiting(path: str) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 0.5):
            with locked(path):
                await anyio.sleep(_BOUND)
                pytest.fail("not cancelled")

    async with open_sqlite(path) as store:
        with pytest.raises(LockLost):
            await hold()
        assert await store.try_lock("lock", "other", 5) is not None


async def test_reads_do_not_wait_for_another_connection_that_writes(path: str) -> None:
    async with open_sqlite(path) as store:
        await store.queue("jobs").enqueue("job")

        async def took() -> float:
            with locked(path):
                began = time.monotonic()
                assert await store.queues() == ["jobs"]
                return time.monotonic() - began

        await soon(took, _GAP)


@contextmanager
def locked_before_it_is_a_store(path: str) -> Iterator[None]:
    """Another connection, which has a new file to itself during the block."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("create table theirs(x)")
        other.execute("begin exclusive")
        yield


async def test_an_opening_that_waits_for_another_connection_is_cancelled_at_once(path: str) -> None:
    threads = set(threading.enumerate())

    async def late() -> float:
        began = time.monotonic()
        with anyio.move_on_after(0.2) as scope:
            async with open_sqlite(path):
                raise AssertionError("opened")
        assert scope.cancelled_caught
        return time.monotonic() - began - 0.2

    with locked_before_it_is_a_store(path):
        await soon(late, _GAP)
    assert set(threading.enumerate()) <= threads
    async with open_sqlite(path) as store:
        await store.queue("jobs").enqueue("job")


async def test_an_opening_that_another_connection_keeps_waiting_fails_as_transient_after_the_busy_timeout(
    path: str,
) -> None:
    with locked_before_it_is_a_store(path), anyio.fail_after(_BOUND):
        began = time.monotonic()
        with pytest.raises(DatabaseError, match="another connection") as failure:
            async with open_sqlite(path, busy_timeout=0.3):
                raise AssertionError("opened")
        assert failure.value.transient
        assert time.monotonic() - began >= 0.3


# A transaction that holds the writer


@asynccontextmanager
async def held(store: Store) -> AsyncIterator[anyio.Event]:
    """Another task's transaction has published and ends, committed, when the event is set."""
    release = anyio.Event()

    async def hold(*, task_status: TaskStatus[None]) -> None:
        async with store.transaction() as tx:
            await tx.publish_tx("events", "held")
            task_status.started()
            await release.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(hold, name="the task that holds")
        try:
            yield release
        finally:
            release.set()


async def test_a_write_waits_for_a_transaction_of_another_task_that_has_published(path: str) -> None:
    order: list[str] = []
    async with open_sqlite(path) as store, anyio.create_task_group() as tasks:

        async def write() -> None:
            await store.queue("jobs").enqueue("job")
            order.append("written")

        async with held(store) as release:
            tasks.start_soon(write)  # bounded by the busy timeout
            await anyio.sleep(0.1)  # real time, in which a write that did not wait would be done
            order.append("released")
            release.set()
    assert order == ["released", "written"]


async def test_a_write_that_a_transaction_keeps_waiting_fails_as_transient_and_names_its_task(path: str) -> None:
    async with open_sqlite(path, busy_timeout=0.3) as store:
        async with held(store):
            began = time.monotonic()
            with anyio.fail_after(_BOUND), pytest.raises(DatabaseError, match="the task that holds") as failure:
                await store.queue("jobs").enqueue("refused")
            assert failure.value.transient
            assert not failure.value.retryable
            assert time.monotonic() - began >= 0.3
        await store.queue("jobs").enqueue("marker")
        assert [job.payload for job in await store.queue("jobs").jobs()] == ["marker"]
        assert [event.payload for event in await store.stream("events").read_since(0, 10)] == ["held"]


async def test_a_write_of_the_task_whose_transaction_holds_the_writer_is_refused_at_once(path: str) -> None:
    writes: list[Callable[[Store], Awaitable[object]]] = [
        lambda store: store.queue("jobs").enqueue("refused"),
        lambda store: store.queue("jobs").claim("worker"),
        lambda store: store.stream("events").publish("refused"),
        lambda store: store.notify("channel"),
        lambda store: store.try_lock("lock", "owner", 5),
    ]
    async with open_sqlite(path) as store:
        async with store.transaction() as tx:
            await tx.publish_tx("events", "kept")
            for write in writes:
                with anyio.fail_after(_BOUND), pytest.raises(RuntimeError, match="this task"):
                    await write(store)
        assert [event.payload for event in await store.stream("events").read_since(0, 10)] == ["kept"]
        assert await store.queues() == []


@pytest.mark.parametrize(
    "effect",
    [
        lambda tx: tx.publish_tx("others", "refused"),
        lambda tx: tx.execute("select 1"),
        lambda tx: tx.enqueue_tx("jobs", "refused"),
        lambda tx: tx.save_offset_tx("events", "consumer", 1),
        lambda tx: tx.notify_tx("channel"),
    ],
    ids=["publish", "execute", "enqueue", "save_offset", "notify"],
)
async def test_a_second_transaction_of_that_task_is_refused_when_it_would_write(
    path: str, effect: Callable[[Tx], Awaitable[object]]
) -> None:
    async with open_sqlite(path) as store:
        async with store.transaction() as tx:
            await tx.publish_tx("events", "kept")
            with anyio.fail_after(_BOUND):
                async with store.begin_tx() as second:
                    with pytest.raises(RuntimeError, match="this task"):
                        await _effect_and_commit(second, effect)
        assert [event.payload for event in await store.stream("events").read_since(0, 10)] == ["kept"]
        assert await store.stream("others").read_since(0, 10) == []
        assert await store.stream("events").get_offset("consumer") == 0
        assert await store.queues() == []


async def _effect_and_commit(tx: Tx, effect: Callable[[Tx], Awaitable[object]]) -> None:
    await effect(tx)
    await tx.commit()


async def test_a_task_that_has_the_id_of_one_that_has_ended_is_not_taken_for_it(path: str) -> None:
    ended: list[tuple[int, Tx]] = []
    refused: list[BaseException] = []

    async def publish_and_end(store: Store) -> None:
        tx = await store.begin_tx().__aenter__()
        await tx.publish_tx("events", "held")
        ended.append((anyio.get_current_task().id, tx))

    async def write(store: Store) -> None:
        if anyio.get_current_task().id == ended[0][0] and not refused:
            try:
                await store.queue("jobs").enqueue("refused")
            except (DatabaseError, RuntimeError) as error:
                refused.append(error)

    async with open_sqlite(path, busy_timeout=0.1) as store:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_and_end, store)
        for _ in range(1_000):  # usually the first does
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, store)
        assert [type(error) for error in refused] in ([], [DatabaseError])
        await ended.pop()[1].rollback()


async def test_a_writer_that_is_held_for_more_than_a_second_is_logged(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [message for _, _, message in caplog.record_tuples if "the task that holds" in message]

    async with open_sqlite(path) as store, held(store):
        assert warnings() == []
        with anyio.fail_after(_BOUND):
            while not warnings():  # noqa: ASYNC110  # the thread that logs sets no event
                await anyio.sleep(0.05)
    [warning] = [record for record in caplog.records if "the task that holds" in record.getMessage()]
    assert (warning.name, warning.levelno) == ("alkstore_trio", logging.WARNING)


# The WAL


async def test_idle_listeners_and_subscribers_do_not_keep_the_wal_long(path: str) -> None:
    payload, tasks_writing, jobs = "x" * 100_000, 4, 75  # 30 MB in all
    async with (
        open_sqlite(path, durability="normal") as idle,
        open_sqlite(path, durability="normal") as store,
        AsyncExitStack() as stack,
    ):
        queue = store.queue("jobs")

        async def write() -> None:
            for _ in range(jobs):
                await queue.enqueue(payload)
                handle = await queue.claim("worker")
                assert handle is not None
                assert await handle.ack()

        for n in range(10):
            await stack.enter_async_context(idle.listen(f"channel {n}"))
            await stack.enter_async_context(idle.stream("events").subscribe(f"consumer {n}"))
        with anyio.fail_after(_BOUND):
            async with anyio.create_task_group() as tasks:
                for _ in range(tasks_writing):
                    tasks.start_soon(write)
        assert (await queue.statistics()).pending == 0
        assert os.stat(f"{path}-wal").st_size < _WAL_BOUND


# What is left behind


def possessions() -> tuple[set[threading.Thread], int]:
    """The threads, but those in which the tests' own loop waits, and the number of open files of this process."""
    ours = {thread for thread in threading.enumerate() if not thread.name.startswith("Trio thread")}
    return ours, len(os.listdir("/proc/self/fd"))


async def _use(store: Store) -> None:
    """Have every thread, connection and FIFO there is."""
    await store.queue("jobs").enqueue("job")
    assert await store.queue("jobs").get_job(1) is not None
    handle = await store.queue("jobs").claim("worker")
    assert handle is not None
    assert await handle.ack()
    async with store.transaction() as tx:
        await tx.enqueue_tx("others", "job")
        await tx.publish_tx("events", "event")
    async with store.stream("events").subscribe("consumer") as events, store.listen("channel") as wakes:
        await store.notify("channel")
        await wakes.receive()
        await events.receive()


async def _leave(path: str, store: Store) -> None:
    await _use(store)


async def _raise(path: str, store: Store) -> None:
    await _use(store)
    raise LookupError("the body's own")


async def _raise_in_a_transaction_that_holds_the_writer(path: str, store: Store) -> None:
    await _use(store)
    async with store.transaction() as tx:
        await tx.publish_tx("events", "discarded")
        raise LookupError("the body's own")


async def _be_cancelled_while_waiting_for_the_lock(path: str, store: Store) -> None:
    await _use(store)
    with locked(path), anyio.move_on_after(0.02):
        await store.queue("jobs").enqueue("never")


async def _be_cancelled_amid_verbs(path: str, store: Store) -> None:
    async def write() -> None:
        while True:
            await store.queue("jobs").enqueue("job")

    await _use(store)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(write)
        await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def _close_below_verbs_that_wait(path: str, store: Store) -> None:
    await _use(store)
    async with anyio.create_task_group() as tasks:
        with locked(path):
            for _ in range(3):
                tasks.start_soon(_closed_under, store)
            await anyio.sleep(0.01)
            await store.aclose()


async def _closed_under(store: Store) -> None:
    with pytest.raises(anyio.ClosedResourceError):
        await store.queue("jobs").enqueue("never")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
@pytest.mark.parametrize(
    "body",
    [
        _leave,
        _raise,
        _raise_in_a_transaction_that_holds_the_writer,
        _be_cancelled_while_waiting_for_the_lock,
        _be_cancelled_amid_verbs,
        _close_below_verbs_that_wait,
    ],
)
async def test_a_store_leaves_no_thread_and_no_open_file(
    path: str, body: Callable[[str, Store], Awaitable[None]]
) -> None:
    async def once(number: int) -> None:
        with suppress(LookupError):
            async with open_sqlite(f"{path}{number}", durability="normal") as store:
                with anyio.fail_after(_BOUND):
                    await body(f"{path}{number}", store)

    await once(-1)  # the loop's own, which are there once something has been waited for
    threads, files = possessions()
    for number in range(_OPENINGS):
        await once(number)
    threads_now, files_now = possessions()
    assert threads_now <= threads
    assert files_now == files


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
async def test_a_file_that_cannot_be_opened_leaves_no_thread_and_no_open_file(path: str) -> None:
    async def once() -> None:
        with pytest.raises(DatabaseError):
            async with open_sqlite(path):
                raise AssertionError("opened")

    with open(path, "w") as text:  # noqa: ASYNC230  # a few bytes
        text.write("no database " * 1_000)
    await once()
    threads, files = possessions()
    for _ in range(_OPENINGS):
        await once()
    threads_now, files_now = possessions()
    assert threads_now <= threads
    assert files_now == files


@pytest.mark.parametrize("nth", [1, 2, 3], ids=["the writer", "the first reader", "the second reader"])
async def test_a_store_whose_thread_cannot_be_started_does_not_open_and_leaves_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    start, left = threading.Thread.start, nth

    def counted_start(thread: threading.Thread) -> None:
        nonlocal left
        left -= thread.name.startswith("alkstore")
        if not left:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted_start)
    with pytest.raises(RuntimeError, match="new thread"):
        async with open_sqlite(path):
            pytest.fail("opened")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("alkstore")]
    monkeypatch.undo()
    async with open_sqlite(path) as store:
        await store.queue("jobs").enqueue("job")


async def test_reads_that_are_under_way_when_the_store_closes_are_all_answered(path: str) -> None:
    answered = 0

    async def read(store: Store) -> None:
        nonlocal answered
        with suppress(Closed):
            await store.queues()
        answered += 1

    for _ in range(20):
        async with open_sqlite(path, durability="normal") as store, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(read, store)
            await checkpoint()
            with anyio.fail_after(_BOUND):
                await store.aclose()
    assert answered == 400


async def test_a_write_that_comes_when_the_writer_has_ended_is_answered(path: str) -> None:
    async with open_sqlite(path, durability="normal") as store:
        pass
    engine: Any = store._engine
    with anyio.fail_after(_BOUND), pytest.raises(Closed):
        await engine.ask(engine.submit, nothing)


# Ids


async def test_no_store_gives_ids_back_that_another_has_passed(path: str) -> None:
    async with open_sqlite(path, durability="normal") as other:
        async with open_sqlite(path, durability="normal") as one:
            ids = [await one.queue("q").enqueue("x")]
            ids.append(await other.queue("q").enqueue("x"))
        async with open_sqlite(path, durability="normal") as third:
            ids += await third.queue("q").enqueue_many(range(600))
    assert len(set(ids)) == 602


def test_ids_that_are_put_back_when_greater_ones_are_taken_are_gaps() -> None:
    pool = Pool()
    pool.add(range(1, 10))
    first, second, third = pool.take(2), pool.take(2), pool.take(1)
    assert (first, second, third) == ([1, 2], [3, 4], [5])
    pool.put_back([5])
    pool.put_back([3, 4])
    assert pool.take(1) == [3]
    pool.put_back([1, 2])
    assert pool.take(6) == [4, 5, 6, 7, 8, 9]
