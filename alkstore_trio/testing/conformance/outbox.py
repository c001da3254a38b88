"""The outbox: messages over a queue that nobody else reaches, and their delivery."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ..._engine import Traits
from ..._errors import Closed, Discard, InvalidName, ReservedName, Snooze
from ..._ops import Heartbeat, Op
from ..._outbox import Outbox
from ..._queue import JobHandle
from ..._store import Store
from ..._values import Job, JobState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .driving import Failing, Running, holds, passing, rest, to_be_cancelled, watched
from .kit import Effects

_VISIBILITY = 60.0  # seconds: what an outbox stamps


async def _nothing(handle: JobHandle) -> None:
    """A delivery that succeeds."""


def _settling(verb: Callable[[JobHandle], Awaitable[bool]], ending: BaseException | None = None) -> Any:
    """A delivery that settles its handle itself, and then ends."""

    async def deliver(handle: JobHandle) -> None:
        assert await verb(handle) is True
        if ending is not None:
            raise ending

    return deliver


async def _job(outbox: Outbox, job_id: int) -> Job:
    job = await outbox.get_job(job_id)
    assert job is not None
    return job


# The backing queue


async def test_a_message_is_a_job_of_the_backing_queue_with_the_stamps_of_an_outbox(
    effects: Effects, store: Store, clock: ManualClock
) -> None:
    job_id = await effects.outbox_enqueue("mail", {"to": "a"})
    job = await _job(store.outbox("mail"), job_id)
    assert job.queue == "__alkstore_outbox:mail"
    assert (job.visibility_timeout, job.max_attempts, job.base_backoff, job.dead_retention) == (60, 5, 5, None)
    assert (job.state, job.attempts, job.priority, job.run_at, job.expires_at) == (
        JobState.PENDING,
        0,
        0,
        clock(),
        None,
    )
    assert job.payload == {"to": "a"}
    assert await store.queues() == ["__alkstore_outbox:mail"]


async def test_a_message_takes_the_options_of_an_enqueue(effects: Effects, store: Store, clock: ManualClock) -> None:
    job_id = await effects.outbox_enqueue("mail", None, delay=3, priority=2, expires=9, max_attempts=7)
    job = await _job(store.outbox("mail"), job_id)
    assert (job.run_at, job.priority, job.expires_at, job.max_attempts) == (clock() + 3, 2, clock() + 9, 7)
    assert (job.visibility_timeout, job.base_backoff) == (60, 5)


@pytest.mark.parametrize("outbox", ["mail", "ä \N{SNOWMAN}", "a:b", "x" * 512])
async def test_the_backing_queue_cannot_be_reached_as_a_queue(store: Store, outbox: str) -> None:
    job_id = await store.outbox(outbox).enqueue("x")
    backing = f"__alkstore_outbox:{outbox}"
    assert (await _job(store.outbox(outbox), job_id)).queue == backing
    with pytest.raises(ReservedName):
        store.queue("__alkstore_outbox:mail")
    with pytest.raises(ReservedName):
        await store.schedule("s", "@every 1s", "__alkstore_outbox:mail", None)
    async with store.begin_tx() as tx:
        with pytest.raises(ReservedName):
            await tx.enqueue_tx("__alkstore_outbox:mail", "x")
        with pytest.raises(ReservedName):
            await tx.get_job_tx("__alkstore_outbox:mail", job_id)
    assert (await store.outbox(outbox).statistics()).pending == 1


async def test_an_outbox_and_the_queue_of_its_name_do_not_meet(store: Store) -> None:
    in_queue = await store.queue("mail").enqueue("queue")
    in_outbox = await store.outbox("mail").enqueue("outbox")
    assert await store.queue("mail").get_job(in_outbox) is None
    assert await store.outbox("mail").get_job(in_queue) is None
    assert await store.outbox("mail").run_once("w", _nothing) is True
    assert await store.outbox("mail").run_once("w", _nothing) is False
    assert (await store.queue("mail").statistics()).pending == 1


@pytest.mark.parametrize(
    ("name", "error"), [("", InvalidName), (" ", InvalidName), ("__alkstore_outbox:x", ReservedName), (5, TypeError)]
)
async def test_a_name_that_no_outbox_can_have_is_refused(store: Store, name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.outbox(name)
    async with store.begin_tx() as tx:
        with pytest.raises(error):
            await tx.outbox_enqueue_tx(name, "x")


async def test_the_verbs_of_a_queue_work_over_the_backing_queue(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    dead = await outbox.enqueue("dead")
    expired = await outbox.enqueue("expired", expires=5)
    kept = await outbox.enqueue("kept")

    async def discard(handle: JobHandle) -> None:
        raise Discard("no")

    assert await outbox.run_once("w", discard)
    clock.advance(5)
    assert await outbox.sweep_expired() == 1
    statistics = await outbox.statistics()
    assert (statistics.pending, statistics.processing, statistics.dead, statistics.ready) == (1, 0, 2, 1)
    assert [job.id for job in await outbox.jobs(JobState.DEAD)] == [dead, expired]
    assert await outbox.revive([dead, expired, kept]) == 2
    assert await outbox.delete([dead]) == 1
    assert [job.id for job in await outbox.jobs()] == [expired, kept]


# One delivery


async def test_no_work_is_false(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("later", delay=1)

    async def never(handle: JobHandle) -> None:
        pytest.fail("called")

    assert await outbox.run_once("w", never) is False
    clock.advance(1)
    assert await outbox.run_once("w", _nothing) is True


async def test_a_delivery_that_returns_acks_and_pulls_one_job_only(store: Store) -> None:
    outbox = store.outbox("mail")
    first, second = await outbox.enqueue("first"), await outbox.enqueue("second")
    seen: list[Any] = []

    async def deliver(handle: JobHandle) -> str:
        seen.append(handle.job)
        return "ignored"

    assert await outbox.run_once("me", deliver) is True
    [job] = seen
    assert (job.id, job.payload, job.attempts, job.worker_id) == (first, "first", 1, "me")
    assert await outbox.get_job(first) is None
    assert (await _job(outbox, second)).attempts == 0


async def test_a_delivery_that_raises_retries_on_the_curve_and_its_text_rides_into_the_dead_row(
    store: Store, clock: ManualClock
) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def fail(handle: JobHandle) -> None:
        raise ConnectionError(f"attempt {handle.job.attempts}")

    job = await _job(outbox, job_id)
    for attempt in range(1, 6):
        clock.set(job.run_at)
        assert await outbox.run_once("w", fail) is True
        job = await _job(outbox, job_id)
        assert (job.attempts, job.last_error) == (attempt, f"ConnectionError: attempt {attempt}")
        if attempt < 5:
            ceiling = 5 * 2 ** (attempt - 1)
            assert job.state is JobState.PENDING
            assert clock() + ceiling / 2 <= job.run_at <= clock() + ceiling
            assert await outbox.run_once("w", fail) is False
    assert job.state is JobState.DEAD
    assert job.died_at == clock()


async def test_a_delivery_may_discard_and_snooze(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    discarded, snoozed = await outbox.enqueue(Discard.__name__), await outbox.enqueue(Snooze.__name__)

    async def deliver(handle: JobHandle) -> None:
        raise Discard("gone") if handle.job.id == discarded else Snooze(30)

    assert await outbox.run_once("w", deliver)
    assert await outbox.run_once("w", deliver)
    job = await _job(outbox, discarded)
    assert (job.state, job.last_error) == (JobState.DEAD, "gone")
    job = await _job(outbox, snoozed)
    assert (job.state, job.attempts, job.run_at) == (JobState.PENDING, 0, clock() + 30)


async def test_a_delivery_whose_verdict_cannot_be_read_retries_and_says_why(store: Store) -> None:
    class Gone(Discard):
        def __init__(self, url: str) -> None:
            self.url = url

    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        raise Gone("https://example.org")

    assert await outbox.run_once("w", deliver)
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 1)
    assert job.last_error is not None
    assert job.last_error.startswith("AttributeError: ")


@pytest.mark.parametrize(
    ("worker_id", "error"), [("", InvalidName), ("  ", InvalidName), ("a\0", InvalidName), (5, TypeError)]
)
async def test_a_worker_id_that_is_no_name_is_refused_with_nothing_pulled(
    store: Store, worker_id: Any, error: type[Exception]
) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    with pytest.raises(error):
        await outbox.run_once(worker_id, _nothing)
    with pytest.raises(error):
        await outbox.run_delivery(_nothing, worker_id=worker_id)
    assert (await outbox.statistics()).ready == 1


async def test_the_store_sends_no_heartbeat_and_the_handle_has_the_raw_deadline(
    store: Store, clock: ManualClock
) -> None:
    beats: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        if isinstance(op, Heartbeat):
            beats.append(op)

    outbox = watched(store, note).outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        assert handle.job.claim_expires_at == clock() + _VISIBILITY
        await passing(store, clock, _VISIBILITY, step=5)
        assert (await _job(outbox, job_id)).claim_expires_at == handle.job.claim_expires_at

    assert await outbox.run_once("w", deliver) is True
    assert beats == []
    assert await outbox.get_job(job_id) is None


async def test_a_delivery_that_outlives_its_claim_acks_nothing(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        clock.advance(_VISIBILITY + 0.001)

    assert await outbox.run_once("w", deliver) is True
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts) == (JobState.PROCESSING, 1)
    assert await outbox.run_once("w", _nothing) is True
    assert await outbox.get_job(job_id) is None


async def test_a_deliverys_own_heartbeat_keeps_its_claim(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        for _ in range(3):
            clock.advance(50)
            assert await handle.heartbeat() is True
            assert (await _job(outbox, job_id)).claim_expires_at == clock() + _VISIBILITY
        assert await handle.heartbeat(200) is True
        clock.advance(200)

    assert await outbox.run_once("w", deliver) is True
    assert await outbox.get_job(job_id) is None


@pytest.mark.parametrize("ending", [None, ValueError("after"), Discard("after"), Snooze(9)], ids=repr)
async def test_a_handle_that_its_delivery_settled_is_left_alone(
    store: Store, clock: ManualClock, ending: Exception | None
) -> None:
    outbox = store.outbox("mail")
    ids = [await outbox.enqueue(n) for n in range(4)]
    verbs: list[Callable[[JobHandle], Awaitable[bool]]] = [
        lambda handle: handle.ack(),
        lambda handle: handle.fail("by hand"),
        lambda handle: handle.retry("by hand", 7),
        lambda handle: handle.release(8),
    ]
    for verb in verbs:
        assert await outbox.run_once("w", _settling(verb, ending)) is True
    acked, failed, retried, released = [await outbox.get_job(job_id) for job_id in ids]
    assert acked is None
    assert failed is not None
    assert (failed.state, failed.last_error) == (JobState.DEAD, "by hand")
    assert retried is not None
    assert (retried.state, retried.attempts, retried.last_error, retried.run_at) == (
        JobState.PENDING,
        1,
        "by hand",
        clock() + 7,
    )
    assert released is not None
    assert (released.state, released.attempts, released.run_at) == (JobState.PENDING, 0, clock() + 8)


@pytest.mark.parametrize("result", [None, 5, "text", (job for job in "x")], ids=["none", "int", "str", "generator"])
@pytest.mark.parametrize("verb", ["run_once", "run_delivery"])
async def test_a_delivery_that_cannot_be_awaited_is_a_type_error_with_its_claim_released(
    store: Store, verb: str, result: Any
) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")
    call = partial(outbox.run_once, "w") if verb == "run_once" else outbox.run_delivery
    with pytest.raises(TypeError, match=r"anyio\.to_thread\.run_sync"):
        await call(lambda handle: result)
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


def _generator(handle: JobHandle) -> Iterator[None]:
    yield


async def _async_generator(handle: JobHandle) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("delivery", [None, 5, _generator, _async_generator], ids=["none", "int", "sync", "async"])
@pytest.mark.parametrize("verb", ["run_once", "run_delivery"])
async def test_what_shows_that_it_is_no_delivery_is_a_type_error_that_pulls_nothing(
    store: Store, verb: str, delivery: Any
) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    call = partial(outbox.run_once, "w") if verb == "run_once" else outbox.run_delivery
    with pytest.raises(TypeError):
        await call(delivery)
    assert (await outbox.statistics()).ready == 1


async def test_a_delivery_that_is_cancelled_gives_its_job_back_with_no_attempt_spent(store: Store) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def hang(handle: JobHandle) -> None:
        scope.cancel()
        await to_be_cancelled()

    with anyio.CancelScope() as scope:
        await outbox.run_once("w", hang)
    assert scope.cancelled_caught
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts, job.worker_id, job.last_error) == (JobState.PENDING, 0, None, None)
    assert await outbox.run_once("w", _nothing) is True


@pytest.mark.parametrize("ending", ["a return", "an error", "a cancellation"])
async def test_a_delivery_that_publishes_into_its_callers_open_transaction_is_told_at_once_and_cancelled_as_ever(
    store: Store, traits: Traits, ending: str
) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    told = traits.serializes_writers and ending != "a cancellation"

    async def deliver(handle: JobHandle) -> None:
        await tx.publish_tx("s", 1)
        if ending == "an error":
            raise ZeroDivisionError
        if ending == "a cancellation":
            scope.cancel()
            await to_be_cancelled()

    with anyio.CancelScope() as scope:
        async with store.begin_tx() as tx:
            with pytest.raises(RuntimeError) if told else nullcontext():
                await outbox.run_once("w", deliver)
    assert scope.cancelled_caught == (ending == "a cancellation")


async def test_a_delivery_that_was_settled_before_its_cancellation_stays_settled(store: Store) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def settle_and_hang(handle: JobHandle) -> None:
        assert await handle.fail("by hand")
        scope.cancel()
        await to_be_cancelled()

    with anyio.CancelScope() as scope:
        await outbox.run_once("w", settle_and_hang)
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "by hand")


async def test_a_delivery_that_returns_although_it_is_cancelled_is_acked(store: Store) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        scope.cancel()

    with anyio.CancelScope() as scope:
        assert await outbox.run_once("w", deliver) is True
    assert await outbox.get_job(job_id) is None


@pytest.mark.parametrize("ending", [SystemExit(1), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
async def test_a_delivery_that_ends_in_what_is_no_exception_gives_its_job_back(
    store: Store, ending: BaseException
) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def end(handle: JobHandle) -> None:
        raise ending

    with pytest.raises(type(ending)) as raised:
        await outbox.run_once("w", end)
    assert raised.value is ending
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_a_deadline_inside_the_delivery_retries_and_one_around_it_gives_back(store: Store) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def hang(handle: JobHandle) -> None:
        scope.deadline = -float("inf")
        await to_be_cancelled()

    async def bounded(handle: JobHandle) -> None:
        with anyio.fail_after(0):
            await to_be_cancelled()

    with anyio.CancelScope() as scope:
        await outbox.run_once("w", hang)
    assert (await _job(outbox, job_id)).attempts == 0
    assert await outbox.run_once("w", bounded) is True
    job = await _job(outbox, job_id)
    assert job.attempts == 1
    assert job.last_error is not None
    assert job.last_error.startswith("TimeoutError: ")


async def test_a_cancelled_future_that_a_delivery_awaited_is_its_own_failure(store: Store, anyio_backend: str) -> None:
    if anyio_backend != "asyncio":
        pytest.skip("only asyncio raises its cancellation out of a future that somebody else cancelled")
    asyncio = sys.modules["asyncio"]
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def deliver(handle: JobHandle) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    assert await outbox.run_once("w", deliver) is True
    job = await _job(outbox, job_id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "CancelledError: ")


async def test_a_delivery_on_a_closed_store_is_closed_after_its_argument_checks(store: Store) -> None:
    outbox = store.outbox("mail")
    await store.aclose()
    with pytest.raises(InvalidName):
        await outbox.run_once("", _nothing)
    with pytest.raises(Closed):
        await outbox.run_once("w", _nothing)
    with pytest.raises(Closed):
        await outbox.run_delivery(_nothing)


# Delivering on and on


async def test_a_delivery_runs_on_woken_by_each_message(store: Store) -> None:
    outbox = store.outbox("mail")
    seen: list[Any] = []
    stop = StopToken()

    async def deliver(handle: JobHandle) -> None:
        seen.append(handle.job.payload)

    async def all_seen() -> bool:
        return len(seen) == 3 and await outbox.jobs() == []

    async with anyio.create_task_group() as tasks:
        delivering = Running(partial(outbox.run_delivery, deliver, worker_id="me", stop=stop))
        await tasks.start(delivering)
        await rest(store)
        await outbox.enqueue("plain")
        await rest(store)
        async with store.transaction() as tx:
            await tx.outbox_enqueue_tx("mail", "staged")
        await rest(store)
        await outbox.enqueue("last")
        await holds(all_seen)
        stop.cancel()
        assert await delivering.end() is None
    assert seen == ["plain", "staged", "last"]


async def test_a_running_delivery_retries_discards_and_snoozes_like_a_single_one(
    store: Store, clock: ManualClock
) -> None:
    outbox = store.outbox("mail")
    failed, discarded, snoozed, settled = [
        await outbox.enqueue(kind) for kind in ["fail", "discard", "snooze", "settle"]
    ]

    async def deliver(handle: JobHandle) -> None:
        match handle.job.payload:
            case "fail":
                raise ValueError("x")
            case "discard":
                raise Discard("x")
            case "snooze":
                raise Snooze(90)
            case _:
                assert await handle.retry("by hand", 70)

    async with anyio.create_task_group() as tasks:
        await tasks.start(outbox.run_delivery, deliver)
        await rest(store)
        tasks.cancel_scope.cancel()
    job = await _job(outbox, failed)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "ValueError: x")
    job = await _job(outbox, discarded)
    assert (job.state, job.last_error) == (JobState.DEAD, "x")
    job = await _job(outbox, snoozed)
    assert (job.state, job.attempts, job.run_at) == (JobState.PENDING, 0, clock() + 90)
    job = await _job(outbox, settled)
    assert (job.state, job.attempts, job.run_at) == (JobState.PENDING, 1, clock() + 70)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_running_delivery_pulls_only_what_it_delivers(store: Store, concurrency: int) -> None:
    outbox = store.outbox("mail")
    for number in range(6):
        await outbox.enqueue(number)
    started: list[int] = []

    async def deliver(handle: JobHandle) -> None:
        started.append(handle.job.payload)
        await to_be_cancelled()

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(outbox.run_delivery, deliver, concurrency=concurrency))
        await rest(store)
        assert started == list(range(concurrency))
        assert (await outbox.statistics()).processing == concurrency
        tasks.cancel_scope.cancel()
    assert [(job.state, job.attempts) for job in await outbox.jobs()] == [(JobState.PENDING, 0)] * 6


async def test_a_running_delivery_sends_no_heartbeat_and_the_deliverys_own_works(
    store: Store, clock: ManualClock
) -> None:
    outbox = store.outbox("mail")
    lapsing = await outbox.enqueue("lapsing")
    beating = await outbox.enqueue("beating")
    over = anyio.Event()

    async def deliver(handle: JobHandle) -> None:
        if handle.job.payload == "beating":
            while not over.is_set():
                assert await handle.heartbeat()
                await clock.sleep(20)
        elif handle.job.attempts == 1:
            await over.wait()

    async def acked() -> bool:
        return await outbox.get_job(lapsing) is None

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(outbox.run_delivery, deliver, concurrency=3))
        await rest(store)
        claimed = (await _job(outbox, lapsing)).claim_expires_at
        assert claimed == clock() + _VISIBILITY
        await passing(store, clock, 50, step=5)
        assert (await _job(outbox, lapsing)).claim_expires_at == claimed
        await passing(store, clock, 15, step=5)
        await holds(acked)  # the free task took it over once it had lapsed
        assert (await _job(outbox, beating)).attempts == 1
        over.set()
        await passing(store, clock, 20, step=5)
        assert await outbox.jobs() == []
        tasks.cancel_scope.cancel()


async def test_a_stopped_delivery_waits_out_its_grace_or_gives_back(store: Store) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")
    for grace in [0.0, 3_600.0]:
        stop, started, open_ = StopToken(), anyio.Event(), anyio.Event()

        async def deliver(handle: JobHandle, started: anyio.Event = started, open_: anyio.Event = open_) -> None:
            started.set()
            await open_.wait()

        async with anyio.create_task_group() as tasks:
            delivering = Running(partial(outbox.run_delivery, deliver, stop=stop, grace=grace))
            await tasks.start(delivering)
            await started.wait()
            stop.cancel()
            await rest(store)
            assert delivering.ended == (grace == 0)
            open_.set()
            assert await delivering.end() is None
        job = await outbox.get_job(job_id)
        if grace == 0:
            assert job is not None
            assert (job.state, job.attempts) == (JobState.PENDING, 0)
        else:
            assert job is None


async def test_a_running_delivery_sweeps_at_its_start_and_once_a_minute(store: Store, clock: ManualClock) -> None:
    outbox = store.outbox("mail")
    early = await outbox.enqueue("early", expires=5)
    late = await outbox.enqueue("late", delay=3_600, expires=30)
    clock.advance(5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(outbox.run_delivery, _nothing)
        assert (await _job(outbox, early)).last_error == "expired"
        await passing(store, clock, 58, step=2)
        assert (await _job(outbox, late)).state is JobState.PENDING
        await passing(store, clock, 2, step=2)
        assert (await _job(outbox, late)).last_error == "expired"
        tasks.cancel_scope.cancel()


async def test_a_running_delivery_rides_out_a_store_that_is_away(store: Store, clock: ManualClock) -> None:
    failing = Failing(Op, 12, "transient")
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    seen: list[int] = []

    async def deliver(handle: JobHandle) -> None:
        seen.append(handle.job.id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched(store, failing).outbox("mail").run_delivery, deliver)
        await passing(store, clock, 60, step=1)
        assert failing.times == 0
        assert await outbox.jobs() == []
        tasks.cancel_scope.cancel()
    assert len(seen) == 1


async def test_a_store_that_closes_under_a_running_delivery_ends_it_with_closed(store: Store) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    cancelled = anyio.Event()

    async def deliver(handle: JobHandle) -> None:
        try:
            await to_be_cancelled()
        finally:
            cancelled.set()

    async with anyio.create_task_group() as tasks:
        delivering = Running(partial(outbox.run_delivery, deliver))
        await tasks.start(delivering)
        await rest(store)
        await store.aclose()
        assert isinstance(await delivering.end(), Closed)
    assert cancelled.is_set()


async def test_two_deliveries_of_one_outbox_deliver_each_message_once(store: Store) -> None:
    outbox = store.outbox("mail")
    seen: list[int] = []

    async def deliver(handle: JobHandle) -> None:
        await checkpoint()
        seen.append(handle.job.payload)

    async def done() -> bool:
        return await outbox.jobs() == []

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            await tasks.start(partial(outbox.run_delivery, deliver, concurrency=2))
        for number in range(30):
            await outbox.enqueue(number)
        await holds(done)
        tasks.cancel_scope.cancel()
    assert sorted(seen) == list(range(30))
