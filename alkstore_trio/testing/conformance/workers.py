"""Workers: what they claim and when, how each handler's end settles its claim, how they stop and what ends them."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import attrs
import pytest
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from ... import _waiting
from ..._errors import AlkstoreError, Closed, DatabaseError, Discard, InvalidName, Snooze
from ..._ops import Ack, Claim, Fail, Heartbeat, NextReadyAt, Op, ReadClock, Release, Retry, Sweep
from ..._queue import Queue
from ..._store import Store
from ..._values import Job, JobState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import tick
from .driving import PASSING, Failing, Failure, Gate, Running, holds, passing, rest, to_be_cancelled, watched

_SWEEPS = 60.0  # seconds of the store's clock between two sweeps


@attrs.define(eq=False)
class _Handler:
    """Notes the jobs in the order they start; each waits for ``open`` before it returns."""

    started: list[Any] = attrs.field(factory=list)
    ended: list[Any] = attrs.field(factory=list)
    cancelled: list[Any] = attrs.field(factory=list)
    open: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self, job: Job) -> None:
        self.started.append(job.payload)
        try:
            await self.open.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(job.payload)
            raise
        self.ended.append(job.payload)

    async def has_started(self, count: int) -> None:
        async def so_many() -> bool:
            return len(self.started) >= count

        await holds(so_many)
        assert len(self.started) == count


def _at_once() -> _Handler:
    handler = _Handler()
    handler.open.set()
    return handler


async def _emptied(queue: Queue) -> None:
    """Wait until every job is acked."""

    async def empty() -> bool:
        return await queue.jobs() == []

    await holds(empty)


# What a worker claims, and when


async def test_a_worker_runs_each_job_and_acks_it(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(["a", "b", "c"])
    seen: list[Job] = []
    stop = StopToken()

    async def handle(job: Job) -> str:
        seen.append(job)
        return "whatever is returned"

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handle, worker_id="me", stop=stop))
        await _emptied(queue)
        stop.cancel()
    assert [(job.id, job.payload, job.attempts, job.worker_id) for job in seen] == [
        (job_id, payload, 1, "me") for job_id, payload in zip(ids, "abc", strict=True)
    ]


async def test_each_worker_without_an_id_has_one_of_its_own(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many([1, 2])
    workers: set[str | None] = set()
    stop = StopToken()

    async def handle(job: Job) -> None:
        workers.add(job.worker_id)
        await stop.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(partial(queue.run_worker, handle, prefetch=0, stop=stop))
        await rest(store)
        stop.cancel()
    assert len(workers) == 2
    assert all(worker_id and worker_id.strip() for worker_id in workers)


async def test_an_idle_worker_wakes_for_an_enqueue(store: Store) -> None:
    queue = store.queue("q")
    handler = _at_once()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        for count in range(1, 4):
            await queue.enqueue(count)
            await handler.has_started(count)
            await rest(store)
        tasks.cancel_scope.cancel()


async def test_what_comes_while_a_worker_looks_how_long_to_wait_is_not_overlooked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q")
    handler = _at_once()
    do = store._engine.do
    looked, enqueued = anyio.Event(), anyio.Event()

    async def slow(op: Op[Any]) -> Any:
        answer = await do(op)
        if isinstance(op, NextReadyAt) and not looked.is_set():
            looked.set()
            await enqueued.wait()
        return answer

    monkeypatch.setattr(store._engine, "do", slow)
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await looked.wait()
        await queue.enqueue("meanwhile")
        enqueued.set()
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_an_idle_worker_wakes_for_a_job_of_a_transaction_once_it_commits(store: Store) -> None:
    queue = store.queue("q")
    handler = _at_once()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        async with store.transaction() as tx:
            await tx.enqueue_tx("q", "committed")
            await rest(store)
            assert handler.started == []
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_an_idle_worker_wakes_for_a_fire_a_retry_a_release_and_a_revival(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(["retried", "released", "revived"])
    retried, released, failed = await queue.claim_batch("other", 3)
    await store.schedule("n", "@every 1s", "q", "fired")
    clock.advance(1)
    handler = _at_once()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        assert await tick(store) == 1
        await handler.has_started(1)
        await rest(store)
        assert await retried.retry("again", 0)
        await handler.has_started(2)
        await rest(store)
        assert await released.release()
        await handler.has_started(3)
        assert await failed.fail("dead")
        await rest(store)
        assert await queue.revive(ids) == 1
        await handler.has_started(4)
        tasks.cancel_scope.cancel()
    assert handler.started == ["fired", "retried", "released", "revived"]


@pytest.mark.parametrize("delay", [0.25, 1.5, 10, 3_600])
async def test_a_worker_starts_a_delayed_job_at_its_instant_and_not_before(
    store: Store, clock: ManualClock, delay: float
) -> None:
    queue = store.queue("q")
    handler = _at_once()
    await queue.enqueue("later", delay=delay)
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        clock.advance(delay - 0.125)
        await rest(store)
        assert handler.started == []
        clock.advance(0.125)
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_a_worker_wakes_for_a_delayed_job_that_comes_before_the_one_it_waits_for(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q")
    handler = _at_once()
    await queue.enqueue("late", delay=1.5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        await queue.enqueue("early", delay=0.5)
        await rest(store)
        clock.advance(0.5)
        await handler.has_started(1)
        assert handler.started == ["early"]
        tasks.cancel_scope.cancel()


async def test_a_worker_takes_over_a_claim_once_it_has_lapsed(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=1)
    handler = _at_once()
    await queue.enqueue("orphan")
    assert await queue.claim("crashed") is not None
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        clock.advance(1)  # a claim is valid at its deadline still
        await rest(store)
        assert handler.started == []
        clock.advance(0.001)
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_a_heartbeat_that_brings_a_deadline_nearer_wakes_a_worker_and_a_plain_one_does_not(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=100)
    await queue.enqueue("taken over")
    handle = await queue.claim("other")
    assert handle is not None
    claims = 0

    async def count(op: Op[Any]) -> None:
        nonlocal claims
        claims += isinstance(op, Claim)

    handler = _at_once()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, count).queue("q").run_worker, handler)
        await rest(store)
        before = claims
        assert await handle.heartbeat()
        await rest(store)
        assert claims == before
        assert await handle.heartbeat(0.5)
        await rest(store)
        clock.advance(0.5)  # a claim is valid at its deadline still
        await rest(store)
        assert handler.started == []
        clock.advance(0.001)
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_a_worker_leaves_other_queues_alone(store: Store) -> None:
    handler = _at_once()
    other = await store.queue("other").enqueue("theirs")
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.queue("q").run_worker, handler)
        await store.queue("q").enqueue("mine")
        await handler.has_started(1)
        tasks.cancel_scope.cancel()
    assert handler.started == ["mine"]
    job = await store.queue("other").get_job(other)
    assert job is not None
    assert job.state is JobState.PENDING


@pytest.mark.parametrize("concurrency", [1, 3, 10])
async def test_a_worker_runs_up_to_its_concurrency_at_once(store: Store, concurrency: int) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(concurrency + 3))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, concurrency=concurrency))
        await rest(store)
        assert len(handler.started) == concurrency
        handler.open.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert len(handler.ended) == concurrency + 3


async def test_a_free_handler_goes_on_while_another_is_busy(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(6))
    stuck = anyio.Event()
    ended: list[int] = []

    async def handle(job: Job) -> None:
        if job.payload == 0:
            await stuck.wait()
        ended.append(job.payload)

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handle, concurrency=2, prefetch=0))
        await rest(store)
        assert ended == [1, 2, 3, 4, 5]
        stuck.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("concurrency", [1, 4, 100])
@pytest.mark.parametrize("prefetch", [None, 0, 3])
async def test_handlers_start_in_claim_order(store: Store, concurrency: int, prefetch: int | None) -> None:
    queue = store.queue("q")
    expected: list[tuple[int, int]] = []
    for number in range(24):
        priority = number * 7 % 5
        await queue.enqueue([priority, number], priority=priority)
        expected.append((priority, number))
    expected.sort(key=lambda job: (-job[0], job[1]))
    started: list[tuple[int, int]] = []

    async def handle(job: Job) -> None:
        started.append(tuple(job.payload))
        for _ in range(job.payload[1] % 3):
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handle, concurrency=concurrency, prefetch=prefetch))
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert started == expected


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 0), (1, 2), (3, 0), (3, 5)])
async def test_a_worker_holds_no_more_claims_than_it_runs_and_prefetches(
    store: Store, concurrency: int, prefetch: int
) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(20))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, concurrency=concurrency, prefetch=prefetch))
        await rest(store)
        assert (await queue.statistics()).processing == concurrency + prefetch
        assert len(handler.started) == concurrency
        tasks.cancel_scope.cancel()


async def test_a_worker_that_has_acked_still_holds_no_more_than_it_runs_and_prefetches(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(60))
    handler = _at_once()

    async def handle(job: Job) -> None:
        if job.payload == 20:
            handler.open = anyio.Event()
        await handler(job)

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handle, concurrency=2, prefetch=8))
        await handler.has_started(22)
        await rest(store)
        assert 2 + 8 / 2 <= (await queue.statistics()).processing <= 2 + 8
        tasks.cancel_scope.cancel()


async def test_a_worker_whose_acks_are_under_way_goes_on_with_as_many_jobs_again_and_no_more(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(60))
    handler = _at_once()
    acking = anyio.Event()

    async def hold(op: Op[Any]) -> None:
        if isinstance(op, Ack):
            await acking.wait()

    async with anyio.create_task_group() as tasks:
        worker = partial(watched(store, hold).queue("q").run_worker, handler, concurrency=2, prefetch=8)
        await tasks.start(worker)
        await handler.has_started(20)
        await rest(store)
        assert len(handler.started) == (await queue.statistics()).processing == 20
        acking.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()


async def test_the_prefetched_are_renewed_like_the_running(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=6)
    ids = await queue.enqueue_many(range(4))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, prefetch=2))
        await passing(store, clock, 30)
        jobs = [await queue.get_job(job_id) for job_id in ids]
        assert [job and (job.state, job.attempts) for job in jobs] == [(JobState.PROCESSING, 1)] * 3 + [
            (JobState.PENDING, 0)
        ]
        handler.open.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert handler.started == [0, 1, 2, 3]


async def test_a_prefetched_claim_that_was_lost_is_not_run(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    running = await queue.enqueue("running")
    lost = await store.queue("q", visibility_timeout=6, max_attempts=1).enqueue("lost")
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, prefetch=1))
        await rest(store)
        clock.advance(6.5)
        assert await queue.claim("other") is None  # it buries the exhausted
        await rest(store)
        handler.open.set()

        async def gone() -> bool:
            return await queue.get_job(running) is None

        await holds(gone)
        await rest(store)
        tasks.cancel_scope.cancel()
    assert handler.started == ["running"]
    job = await queue.get_job(lost)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "max attempts exceeded")


# How a handler's end settles its claim


async def _outcome(store: Store, queue: Queue, clock: ManualClock, handle: Any, **options: Any) -> Job | None:
    """The job after a worker has run its only job once, and the worker went on to a second one."""
    job_id = await queue.enqueue("first", **options)
    await queue.enqueue("second", priority=-1)
    second = anyio.Event()

    async def either(job: Job) -> None:
        if job.id == job_id:
            await handle(job)
        else:
            second.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, either, prefetch=0))
        with anyio.fail_after(30):
            await second.wait()
        tasks.cancel_scope.cancel()
    return await queue.get_job(job_id)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class _Own(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad value"), "ValueError: bad value"),
        (_Own("mine"), "_Own: mine"),
        (KeyError("k"), "KeyError: 'k'"),
        (_Own(), "_Own: "),
        (_Own("a\0b\ud800"), "_Own: a\ufffdb\ufffd"),
        (_Own("x" * 10_000), ("_Own: " + "x" * 10_000)[:8_192]),
        (TimeoutError("late"), "TimeoutError: late"),
        (StopAsyncIteration(), "StopAsyncIteration: "),
        (anyio.ClosedResourceError(), "ClosedResourceError: "),
        (anyio.WouldBlock(), "WouldBlock: "),
        (AlkstoreError("ours"), "AlkstoreError: ours"),
        (DatabaseError("theirs", transient=True), "DatabaseError: theirs"),
        (ExceptionGroup("both", [ValueError("a"), KeyError("b")]), "ExceptionGroup: both (2 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_exception_of_a_handler_retries_with_its_text_on_the_curve(
    store: Store, clock: ManualClock, error: Exception, text: str
) -> None:
    async def handle(job: Job) -> None:
        raise error

    job = await _outcome(store, store.queue("q", base_backoff=40), clock, handle)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, text)
    assert clock() + 20 <= job.run_at <= clock() + 40


async def test_an_exception_that_cannot_be_printed_still_retries(store: Store, clock: ManualClock) -> None:
    async def handle(job: Job) -> None:
        raise _Unprintable

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert job.state is JobState.PENDING
    assert job.last_error is not None
    assert job.last_error.startswith("_Unprintable: ")


async def test_an_exception_that_is_raised_before_the_first_await_retries(store: Store, clock: ManualClock) -> None:
    def handle(job: Job) -> Any:
        raise ValueError("at the call")

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert job.last_error == "ValueError: at the call"


async def test_an_exception_on_the_last_attempt_kills_with_its_text(store: Store, clock: ManualClock) -> None:
    async def handle(job: Job) -> None:
        raise ValueError("bad")

    job = await _outcome(store, store.queue("q"), clock, handle, max_attempts=1)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "ValueError: bad")


@pytest.mark.parametrize("reason", ["not wanted", "", "Discard: x", "ä\0"])
async def test_a_discard_kills_with_its_very_text(store: Store, clock: ManualClock, reason: str) -> None:
    async def handle(job: Job) -> None:
        raise Discard(reason)

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, reason.replace("\0", "\ufffd"))


@pytest.mark.parametrize("delay", [90, 0.25, timedelta(minutes=1)])
async def test_a_snooze_gives_the_job_back_for_later_with_its_attempt_refunded(
    store: Store, clock: ManualClock, delay: Any
) -> None:
    async def handle(job: Job) -> None:
        raise Snooze(delay)

    job = await _outcome(store, store.queue("q"), clock, handle)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 0, None)
    assert (job.run_at, job.worker_id, job.claim_expires_at) == (clock() + seconds, None, None)


@pytest.mark.parametrize("delay", ["soon", None, float("nan"), True])
async def test_a_snooze_without_a_usable_delay_retries_and_says_why(
    store: Store, clock: ManualClock, delay: Any
) -> None:
    async def handle(job: Job) -> None:
        raise Snooze(delay)

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert (job.state, job.attempts) == (JobState.PENDING, 1)
    assert job.last_error is not None
    assert "delay" in job.last_error


@pytest.mark.parametrize("reason", [None, 5, ValueError("x")])
async def test_a_discard_whose_reason_is_no_text_does_not_end_the_worker(
    store: Store, clock: ManualClock, reason: Any
) -> None:
    async def handle(job: Job) -> None:
        raise Discard(reason)

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert job.state is not JobState.PROCESSING


class _Gone(Discard):
    def __init__(self, url: str) -> None:
        self.url = url


class _Later(Snooze):
    def __init__(self, url: str) -> None:
        self.url = url


class _Raises(Discard):
    def __getattribute__(self, name: str) -> Any:
        if name == "reason":
            raise LookupError("no reason")
        return super().__getattribute__(name)


@pytest.mark.parametrize("verdict", [_Gone("x"), _Later("x"), _Raises("x")], ids=lambda verdict: type(verdict).__name__)
async def test_a_verdict_that_cannot_be_read_retries_and_says_why(
    store: Store, clock: ManualClock, verdict: Exception
) -> None:
    async def handle(job: Job) -> None:
        raise verdict

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert (job.state, job.attempts) == (JobState.PENDING, 1)
    assert job.last_error is not None
    assert job.last_error.startswith(("AttributeError: ", "LookupError: "))


async def test_a_cancelled_future_that_a_handler_awaited_is_its_own_failure(
    store: Store, clock: ManualClock, anyio_backend: str
) -> None:
    if anyio_backend != "asyncio":
        pytest.skip("only asyncio raises its cancellation out of a future that somebody else cancelled")
    asyncio = sys.modules["asyncio"]

    async def handle(job: Job) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "CancelledError: ")


async def test_a_handler_that_cancels_a_scope_of_its_own_has_simply_returned(store: Store, clock: ManualClock) -> None:
    async def handle(job: Job) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await checkpoint()

    assert await _outcome(store, store.queue("q"), clock, handle) is None


async def test_a_handlers_deadline_of_its_own_retries_as_a_timeout(store: Store, clock: ManualClock) -> None:
    async def handle(job: Job) -> None:
        with anyio.fail_after(0):
            await to_be_cancelled()

    job = await _outcome(store, store.queue("q"), clock, handle)
    assert job is not None
    assert job.last_error is not None
    assert job.last_error.startswith("TimeoutError: ")


async def test_any_awaitable_is_a_handlers_result(store: Store, clock: ManualClock) -> None:
    class Awaited:
        def __await__(self) -> Iterator[Any]:
            return checkpoint().__await__()

    assert await _outcome(store, store.queue("q"), clock, lambda job: Awaited()) is None


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
async def test_what_is_no_exception_ends_the_worker_as_itself_with_all_claims_released(
    store: Store, ending: BaseException
) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(4))
    handler = _Handler()

    async def handle(job: Job) -> None:
        if job.payload == 1:
            raise ending
        await handler(job)

    with pytest.raises(type(ending)) as raised:
        await queue.run_worker(handle, concurrency=2, prefetch=1)
    assert raised.value is ending
    for job_id in ids:
        job = await queue.get_job(job_id)
        assert job is not None
        assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_a_handler_may_use_its_own_queue_while_it_runs(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")

    async def handle(job: Job) -> None:
        await queue.enqueue("from the handler", delay=3_600)

    assert await _outcome(store, queue, clock, handle) is None
    assert [job.payload for job in await queue.jobs()] == ["from the handler"]


async def test_a_handlers_failure_of_any_kind_never_ends_the_worker(store: Store, clock: ManualClock) -> None:
    failures: list[Exception] = [
        ValueError("x"),
        Discard("x"),
        Snooze(1),
        ExceptionGroup("x", [Discard("x")]),
        Closed(),
        DatabaseError("x"),
        RecursionError(),
        MemoryError(),
        _Unprintable(),
    ]
    queue = store.queue("q", max_attempts=1)
    for number in range(len(failures)):
        await queue.enqueue(number)
    last = await queue.enqueue("last")
    ran: list[Any] = []

    async def handle(job: Job) -> None:
        ran.append(job.payload)
        if job.id != last:
            raise failures[job.payload]

    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handle)

        async def gone() -> bool:
            return await queue.get_job(last) is None

        await holds(gone)
        tasks.cancel_scope.cancel()
    assert ran == [*range(len(failures)), "last"]
    assert (await queue.statistics()).processing == 0


# Claims are renewed while their handlers run; a lost one cancels its handler


@pytest.mark.parametrize("visibility_timeout", [0.75, 3, 6, 60])
async def test_a_claim_is_renewed_for_as_long_as_its_handler_runs(
    store: Store, clock: ManualClock, visibility_timeout: float
) -> None:
    queue = store.queue("q", visibility_timeout=visibility_timeout)
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await rest(store)
        job_id = await queue.enqueue("long")  # under a renewer that sleeps
        await handler.has_started(1)
        step = min(visibility_timeout / 3, 2)
        for _ in range(4):
            await passing(store, clock, 5 * step, step=step)
            job = await queue.get_job(job_id)
            assert job is not None
            assert (job.state, job.attempts) == (JobState.PROCESSING, 1)
            assert job.claim_expires_at is not None
            assert job.claim_expires_at > clock()
        handler.open.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert handler.started == ["long"]


async def test_a_claim_is_renewed_no_more_than_it_needs(store: Store, clock: ManualClock) -> None:
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    queue = watched(store, note).queue("q", visibility_timeout=300)
    await queue.enqueue("long")
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await passing(store, clock, 600, step=10)
        assert 5 <= asked.count(Heartbeat) <= 10
        tasks.cancel_scope.cancel()


async def test_claims_that_are_due_together_are_renewed_by_one_op(store: Store, clock: ManualClock) -> None:
    renewed: list[int] = []

    async def note(op: Op[Any]) -> None:
        if isinstance(op, Heartbeat):
            renewed.append(len(op.claims))

    queue = watched(store, note).queue("q", visibility_timeout=6)
    await queue.enqueue_many(range(50))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, concurrency=30, prefetch=20))
        await handler.has_started(30)
        await passing(store, clock, 8, step=2)
        tasks.cancel_scope.cancel()
    assert renewed == 4 * [50]


async def test_a_claim_that_is_settled_before_a_renewal_is_tried_again_is_not_renewed(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=6)
    first, second = await queue.enqueue_many(["first", "second"])
    may_end = anyio.Event()
    renewed: list[list[int]] = []

    async def gone() -> bool:
        return await queue.get_job(first) is None

    async def away_at_first(op: Op[Any]) -> None:
        if isinstance(op, Heartbeat):
            renewed.append([job_id for job_id, _ in op.claims])
            if len(renewed) == 1:
                may_end.set()
                await holds(gone)
                raise DatabaseError("the store is away", transient=True)

    async def handle(job: Job) -> None:
        await (may_end.wait() if job.id == first else anyio.sleep_forever())

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(watched(store, away_at_first).queue("q").run_worker, handle, concurrency=2))
        await passing(store, clock, 3)
        tasks.cancel_scope.cancel()
    assert renewed == [[first, second], [second]]


@pytest.mark.parametrize("how", ["lapsed", "taken over", "deleted"])
async def test_a_claim_that_was_lost_cancels_its_handler_and_the_worker_goes_on(
    store: Store, clock: ManualClock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.queue("q", visibility_timeout=6, max_attempts=2)
    job_id = await queue.enqueue("lost")
    handler, gate = _Handler(), Gate()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, gate).queue("q").run_worker, handler)
        await handler.has_started(1)
        await rest(store)
        with caplog.at_level(logging.WARNING, "alkstore_trio"):
            gate.shut()
            clock.advance(6.5)
            if how == "taken over":
                assert await queue.claim("thief")
            elif how == "deleted":
                assert await queue.delete([job_id])
            gate.open()
            await rest(store)
        assert handler.cancelled[:1] == ["lost"]
        assert str(job_id) in caplog.text
        handler.open.set()
        await queue.enqueue("next")

        async def went_on() -> bool:
            return "next" in handler.ended

        await holds(went_on)
        tasks.cancel_scope.cancel()
    job = await queue.get_job(job_id)
    if how == "taken over":
        assert job is not None
        assert job.worker_id in {"thief", None} or job.attempts == 2
    else:
        assert job is None


async def test_a_handler_that_finishes_after_its_claim_was_taken_over_touches_nothing(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=6, max_attempts=2)
    job_id = await queue.enqueue("slow")
    started, finished, gate = anyio.Event(), anyio.Event(), Gate()

    async def handle(job: Job) -> None:
        started.set()
        with anyio.CancelScope(shield=True):
            await finished.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, gate).queue("q").run_worker, handle)
        await started.wait()
        await rest(store)
        gate.shut()
        clock.advance(6.5)
        thief = await queue.claim("thief")
        gate.open()
        assert thief is not None
        before = await queue.get_job(job_id)
        finished.set()
        await rest(store)
        assert await queue.get_job(job_id) == before
        assert await thief.ack()
        tasks.cancel_scope.cancel()


async def test_of_claims_that_are_renewed_together_the_lost_one_cancels_its_handler_alone(
    store: Store, clock: ManualClock
) -> None:
    lost = await store.queue("q", visibility_timeout=6).enqueue("lost")
    kept = await store.queue("q", visibility_timeout=18).enqueue_many(["kept", "also kept"])
    queue = store.queue("q")
    handler, gate = _Handler(), Gate()
    renewed: list[list[int]] = []

    async def note(op: Op[Any]) -> None:
        await gate(op)
        if isinstance(op, Heartbeat):
            renewed.append([job_id for job_id, _ in op.claims])

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(watched(store, note).queue("q").run_worker, handler, concurrency=3))
        await handler.has_started(3)
        await rest(store)
        gate.shut()
        clock.advance(6.5)
        assert await queue.delete([lost, *kept]) == 1
        gate.open()
        await rest(store)
        assert renewed[:1] == [[lost, *kept]]
        assert handler.cancelled == ["lost"]
        handler.open.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert sorted(handler.ended) == ["also kept", "kept"]


@pytest.mark.parametrize("where", ["in the handler", "in a task of the handler's"])
async def test_an_error_in_which_a_cancelled_handler_ends_does_not_end_the_worker(
    store: Store, clock: ManualClock, where: str
) -> None:
    queue = store.queue("q", visibility_timeout=6, max_attempts=1)
    await queue.enqueue("first")
    second = anyio.Event()

    async def ends_badly() -> None:
        try:
            await to_be_cancelled()
        finally:
            raise ValueError("while cleaning up")

    async def handle(job: Job) -> None:
        if job.payload == "second":
            second.set()
        elif where == "in the handler":
            await ends_badly()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ends_badly)
                await to_be_cancelled()

    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handle)
        await rest(store)
        clock.advance(6.5)
        await rest(store)
        await queue.enqueue("second")
        with anyio.fail_after(30):
            await second.wait()
        tasks.cancel_scope.cancel()


# Sweeping


async def test_a_worker_sweeps_its_queue_at_its_start(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", dead_retention=5)
    buried = await queue.enqueue("buried")
    handle = await queue.claim("w")
    assert handle is not None
    assert await handle.fail("dead")
    expired = await queue.enqueue("expired", expires=5)
    other = await store.queue("other").enqueue("expired", expires=5)
    clock.advance(5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, _at_once())
        tasks.cancel_scope.cancel()
    job = await queue.get_job(expired)
    assert job is not None
    assert (job.state, job.last_error) == (JobState.DEAD, "expired")
    assert await queue.get_job(buried) is None
    untouched = await store.queue("other").get_job(other)
    assert untouched is not None
    assert untouched.state is JobState.PENDING


async def test_a_worker_sweeps_once_a_minute_of_the_stores_clock(store: Store, clock: ManualClock) -> None:
    sweeps: list[float] = []
    start = clock()

    async def note(op: Op[Any]) -> None:
        if isinstance(op, Sweep):
            sweeps.append(clock() - start)

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, note).queue("q").run_worker, _at_once())
        await passing(store, clock, 3 * _SWEEPS, step=2)
        tasks.cancel_scope.cancel()
    assert sweeps == [0, _SWEEPS, 2 * _SWEEPS, 3 * _SWEEPS]


async def test_a_busy_worker_sweeps_too(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    await queue.enqueue("busy")
    expired = await queue.enqueue("expired", expires=5)
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, prefetch=0))
        await handler.has_started(1)
        await passing(store, clock, _SWEEPS, step=2)

        async def swept() -> bool:
            job = await queue.get_job(expired)
            assert job is not None
            return job.state is JobState.DEAD

        await holds(swept)  # an engine may write in one thread and read in another
        tasks.cancel_scope.cancel()


# Stopping


async def test_a_stop_lets_the_running_finish_within_its_grace(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=6)
    ids = await queue.enqueue_many(range(5))
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, concurrency=2, prefetch=1, stop=stop, grace=3_600))
        await tasks.start(worker)
        await handler.has_started(2)
        stop.cancel()
        await passing(store, clock, 20)  # by the store's clock, which a grace has nothing to do with
        assert not worker.ended
        assert handler.cancelled == []
        held = [job.id for job in await queue.jobs(JobState.PROCESSING)]
        assert held == ids[:2]  # still renewed; the prefetched one is given back already
        handler.open.set()
        assert await worker.end() is None
    assert sorted(handler.ended) == [0, 1]
    assert [(job.id, job.attempts) for job in await queue.jobs()] == [(job_id, 0) for job_id in ids[2:]]


async def test_a_stop_ends_claiming_at_once(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("running")
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, concurrency=2, stop=stop))
        await tasks.start(worker)
        await handler.has_started(1)
        stop.cancel()
        await queue.enqueue("too late")
        await rest(store)
        assert handler.started == ["running"]
        assert [job.payload for job in await queue.jobs(JobState.PENDING)] == ["too late"]
        handler.open.set()
        assert await worker.end() is None


async def test_a_stop_gives_back_at_once_what_waits_while_the_running_goes_on(store: Store) -> None:
    queue = store.queue("q")
    running, *waiting = await queue.enqueue_many(range(3))
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, prefetch=2, stop=stop))
        await tasks.start(worker)
        await handler.has_started(1)
        await rest(store)
        stop.cancel()
        await rest(store)
        assert [(job.id, job.attempts) for job in await queue.jobs(JobState.PENDING)] == [(id_, 0) for id_ in waiting]
        assert [job.id for job in await queue.jobs(JobState.PROCESSING)] == [running]
        handler.open.set()
        assert await worker.end() is None
    assert handler.ended == [0]


async def test_a_stop_with_no_grace_cancels_and_releases_at_once_with_the_attempts_refunded(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(4))
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, concurrency=2, prefetch=1, stop=stop, grace=0))
        await tasks.start(worker)
        await handler.has_started(2)
        stop.cancel()
        assert await worker.end() is None
    assert sorted(handler.cancelled) == [0, 1]
    jobs = await queue.jobs()
    assert [(job.id, job.state, job.attempts, job.worker_id) for job in jobs] == [
        (job_id, JobState.PENDING, 0, None) for job_id in ids
    ]
    assert [handle.job.id for handle in await queue.claim_batch("next", 9)] == ids


async def test_cancelling_a_worker_releases_its_jobs_at_once_with_the_attempts_refunded(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(4))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, concurrency=2, prefetch=1, grace=3_600))
        await handler.has_started(2)
        tasks.cancel_scope.cancel()
    assert sorted(handler.cancelled) == [0, 1]
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_the_prefetched_are_given_back_by_one_op(store: Store, how: str) -> None:
    released: list[int] = []

    async def note(op: Op[Any]) -> None:
        if isinstance(op, Release):
            released.append(len(op.claims))

    queue = watched(store, note).queue("q")
    ids = await queue.enqueue_many(range(50))
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, prefetch=49, stop=stop, grace=0))
        await handler.has_started(1)
        await rest(store)
        if how == "stopped":
            stop.cancel()
        else:
            tasks.cancel_scope.cancel()
    assert sorted(released) == [1, 49]  # the one is the handler's that was cancelled
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


async def test_a_grace_does_not_wait_for_the_prefetched_to_be_given_back(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(3))
    releasing, released = Gate(), False
    releasing.shut()

    async def hold(op: Op[Any]) -> None:
        nonlocal released
        if isinstance(op, Release) and ids[0] not in dict(op.claims):
            try:
                await releasing(op)
            finally:
                released = True

    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        run_worker = watched(store, hold).queue("q").run_worker
        await tasks.start(partial(run_worker, handler, prefetch=2, stop=stop, grace=0))
        await handler.has_started(1)
        await rest(store)
        stop.cancel()

        async def cancelled() -> bool:
            return handler.cancelled == [0]

        await holds(cancelled)
        assert not released
        releasing.open()
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


@pytest.mark.parametrize("turns", range(12))
async def test_a_worker_that_is_cancelled_at_any_turn_leaves_no_claim_behind(store: Store, turns: int) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(3))
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(queue.run_worker, handler, concurrency=2, prefetch=1))
        for _ in range(turns):
            await checkpoint()
        tasks.cancel_scope.cancel()
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


@pytest.mark.parametrize("turns", range(12))
async def test_a_worker_that_is_stopped_at_any_turn_leaves_no_claim_behind(store: Store, turns: int) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(3))
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, concurrency=2, prefetch=1, stop=stop, grace=0))
        tasks.start_soon(worker)
        for _ in range(turns):
            await checkpoint()
        stop.cancel()
        assert await worker.end() is None
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


async def test_a_worker_that_is_cancelled_acks_what_is_done_also_what_waits_for_another_ack(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(range(3))
    acking, allowed = anyio.Event(), anyio.Event()
    ended: list[Any] = []

    async def hold(op: Op[Any]) -> None:
        if isinstance(op, Ack):
            acking.set()
            await allowed.wait()

    async def handle(job: Job) -> None:
        if job.payload:
            await acking.wait()  # of the first
        ended.append(job.payload)

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(watched(store, hold).queue("q").run_worker, handle, concurrency=3))
        await acking.wait()
        await rest(store)
        tasks.cancel_scope.cancel()
        allowed.set()
    assert sorted(ended) == [0, 1, 2]
    assert await queue.jobs() == []


async def test_a_handler_that_ends_well_although_its_worker_is_cancelled_is_acked(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    begun, allowed = anyio.Event(), anyio.Event()
    scope = anyio.CancelScope()

    async def handle(job: Job) -> None:
        with anyio.CancelScope(shield=True):
            begun.set()
            await allowed.wait()

    async def work() -> None:
        with scope:
            await queue.run_worker(handle)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await begun.wait()
        scope.cancel()
        await rest(store)
        allowed.set()
    assert await queue.jobs() == []


async def test_a_settlement_that_is_under_way_when_its_worker_is_cancelled_is_waited_for(store: Store) -> None:
    queue = store.queue("q")
    job_id = await queue.enqueue("x")
    retrying, allowed = anyio.Event(), anyio.Event()

    async def hold(op: Op[Any]) -> None:
        if isinstance(op, Retry):
            retrying.set()
            await allowed.wait()

    async def handle(job: Job) -> None:
        raise LookupError("failed")

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, hold).queue("q").run_worker, handle)
        await retrying.wait()
        tasks.cancel_scope.cancel()
        allowed.set()
    job = await queue.get_job(job_id)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "LookupError: failed")


async def test_a_store_that_does_not_answer_a_release_keeps_nobody_from_ending(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waiting, "_LAST_TRY", 0.01)
    handler = _Handler()
    given_up: list[Op[Any]] = []
    await store.queue("q").enqueue_many(range(3))

    async def never_answers(op: Op[Any]) -> None:
        if isinstance(op, Release):
            try:
                await anyio.sleep_forever()
            finally:
                given_up.append(op)

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, never_answers).queue("q").run_worker, handler)
        await handler.has_started(1)
        tasks.cancel_scope.cancel()
    assert given_up


async def test_a_handler_that_ends_well_in_spite_of_a_stop_without_grace_is_acked(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    stop = StopToken()

    async def handle(job: Job) -> None:
        with anyio.CancelScope(shield=True):
            await stop.wait()
            await rest(store)

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handle, stop=stop, grace=0))
        await rest(store)
        stop.cancel()
    assert await queue.jobs() == []


async def test_a_stop_that_was_called_before_claims_nothing(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    stop = StopToken()
    stop.cancel()
    handler = _at_once()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, stop=stop))
    assert handler.started == []
    assert (await queue.statistics()).ready == 1


async def test_one_token_stops_many_workers_and_an_idle_one_returns_at_once(store: Store) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        workers = [Running(partial(store.queue(f"q{n}").run_worker, _at_once(), stop=stop)) for n in range(3)]
        for worker in workers:
            await tasks.start(worker)
        await rest(store)
        stop.cancel()
        assert [await worker.end() for worker in workers] == [None] * 3


async def test_a_handler_may_stop_its_own_worker(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue_many(["stops", "stays"])
    stop = StopToken()

    async def handle(job: Job) -> None:
        stop.cancel()
        await checkpoint()

    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handle, prefetch=1, stop=stop))
        await tasks.start(worker)
        assert await worker.end() is None
    assert [(job.payload, job.state, job.attempts) for job in await queue.jobs()] == [("stays", JobState.PENDING, 0)]


async def test_started_is_reported_once_work_can_be_received(store: Store) -> None:
    queue = store.queue("q")
    handler = _at_once()
    swept: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        swept.append(type(op))

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, note).queue("q").run_worker, handler)
        assert Sweep in swept
        await queue.enqueue("x")  # no wake of it is lost, however early it comes
        await handler.has_started(1)
        tasks.cancel_scope.cancel()


async def test_a_worker_that_is_stopped_while_the_store_is_away_at_its_start_has_reported_itself_started(
    store: Store, clock: ManualClock
) -> None:
    stop = StopToken()
    away = watched(store, Failing(Sweep, 1_000_000, "transient"))

    async def soon(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await passing(store, clock, 2)
        stop.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(soon)
        await tasks.start(partial(away.queue("q").run_worker, _at_once(), stop=stop))


# What is no handler


def _generator(job: Job) -> Iterator[None]:
    yield


async def _async_generator(job: Job) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    "handler",
    [None, 5, "handler", _generator, _async_generator, partial(_generator)],
    ids=lambda value: repr(value)[:20],
)
async def test_what_shows_that_it_is_no_handler_is_a_type_error_that_claims_nothing(store: Store, handler: Any) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    with pytest.raises(TypeError):
        await queue.run_worker(handler)
    assert (await queue.statistics()).ready == 1


@pytest.mark.parametrize("result", [None, 5, "text", (job for job in "x")], ids=["none", "int", "str", "generator"])
async def test_a_handler_whose_result_cannot_be_awaited_is_a_type_error_with_its_claim_released(
    store: Store, result: Any
) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(["a", "b", "c"])
    with pytest.raises(TypeError, match=r"anyio\.to_thread\.run_sync"):
        await queue.run_worker(lambda job: result, prefetch=1)
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"worker_id": ""}, InvalidName),
        ({"worker_id": " "}, InvalidName),
        ({"worker_id": 5}, TypeError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": -1}, ValueError),
        ({"concurrency": 2**63}, ValueError),
        ({"concurrency": 1.0}, TypeError),
        ({"concurrency": True}, TypeError),
        ({"prefetch": -1}, ValueError),
        ({"prefetch": 0.5}, TypeError),
        ({"prefetch": False}, TypeError),
        ({"grace": -0.001}, ValueError),
        ({"grace": timedelta(seconds=-1)}, ValueError),
        ({"grace": float("nan")}, ValueError),
        ({"grace": float("inf")}, ValueError),
        ({"grace": None}, TypeError),
        ({"stop": True}, TypeError),
        ({"stop": "stop"}, TypeError),
    ],
)
async def test_an_option_of_a_worker_that_is_no_such_thing_is_refused_with_nothing_claimed(
    store: Store, options: dict[str, Any], error: type[Exception]
) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    with pytest.raises(error):
        await queue.run_worker(_at_once(), **options)
    assert (await queue.statistics()).ready == 1


async def test_a_grace_may_be_zero_fractional_huge_or_a_timedelta(store: Store) -> None:
    graces: list[Any] = [0, 0.5, 10**400, timedelta(seconds=1)]
    for grace in graces:
        stop = StopToken()
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(store.queue("q").run_worker, _at_once(), stop=stop, grace=grace))
            stop.cancel()


# A store that is away, fails or closes


@pytest.mark.parametrize("failure", PASSING)
@pytest.mark.parametrize("op", [Sweep, Claim, NextReadyAt, Ack], ids=lambda op: op.__name__)
async def test_a_worker_rides_out_a_store_that_is_away(
    store: Store, clock: ManualClock, op: type[Op[Any]], failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(op, 4, failure)
    queue = store.queue("q")
    handler = _at_once()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        with caplog.at_level(logging.WARNING, "alkstore_trio"):
            worker = Running(partial(watched(store, failing).queue("q").run_worker, handler, stop=stop))
            tasks.start_soon(worker)
            await queue.enqueue("x")
            await passing(store, clock, 5)
        assert failing.times == 0
        assert len(caplog.records) == 4
        await _emptied(queue)
        stop.cancel()
        assert await worker.end() is None
    assert handler.ended == ["x"]


@pytest.mark.parametrize("op", [Heartbeat, ReadClock], ids=lambda op: op.__name__)
async def test_a_renewal_rides_out_a_store_that_is_away(store: Store, clock: ManualClock, op: type[Op[Any]]) -> None:
    failing = Failing(op, 0, "transient")
    queue = store.queue("q", visibility_timeout=60)
    await queue.enqueue("x")
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, failing).queue("q").run_worker, handler)
        await handler.has_started(1)
        failing.times = 5
        await passing(store, clock, 120, step=2)
        assert failing.times == 0
        assert handler.cancelled == []
        handler.open.set()
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert handler.started == ["x"]


@pytest.mark.parametrize(
    ("op", "ending"),
    [(Fail, Discard("no")), (Retry, ValueError("no")), (Release, Snooze(60))],
    ids=["Fail", "Retry", "Release"],
)
async def test_an_outcome_is_kept_until_a_store_that_is_away_takes_it(
    store: Store, clock: ManualClock, op: type[Op[Any]], ending: Exception
) -> None:
    failing = Failing(op, 3, "transient")
    queue = store.queue("q")
    job_id = await queue.enqueue("x")
    runs: list[Job] = []

    async def handle(job: Job) -> None:
        runs.append(job)
        raise ending

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, failing).queue("q").run_worker, handle)
        await passing(store, clock, 2)
        assert failing.times == 0
        tasks.cancel_scope.cancel()
    job = await queue.get_job(job_id)
    assert job is not None
    assert job.state is not JobState.PROCESSING
    assert len(runs) == 1


@pytest.mark.parametrize("op", [Sweep, Claim, NextReadyAt, Ack, Heartbeat], ids=lambda op: op.__name__)
async def test_a_failure_that_does_not_pass_ends_the_worker_as_itself(
    store: Store, clock: ManualClock, op: type[Op[Any]]
) -> None:
    queue = store.queue("q", visibility_timeout=6)
    await queue.enqueue("x")
    handler = _Handler() if op is Heartbeat else _at_once()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(watched(store, Failing(op, 1)).queue("q").run_worker, handler))
        tasks.start_soon(worker)
        await passing(store, clock, 4)
        error = await worker.end()
    assert isinstance(error, DatabaseError)
    assert not error.transient


async def test_a_worker_waits_longer_and_longer_for_a_store_that_is_away_and_caps_it(
    store: Store, clock: ManualClock
) -> None:
    asked: list[float] = []
    start = clock()

    async def away(op: Op[Any]) -> None:
        if isinstance(op, Claim):
            asked.append(clock() - start)
            raise DatabaseError("away", transient=True)

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, away).queue("q").run_worker, _at_once())
        await passing(store, clock, 100, step=0.25)
        tasks.cancel_scope.cancel()
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[0] <= 0.25
    assert max(gaps) <= 5.25
    assert 15 <= len(asked) <= 60


@pytest.mark.parametrize("state", ["idle", "busy", "full"])
async def test_a_store_that_closes_under_a_worker_ends_it_with_closed(store: Store, state: str) -> None:
    queue = store.queue("q")
    if state != "idle":
        await queue.enqueue("x")
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, prefetch=0, concurrency=2 if state == "busy" else 1))
        await tasks.start(worker)
        await rest(store)
        await store.aclose()
        assert isinstance(await worker.end(), Closed)
    assert len(handler.cancelled) == (state != "idle")


async def test_a_store_that_closes_within_the_grace_of_a_worker_ends_it_with_closed(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    handler = _Handler()
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        worker = Running(partial(queue.run_worker, handler, stop=stop, grace=3_600))
        await tasks.start(worker)
        await handler.has_started(1)
        stop.cancel()
        await rest(store)
        await store.aclose()
        assert isinstance(await worker.end(), Closed)


async def test_a_worker_of_a_closed_store_is_closed_after_its_argument_checks(store: Store) -> None:
    queue = store.queue("q")
    stop = StopToken()
    stop.cancel()
    await store.aclose()
    with pytest.raises(ValueError, match="concurrency"):
        await queue.run_worker(_at_once(), concurrency=0)
    for token in [None, stop]:
        with pytest.raises(Closed):
            await queue.run_worker(_at_once(), stop=token)


# It never spins


@pytest.mark.parametrize("state", ["idle", "delayed", "leased", "spent", "expired", "full", "prefetched", "busy"])
async def test_a_worker_never_spins(store: Store, clock: ManualClock, state: str) -> None:
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    queue = store.queue("q", visibility_timeout=300, max_attempts=1)
    handler = _Handler()
    concurrency = 1
    match state:
        case "delayed":
            await queue.enqueue("x", delay=3_600)
        case "leased":
            await queue.enqueue("x")
            await queue.claim("other")
        case "spent":
            spent = await store.queue("q", visibility_timeout=5, max_attempts=1).enqueue("x")
            await queue.claim("crashed")
            assert await queue.get_job(spent) is not None
        case "expired":
            await queue.enqueue("x", expires=0)
        case "full" | "prefetched":
            await queue.enqueue_many(range(10))
        case "busy":
            await queue.enqueue("x")
            concurrency = 3
        case _:
            pass
    async with anyio.create_task_group() as tasks:
        run = watched(store, note).queue("q").run_worker
        prefetch = 3 if state == "prefetched" else 0
        await tasks.start(partial(run, handler, concurrency=concurrency, prefetch=prefetch))
        await rest(store)
        at_rest = len(asked)
        assert at_rest <= 12
        await rest(store)
        assert len(asked) == at_rest  # while no time passes nobody asks
        await passing(store, clock, 20)
        # a claimer, a renewer and a sweeper that look every two seconds, with two questions at most each
        assert len(asked) - at_rest <= 3 * 2 * (20 / 2 + 1) + 12
        tasks.cancel_scope.cancel()


async def test_idle_workers_are_not_woken_by_other_queues(store: Store) -> None:
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, note).queue("q").run_worker, _at_once())
        await rest(store)
        before = len(asked)
        await store.queue("other").enqueue_many(range(10))
        await rest(store)
        assert len(asked) == before
        tasks.cancel_scope.cancel()


async def test_many_workers_of_one_queue_run_each_job_once(store: Store) -> None:
    queue = store.queue("q")
    seen: list[int] = []

    async def handle(job: Job) -> None:
        await checkpoint()
        seen.append(job.payload)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            await tasks.start(partial(queue.run_worker, handle, concurrency=3))
        await queue.enqueue_many(range(100))
        await _emptied(queue)
        tasks.cancel_scope.cancel()
    assert sorted(seen) == list(range(100))


async def test_leaving_a_worker_by_an_error_of_its_host_is_clean(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(3))
    handler = _Handler()

    async def host() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(queue.run_worker, handler, concurrency=2))
            await handler.has_started(2)
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await host()
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]
