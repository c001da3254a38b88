"""Clocks that step: an hour back, an hour and two weeks forward, under workers, runners and locks.

Whatever waits notices a step in either direction: nothing fires twice, nothing spins, nothing hangs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import attrs
import pytest

from ..._errors import LeadershipLost, LockLost
from ..._ops import Op, Sweep
from ..._queue import JobHandle
from ..._store import Store
from ..._values import Job, JobState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import hold_lease, tick
from .driving import Running, holds, passing, rest, to_be_cancelled, watched
from .kit import Case

_BACK = -3_600.0
_FORWARD = [3_600.0, 14 * 86_400.0]
_STEPS = [_BACK, *_FORWARD]
_SLICE = 2.0  # seconds within which whatever waits looks again
_ASKED = 40  # ops that one task or two may need to find out about a step


@attrs.define(eq=False)
class _Counter:
    """Counts what a store is asked, so that nobody spins unseen."""

    asked: list[Op[Any]] = attrs.field(factory=list)

    async def __call__(self, op: Op[Any]) -> None:
        self.asked.append(op)

    async def is_calm(self, store: Store) -> None:
        """A step has been noticed with few questions, and now that no time passes nobody asks any."""
        await rest(store)
        assert len(self.asked) <= _ASKED
        self.asked.clear()
        await rest(store)
        assert self.asked == []


async def _fires(store: Store) -> int:
    return (await store.queue("fired").statistics()).pending


async def _next_at(store: Store) -> float:
    [state] = await store.schedules()
    return state.next_at


# Runners


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_ends_a_leader_before_any_fire(store: Store, clock: ManualClock, step: float) -> None:
    await store.schedule("s", "@every 30s", "fired", None)
    start = clock()
    async with anyio.create_task_group() as tasks:
        runner = Running(store.run_schedules)
        await tasks.start(runner)
        await passing(store, clock, 30, step=1)
        assert await _fires(store) == 1
        clock.advance(step)
        assert isinstance(await runner.end(), LeadershipLost)
    assert await _fires(store) == 1
    assert await tick(store) == 64
    next_at = await _next_at(store)
    assert clock() < next_at <= clock() + 30
    assert (next_at - start) % 30 == 0


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_standby_survives_a_step_forward_and_makes_up_for_it_once(
    store: Store, clock: ManualClock, step: float
) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 30s", "fired", None)
    counter = _Counter()
    async with anyio.create_task_group() as tasks:
        runner = Running(partial(watched(store, counter).run_schedules, stop, standby=True))
        await tasks.start(runner)
        await rest(store)
        counter.asked.clear()
        clock.advance(step)
        await counter.is_calm(store)
        await passing(store, clock, _SLICE)
        assert await _fires(store) == 64
        counter.asked.clear()
        await counter.is_calm(store)
        await passing(store, clock, 20, step=1)
        assert await _fires(store) == 64
        await passing(store, clock, 10, step=1)
        assert await _fires(store) == 65
        stop.cancel()
        assert await runner.end() is None


async def test_a_step_back_fires_no_boundary_again_and_the_leader_keeps_its_lease(
    store: Store, clock: ManualClock
) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 30s", "fired", None)
    counter = _Counter()
    async with anyio.create_task_group() as tasks:
        runner = Running(partial(watched(store, counter).run_schedules, stop))
        await tasks.start(runner)
        await passing(store, clock, 60, step=1)
        assert await _fires(store) == 2
        due = await _next_at(store)
        counter.asked.clear()
        clock.advance(_BACK)
        await counter.is_calm(store)
        await passing(store, clock, 60, step=1)
        assert await _fires(store) == 2
        assert await _next_at(store) == due
        assert await hold_lease(store, "other", 10) is None
        assert not runner.ended
        stop.cancel()
        assert await runner.end() is None


async def test_a_schedule_waits_out_a_step_back_and_then_goes_on_with_its_grid(
    store: Store, clock: ManualClock
) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 30s", "fired", None)
    async with anyio.create_task_group() as tasks:
        runner = Running(partial(store.run_schedules, stop, standby=True))
        await tasks.start(runner)
        await passing(store, clock, 30, step=1)
        due = await _next_at(store)
        clock.advance(_BACK)
        await passing(store, clock, 5)
        clock.set(due - 5)
        await passing(store, clock, 4.5)
        assert await _fires(store) == 1
        await passing(store, clock, 0.5)
        assert await _fires(store) == 2
        assert await _next_at(store) == due + 30
        stop.cancel()
        assert await runner.end() is None


async def test_a_schedule_that_is_added_after_a_step_back_fires_on_time(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await passing(store, clock, 5)
        clock.advance(_BACK)
        await rest(store)
        await store.schedule("s", "@every 1s", "fired", None)
        await passing(store, clock, 3)
        assert await _fires(store) == 3
        stop.cancel()


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_standby_takes_over_from_a_crashed_leader_after_a_step_forward(
    store: Store, clock: ManualClock, step: float
) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1d", "fired", None)
    assert await hold_lease(store, "crashed", 600) is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(store.run_schedules, stop, standby=True))
        await passing(store, clock, 5)
        clock.advance(step)
        await passing(store, clock, _SLICE)
        assert await hold_lease(store, "other", 10) is None
        assert await _fires(store) == step // 86_400
        stop.cancel()


# Workers


@attrs.define(eq=False)
class _Handler:
    started: list[Any] = attrs.field(factory=list)
    cancelled: list[Any] = attrs.field(factory=list)
    open: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self, job: Job) -> None:
        self.started.append(job.payload)
        try:
            await self.open.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(job.payload)
            raise


async def _emptied(store: Store) -> None:
    async def empty() -> bool:
        return await store.queue("q").jobs() == []

    await holds(empty)


@pytest.mark.parametrize("step", _STEPS)
async def test_an_idle_worker_takes_what_comes_after_a_step(store: Store, clock: ManualClock, step: float) -> None:
    counter = _Counter()
    handler = _Handler()
    handler.open.set()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, counter).queue("q").run_worker, handler)
        await rest(store)
        counter.asked.clear()
        clock.advance(step)
        await counter.is_calm(store)
        await store.queue("q").enqueue("ready")
        await store.queue("q").enqueue("delayed", delay=0.5)
        await rest(store)
        assert handler.started == ["ready"]
        clock.advance(0.5)
        await _emptied(store)
        tasks.cancel_scope.cancel()
    assert handler.started == ["ready", "delayed"]


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_makes_what_is_delayed_due(store: Store, clock: ManualClock, step: float) -> None:
    counter = _Counter()
    handler = _Handler()
    handler.open.set()
    await store.queue("q").enqueue("due", delay=3_600)
    await store.queue("q").enqueue("never", delay=10**8)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, counter).queue("q").run_worker, handler)
        await rest(store)
        counter.asked.clear()
        clock.advance(step)
        await counter.is_calm(store)
        assert handler.started == ["due"]
        tasks.cancel_scope.cancel()


async def test_what_is_due_may_wait_out_a_step_back_and_is_run_once(store: Store, clock: ManualClock) -> None:
    counter = _Counter()
    handler = _Handler()
    handler.open.set()
    await store.queue("q").enqueue("waits", delay=10)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, counter).queue("q").run_worker, handler)
        await passing(store, clock, 5)
        counter.asked.clear()
        clock.advance(_BACK)
        await counter.is_calm(store)
        await passing(store, clock, 30)
        assert handler.started == []
        clock.advance(-_BACK)
        await _emptied(store)
        await passing(store, clock, 5)
        tasks.cancel_scope.cancel()
    assert handler.started == ["waits"]


async def test_a_running_handler_outlives_a_step_back_with_its_claim_renewed(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=30)
    job_id = await queue.enqueue("long")
    counter = _Counter()
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(watched(store, counter).queue("q").run_worker, handler, concurrency=2))
        await rest(store)
        counter.asked.clear()
        clock.advance(_BACK)
        await counter.is_calm(store)
        await passing(store, clock, 90, step=2)
        job = await queue.get_job(job_id)
        assert job is not None
        assert (job.state, job.attempts) == (JobState.PROCESSING, 1)
        assert job.claim_expires_at is not None
        assert clock() < job.claim_expires_at <= clock() + 30
        handler.open.set()
        await _emptied(store)
        tasks.cancel_scope.cancel()
    assert (handler.started, handler.cancelled) == (["long"], [])


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_past_a_claim_cancels_its_handler_and_the_job_runs_again(
    store: Store, clock: ManualClock, step: float
) -> None:
    queue = store.queue("q", visibility_timeout=300)
    await queue.enqueue("long")
    counter = _Counter()
    handler = _Handler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(watched(store, counter).queue("q").run_worker, handler, prefetch=0))
        await rest(store)
        counter.asked.clear()
        clock.advance(step)
        await counter.is_calm(store)
        await passing(store, clock, _SLICE)
        assert (handler.started, handler.cancelled) == (["long", "long"], ["long"])
        handler.open.set()
        await _emptied(store)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_frees_what_a_crashed_worker_held(store: Store, clock: ManualClock, step: float) -> None:
    queue = store.queue("q", visibility_timeout=600)
    await queue.enqueue("orphan")
    assert await queue.claim("crashed") is not None
    handler = _Handler()
    handler.open.set()
    async with anyio.create_task_group() as tasks:
        await tasks.start(queue.run_worker, handler)
        await passing(store, clock, 5)
        assert handler.started == []
        clock.advance(step)
        await _emptied(store)
        tasks.cancel_scope.cancel()
    assert handler.started == ["orphan"]


@pytest.mark.parametrize("step", _STEPS)
async def test_a_worker_goes_on_sweeping_once_a_minute_after_a_step(
    store: Store, clock: ManualClock, step: float
) -> None:
    counter = _Counter()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, counter).queue("q").run_worker, _Handler())
        await passing(store, clock, 10, step=2)
        clock.advance(step)
        await counter.is_calm(store)
        await passing(store, clock, 120, step=2)
        assert sum(isinstance(op, Sweep) for op in counter.asked) == 2
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("step", _STEPS)
async def test_many_jobs_in_steps_all_run_and_none_is_lost(store: Store, clock: ManualClock, step: float) -> None:
    queue = store.queue("q", visibility_timeout=30, max_attempts=100)
    seen: set[int] = set()
    numbers = range(60)

    async def handle(job: Job) -> None:
        await clock.sleep(job.payload % 3)
        seen.add(job.payload)

    for number in numbers:
        await queue.enqueue(number, delay=number % 7)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            await tasks.start(partial(queue.run_worker, handle, concurrency=4))
        await passing(store, clock, 3)
        clock.advance(step)
        await passing(store, clock, 3)
        clock.advance(-step)
        await passing(store, clock, 60, step=1)
        await _emptied(store)
        tasks.cancel_scope.cancel()
    assert seen == set(numbers)


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_under_a_delivery_delivers_again(store: Store, clock: ManualClock, step: float) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    attempts: list[int] = []
    late = anyio.Event()

    async def deliver(handle: JobHandle) -> None:
        attempts.append(handle.job.attempts)
        if handle.job.attempts == 1:
            await late.wait()
            assert await handle.ack() is False

    async def delivered() -> bool:
        return await outbox.jobs() == []

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(outbox.run_delivery, deliver, concurrency=2))
        await rest(store)
        clock.advance(step)
        await holds(delivered)
        late.set()
        await rest(store)
        tasks.cancel_scope.cancel()
    assert attempts == [1, 2]


# Locks


@pytest.mark.parametrize("step", _FORWARD)
async def test_a_step_forward_past_a_hold_is_lock_lost(store: Store, clock: ManualClock, step: float) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 30):
            await rest(store)
            clock.advance(step)
            await to_be_cancelled()

    with pytest.raises(LockLost):
        await hold()
    assert await store.try_lock("lock", "other", 1) is not None


async def test_a_hold_outlives_a_step_back_and_is_renewed_by_the_clock_as_it_is(
    store: Store, clock: ManualClock
) -> None:
    counter = _Counter()

    async def hold() -> None:
        async with watched(store, counter).hold_lock("lock", 30):
            await rest(store)
            counter.asked.clear()
            clock.advance(_BACK)
            await counter.is_calm(store)
            await passing(store, clock, 90, step=2)
            assert await store.try_lock("lock", "other", 1) is None
            clock.advance(30)
            await to_be_cancelled()

    with pytest.raises(LockLost):
        await hold()


async def test_a_hold_that_nobody_renews_lasts_as_much_longer_as_the_clock_went_back(
    store: Store, clock: ManualClock
) -> None:
    lock = await store.try_lock("lock", "a", 30)
    assert lock is not None
    clock.advance(_BACK)
    assert await store.try_lock("lock", "b", 1) is None
    clock.advance(-_BACK + 29.5)
    assert await store.try_lock("lock", "b", 1) is None
    clock.advance(0.5)
    assert await store.try_lock("lock", "b", 1) is not None


@pytest.mark.parametrize("step", _STEPS)
async def test_a_waiter_for_a_lock_takes_over_within_two_seconds_whatever_the_clock_did(
    store: Store, clock: ManualClock, step: float
) -> None:
    counter = _Counter()
    crashed = await store.try_lock("lock", "crashed", 600)
    assert crashed is not None
    entered = anyio.Event()

    async def wait() -> None:
        async with watched(store, counter).hold_lock("lock", 30):
            entered.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await passing(store, clock, 10)
        counter.asked.clear()
        clock.advance(step)
        await counter.is_calm(store)
        if step < 0:
            await passing(store, clock, 10)
            assert not entered.is_set()
            assert await crashed.release()
        await passing(store, clock, _SLICE)
        assert entered.is_set()


# Readings


class _Readings:
    """A clock that stands still, but for blocks in which it fails."""

    def __init__(self) -> None:
        self._fails = False

    def __call__(self) -> float:
        if self._fails:
            raise OSError("no time")
        return 1_000_000.0

    @contextmanager
    def failing(self) -> Iterator[None]:
        """In the block, which it ends."""
        self._fails = True
        try:
            with pytest.raises(OSError, match="no time"):
                yield
        finally:
            self._fails = False


async def test_an_operation_reads_the_clock_once(case: Case, anyio_backend: str) -> None:
    readings = count(1_000_000)  # no two readings are the same
    async with case.open(clock=lambda: float(next(readings))) as store:
        queue = store.queue("q", visibility_timeout=60)
        for job_id in await queue.enqueue_many("ab", delay=-10, expires=1_000):
            job = await queue.get_job(job_id)
            assert job is not None
            assert (job.run_at, job.expires_at) == (job.created_at - 10, job.created_at + 1_000)
        first, second = await queue.claim_batch("w", 2)
        assert first.job.claim_expires_at == second.job.claim_expires_at
        await store.stream("s").publish_many("abc")
        assert len({event.created_at for event in await store.stream("s").read_since(0, 10)}) == 1


async def test_a_clock_that_fails_fails_the_verb_that_reads_it_and_nothing_else(case: Case, anyio_backend: str) -> None:
    readings = _Readings()
    async with case.open(clock=readings) as store:
        queue, stream = store.queue("q"), store.stream("s")
        lock = await store.try_lock("l", "o", 10)
        assert lock is not None
        for verb in (
            lambda: queue.enqueue("x"),
            lambda: queue.claim("w"),
            lambda: stream.publish("x"),
            lambda: lock.renew(10),
        ):
            with readings.failing():
                await verb()
        async with store.transaction() as tx:
            await tx.enqueue_tx("q", "job")
            with readings.failing():
                await tx.enqueue_tx("q", "x")
            await tx.publish_tx("s", "event")
            with readings.failing():
                await tx.publish_tx("s", "x")
        assert [event.payload for event in await stream.read_since(0, 9)] == ["event"]
        assert [job.payload for job in await queue.jobs()] == ["job"]
        assert await lock.renew(10)


# Rows


@pytest.mark.parametrize(
    "steps",
    [
        (6, -5, 2),  # lapsed and expired; not expired, and the claim valid again; lapsed
        (6, -2),  # lapsed and expired; not expired, and lapsed all the same
    ],
)
async def test_an_exhausted_job_dies_whatever_the_clock_had_made_of_it_before(
    store: Store, clock: ManualClock, steps: tuple[int, ...]
) -> None:
    queue = store.queue("q", max_attempts=1, visibility_timeout=2)
    job_id = await queue.enqueue("x", expires=5)
    assert await queue.claim("w") is not None
    for step in steps:
        clock.advance(step)
        assert await queue.claim("another") is None
    job = await queue.get_job(job_id)
    assert job is not None
    assert (job.state, job.last_error, job.died_at) == (JobState.DEAD, "max attempts exceeded", clock())


async def test_a_claim_that_a_step_back_made_valid_again_is_waited_for(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    await queue.enqueue("x", expires=2)
    handle = await queue.claim("w")
    assert handle is not None
    clock.advance(11)
    assert await queue.claim("another") is None
    clock.advance(-6)
    ready_at = await queue.next_ready_at()
    assert ready_at is not None
    assert handle.job.claim_expires_at is not None
    assert ready_at > handle.job.claim_expires_at
    assert await handle.ack()
