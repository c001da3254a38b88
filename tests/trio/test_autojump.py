"""Runner, workers, locks and deadlines on trio's autojump clock: hours pass in no time, to the second.

Memory only: the clock jumps when every task waits, and takes no notice of a busy thread. On a `LoopClock` a store's
stamps and sleeps move together; the suite's `ManualClock` cannot show what is measured by the loop's clock. Each test
names `autojump_clock` itself: the plugin looks for a clock among the arguments of the test alone.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from alkstore_trio import (
    DatabaseError,
    Job,
    JobHandle,
    JobState,
    LeadershipLost,
    LockLost,
    Snooze,
    StopToken,
    Store,
    open_memory,
)
from alkstore_trio._ops import Ack, Claim, DueSchedules, Fire, Op, ReadClock, Renew, TryLock
from alkstore_trio.testing import LoopClock, ManualClock, hold_lease
from alkstore_trio.testing.conformance.driving import Running, _Front, watched

TTL = 10.0  # seconds: the runner's lease
SLICE = 2.0  # seconds within which whatever waits looks at the store's clock again
NEARLY = 0.001  # seconds: a float of today's unix time is good to less than a microsecond


@pytest.fixture
async def store(autojump_clock: MockClock) -> AsyncIterator[Store]:
    async with open_memory(clock=LoopClock()) as opened:
        yield opened


@asynccontextmanager
async def taking(seconds: float, leeway: float = NEARLY) -> AsyncIterator[None]:
    """The block takes so long by the loop's clock, or up to a leeway longer."""
    began = trio.current_time()
    yield
    took = trio.current_time() - began
    assert seconds - NEARLY <= took <= seconds + leeway


class Away:
    """A ``before`` that fails some types of op for as long as the store is away."""

    def __init__(self, *kinds: type[Op[Any]]) -> None:
        self.kinds = kinds
        self.since = math.inf
        self.until = math.inf
        self.failures: list[float] = []

    async def __call__(self, op: Op[Any]) -> None:
        now = trio.current_time()
        if self.since <= now < self.until and isinstance(op, self.kinds):
            self.failures.append(now)
            raise DatabaseError("the store is away", transient=True)

    def goes(self, seconds: float = math.inf) -> None:
        self.since = trio.current_time()
        self.until = self.since + seconds


class SteppedClock:
    """The loop's clock with an offset, which nobody can sleep on."""

    def __init__(self) -> None:
        self.offset = 1_700_000_000.0

    def __call__(self) -> float:
        return self.offset + trio.current_time()


async def forever(job: Job) -> None:
    await trio.sleep_forever()


async def for_its_payload(job: Job) -> None:
    await trio.sleep(job.payload)


async def fires(store: Store) -> list[Job]:
    return await store.queue("fired").jobs(limit=10_000)


# Runner


@pytest.mark.trio
async def test_a_runner_fires_on_its_grid_for_an_hour(autojump_clock: MockClock, store: Store) -> None:
    await store.schedule("s", "@every 5m", "fired", None)
    [state] = await store.schedules()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run_schedules)
        await trio.sleep(3_600 + 1)
        nursery.cancel_scope.cancel()
    jobs = await fires(store)
    assert len(jobs) == 12
    for place, job in enumerate(jobs):
        boundary = state.next_at + 300 * place
        assert boundary <= job.run_at <= boundary + NEARLY


@pytest.mark.trio
async def test_a_runner_sleeps_in_slices_of_two_seconds_and_to_the_boundary(autojump_clock: MockClock) -> None:
    asked: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    async with open_memory(clock=LoopClock()) as opened, trio.open_nursery() as nursery:
        await opened.schedule("s", "@every 7s", "fired", None)
        await nursery.start(watched(opened, note).run_schedules)
        await trio.sleep(70.5)
        nursery.cancel_scope.cancel()
    renewals = sum(isinstance(op, Renew) for op in asked)
    assert 70 / SLICE <= renewals <= 70 / SLICE + 3 * 10
    assert sum(isinstance(op, Fire) for op in asked) == 10


@pytest.mark.trio
async def test_a_standby_takes_over_within_two_seconds_of_a_stop_and_misses_no_boundary(
    autojump_clock: MockClock, store: Store
) -> None:
    await store.schedule("s", "@every 1s", "fired", None)
    first, second = StopToken(), StopToken()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(store.run_schedules, first))
        standby = Running(partial(store.run_schedules, second, standby=True))
        nursery.start_soon(standby)
        await trio.sleep(60.5)
        assert len(await fires(store)) == 60
        first.cancel()
        await trio.sleep(SLICE)
        assert len(await fires(store)) == 62
        await trio.sleep(60)
        assert len(await fires(store)) == 122
        second.cancel()


@pytest.mark.trio
async def test_a_standby_takes_over_within_its_ttl_and_two_seconds_of_a_crash(
    autojump_clock: MockClock, store: Store
) -> None:
    assert await hold_lease(store, "crashed", TTL) is not None
    stop = StopToken()
    async with trio.open_nursery() as nursery:
        async with taking(TTL, leeway=SLICE):
            await nursery.start(partial(store.run_schedules, stop, standby=True))
        stop.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("outage", [1, 5, 7.5])
async def test_a_leader_rides_out_an_outage_that_its_lease_outlives(
    autojump_clock: MockClock, store: Store, outage: float
) -> None:
    away = Away(Renew, DueSchedules, Fire)
    await store.schedule("s", "@every 1s", "fired", None)
    async with trio.open_nursery() as nursery:
        runner = Running(watched(store, away).run_schedules)
        await nursery.start(runner)
        await trio.sleep(20.5)
        away.goes(outage)
        await trio.sleep(40)
        assert not runner.ended
        assert len(await fires(store)) == 60
        nursery.cancel_scope.cancel()
    assert len(away.failures) <= 20 * outage + 2


@pytest.mark.trio
async def test_a_leader_renews_within_a_tick_that_takes_longer_than_its_lease(
    autojump_clock: MockClock, store: Store
) -> None:
    async def slowly(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            await trio.sleep(1)

    schedules = round(2 * TTL)
    for number in range(schedules):
        await store.schedule(f"s {number}", "@every 1h", "fired", None)
    async with trio.open_nursery() as nursery:
        runner = Running(watched(store, slowly).run_schedules)
        await nursery.start(runner)
        await trio.sleep(3_600 + schedules + 1)
        assert not runner.ended
        assert len(await fires(store)) == schedules
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_an_outage_that_outlives_the_lease_counts_as_its_loss_with_the_failure_as_the_cause(
    autojump_clock: MockClock, store: Store
) -> None:
    away = Away(Renew, DueSchedules, Fire)
    await store.schedule("s", "@every 1s", "fired", None)
    async with trio.open_nursery() as nursery:
        runner = Running(watched(store, away).run_schedules)
        await nursery.start(runner)
        await trio.sleep(20.5)
        away.goes()
        async with taking(TTL - SLICE, leeway=SLICE + 0.1):
            error = await runner.end()
    assert isinstance(error, LeadershipLost)
    assert isinstance(error.__cause__, DatabaseError)
    assert error.__cause__.transient
    assert len(await fires(store)) == 20


@pytest.mark.trio
async def test_a_standby_waits_out_an_outage_of_any_length_and_leads_again(
    autojump_clock: MockClock, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    away = Away(Renew, DueSchedules, Fire, TryLock)
    stop = StopToken()
    await store.schedule("s", "@every 60s", "fired", None)
    with caplog.at_level(logging.WARNING, "alkstore_trio"):
        async with trio.open_nursery() as nursery:
            runner = Running(partial(watched(store, away).run_schedules, stop, standby=True))
            await nursery.start(runner)
            await trio.sleep(60.5)
            away.goes(600)
            await trio.sleep(600 + 5 + SLICE)
            assert len(await fires(store)) == 11
            stop.cancel()
            assert await runner.end() is None
    assert "waiting for a turn" in caplog.text


# Workers


@pytest.mark.trio
@pytest.mark.parametrize("delay", [0.25, 3, 600.5])
async def test_a_delayed_job_starts_at_its_instant(autojump_clock: MockClock, store: Store, delay: float) -> None:
    queue = store.queue("q")
    started = trio.Event()

    async def handle(job: Job) -> None:
        started.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(queue.run_worker, handle)
        async with taking(delay):
            await queue.enqueue("x", delay=delay)
            await started.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_lapsed_claim_is_taken_over_right_after_its_deadline(autojump_clock: MockClock, store: Store) -> None:
    queue = store.queue("q", visibility_timeout=33)
    await queue.enqueue("x")
    started = trio.Event()

    async def handle(job: Job) -> None:
        started.set()

    async with trio.open_nursery() as nursery:
        async with taking(33):
            assert await queue.claim("crashed") is not None
            await nursery.start(queue.run_worker, handle)
            await started.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_handler_may_run_for_an_hour_under_a_short_visibility_timeout(
    autojump_clock: MockClock, store: Store
) -> None:
    queue = store.queue("q", visibility_timeout=5)
    job_id = await queue.enqueue("x")
    attempts: list[int] = []
    stop = StopToken()

    async def handle(job: Job) -> None:
        attempts.append(job.attempts)
        await trio.sleep(3_600)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(queue.run_worker, handle, stop=stop))
        await trio.sleep(3_601)
        assert await queue.get_job(job_id) is None
        stop.cancel()
    assert attempts == [1]


@pytest.mark.trio
async def test_a_failing_job_is_tried_along_its_curve_and_then_dead(autojump_clock: MockClock, store: Store) -> None:
    queue = store.queue("q", base_backoff=8, max_attempts=5)
    job_id = await queue.enqueue("x")
    tried: list[float] = []

    async def handle(job: Job) -> None:
        tried.append(trio.current_time())
        raise ValueError("bad")

    async with trio.open_nursery() as nursery:
        await nursery.start(queue.run_worker, handle)
        await trio.sleep(1_000)
        nursery.cancel_scope.cancel()
    job = await queue.get_job(job_id)
    assert job is not None
    assert (job.state, job.attempts) == (JobState.DEAD, 5)
    for attempt in range(1, 5):
        ceiling = 8 * 2 ** (attempt - 1)
        assert ceiling / 2 - NEARLY <= tried[attempt] - tried[attempt - 1] <= ceiling + NEARLY


@pytest.mark.trio
async def test_a_snoozed_job_comes_back_when_it_said(autojump_clock: MockClock, store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    tried: list[float] = []
    stop = StopToken()

    async def handle(job: Job) -> None:
        tried.append(trio.current_time())
        if len(tried) == 4:
            stop.cancel()
            return
        assert job.attempts == 1
        raise Snooze(timedelta(hours=1))

    await queue.run_worker(handle, stop=stop)
    assert [later - earlier for earlier, later in pairwise(tried)] == pytest.approx([3_600] * 3, abs=NEARLY)


@pytest.mark.trio
@pytest.mark.parametrize("grace", [0, 0.5, 30, 7_200, timedelta(seconds=5)])
@pytest.mark.parametrize("clock", [LoopClock, ManualClock])
async def test_a_handler_that_outlives_the_grace_is_cancelled_at_its_end_and_its_job_released(
    autojump_clock: MockClock, grace: Any, clock: Callable[[], Callable[[], float]]
) -> None:
    """Whatever the store's clock is: a grace is measured by the loop's."""
    stop = StopToken()
    async with open_memory(clock=clock()) as store:
        queue = store.queue("q")
        job_id = await queue.enqueue("x")
        async with trio.open_nursery() as nursery:
            worker = Running(partial(queue.run_worker, forever, stop=stop, grace=grace))
            await nursery.start(worker)
            await trio.sleep(100)
            async with taking(grace.total_seconds() if isinstance(grace, timedelta) else grace):
                stop.cancel()
                assert await worker.end(within=10_000) is None
        job = await queue.get_job(job_id)
        assert job is not None
        assert (job.state, job.attempts, job.worker_id) == (JobState.PENDING, 0, None)


@pytest.mark.trio
async def test_a_worker_returns_as_soon_as_its_handlers_end_within_the_grace(
    autojump_clock: MockClock, store: Store
) -> None:
    queue = store.queue("q")
    await queue.enqueue_many([3, 7, 20])
    stop = StopToken()
    async with trio.open_nursery() as nursery:
        worker = Running(partial(queue.run_worker, for_its_payload, concurrency=3, stop=stop, grace=10))
        await nursery.start(worker)
        await trio.sleep(1)
        async with taking(10):
            stop.cancel()
            assert await worker.end() is None
    assert [(job.payload, job.attempts) for job in await queue.jobs()] == [(20, 0)]


@pytest.mark.trio
async def test_a_worker_in_its_grace_renews_what_still_runs(autojump_clock: MockClock, store: Store) -> None:
    queue = store.queue("q", visibility_timeout=5)
    await queue.enqueue(100)
    stop = StopToken()
    async with trio.open_nursery() as nursery:
        worker = Running(partial(queue.run_worker, for_its_payload, stop=stop, grace=200))
        await nursery.start(worker)
        await trio.sleep(1)
        stop.cancel()
        for _ in range(98):
            await trio.sleep(1)
            assert await queue.claim("thief") is None
        assert await worker.end(within=10) is None
    assert await queue.jobs() == []


@pytest.mark.trio
async def test_a_store_that_stays_away_does_not_keep_a_stopped_worker_past_its_grace(
    autojump_clock: MockClock, store: Store
) -> None:
    """What could not be settled by then lapses, as after a crash."""
    away = Away(Ack)
    queue = store.queue("q")
    job_id = await queue.enqueue(1)
    stop = StopToken()
    async with trio.open_nursery() as nursery:
        away.goes()
        worker = Running(partial(watched(store, away).queue("q").run_worker, for_its_payload, stop=stop, grace=5))
        await nursery.start(worker)
        await trio.sleep(30)
        assert away.failures
        async with taking(5):
            stop.cancel()
            assert await worker.end(within=60) is None
    job = await queue.get_job(job_id)
    assert job is not None
    assert job.state is JobState.PROCESSING


@pytest.mark.trio
async def test_a_worker_asks_a_store_that_is_away_less_and_less_often(autojump_clock: MockClock, store: Store) -> None:
    away = Away(Claim)
    queue = store.queue("q")
    ran = trio.Event()

    async def handle(job: Job) -> None:
        ran.set()

    async with trio.open_nursery() as nursery:
        away.goes(600)
        await nursery.start(watched(store, away).queue("q").run_worker, handle)
        await queue.enqueue("x")
        async with taking(600, leeway=5):
            await ran.wait()
        nursery.cancel_scope.cancel()
    gaps = [later - earlier for earlier, later in pairwise(away.failures)]
    assert gaps[0] <= 0.05 + NEARLY
    assert all(2.5 - NEARLY <= gap <= 5 + NEARLY for gap in gaps[10:])
    assert len({round(gap, 6) for gap in gaps[10:]}) > 10  # jittered


@pytest.mark.trio
async def test_a_worker_under_a_deadline_gives_everything_back(autojump_clock: MockClock, store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(5))
    async with taking(10):
        with trio.move_on_after(10) as scope:
            await queue.run_worker(forever, concurrency=2, prefetch=1)
    assert scope.cancelled_caught
    assert [(job.id, job.state, job.attempts) for job in await queue.jobs()] == [
        (job_id, JobState.PENDING, 0) for job_id in ids
    ]


@pytest.mark.trio
async def test_an_idle_worker_costs_a_look_every_two_seconds_and_a_sweep_a_minute(
    autojump_clock: MockClock, store: Store
) -> None:
    asked: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    with trio.move_on_after(600):
        await watched(store, note).queue("q").run_worker(forever)
    claims = sum(isinstance(op, Claim) for op in asked)
    assert 600 / SLICE - 2 <= claims <= 600 / SLICE + 2
    assert len(asked) <= 2 * claims + 2 * 600 / SLICE


# Outbox


@pytest.mark.trio
async def test_a_deadline_around_a_delivery_refunds_and_one_inside_it_retries(
    autojump_clock: MockClock, store: Store
) -> None:
    outbox = store.outbox("mail")
    job_id = await outbox.enqueue("x")

    async def hang(handle: JobHandle) -> None:
        await trio.sleep_forever()

    async def bounded(handle: JobHandle) -> None:
        with trio.fail_after(5):
            await trio.sleep_forever()

    async with taking(10):
        with trio.move_on_after(10) as scope:
            await outbox.run_once("w", hang)
    assert scope.cancelled_caught
    job = await outbox.get_job(job_id)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 0, None)
    async with taking(5):
        assert await outbox.run_once("w", bounded) is True
    job = await outbox.get_job(job_id)
    assert job is not None
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "TooSlowError: ")


@pytest.mark.trio
async def test_a_delivery_of_minutes_keeps_its_claim_by_its_own_heartbeat(
    autojump_clock: MockClock, store: Store
) -> None:
    outbox = store.outbox("mail")
    await outbox.enqueue("x")
    stop = StopToken()
    deliveries = 0

    async def deliver(handle: JobHandle) -> None:
        nonlocal deliveries
        deliveries += 1
        for _ in range(20):
            await trio.sleep(30)
            assert await handle.heartbeat()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(outbox.run_delivery, deliver, stop=stop))
        await trio.sleep(601)
        assert await outbox.jobs() == []
        stop.cancel()
    assert deliveries == 1


# Locks


@pytest.mark.trio
async def test_a_held_lock_outlives_its_ttl_and_a_waiter_has_it_within_two_seconds_of_its_end(
    autojump_clock: MockClock, store: Store
) -> None:
    entered: list[float] = []

    async def wait() -> None:
        async with store.hold_lock("lock", 10):
            entered.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        async with store.hold_lock("lock", 10):
            nursery.start_soon(wait)
            for _ in range(600):
                await trio.sleep(1)
                assert await store.try_lock("lock", "thief", 1) is None
        left = trio.current_time()
    assert left <= entered[0] <= left + SLICE


@pytest.mark.trio
async def test_a_waiter_has_a_crashed_owners_lock_within_its_ttl_and_two_seconds(
    autojump_clock: MockClock, store: Store
) -> None:
    assert await store.try_lock("lock", "crashed", 100) is not None
    async with taking(100, leeway=SLICE), store.hold_lock("lock", 10):
        pass


@pytest.mark.trio
async def test_a_waiter_can_give_up_at_a_deadline(autojump_clock: MockClock, store: Store) -> None:
    lock = await store.try_lock("lock", "other", 3_600)
    assert lock is not None

    async def hold() -> None:
        with trio.fail_after(7):
            async with store.hold_lock("lock", 10):
                pytest.fail("entered")

    async with taking(7):
        with pytest.raises(trio.TooSlowError):
            await hold()
    assert await lock.release()
    await trio.sleep(10)
    assert await store.try_lock("lock", "free", 1) is not None


@pytest.mark.trio
async def test_a_hold_that_was_released_elsewhere_ends_within_a_third_of_its_ttl(
    autojump_clock: MockClock, store: Store
) -> None:
    async def hold() -> None:
        async with store.hold_lock("lock", 30, owner="a"):
            again = await store.try_lock("lock", "a", 1)
            assert again is not None
            assert await again.release()
            await trio.sleep_forever()

    async with taking(0, leeway=10 + NEARLY):
        with pytest.raises(LockLost):
            await hold()


@pytest.mark.trio
async def test_a_hold_rides_out_an_outage_that_it_outlives_and_is_lost_to_a_longer_one(
    autojump_clock: MockClock, store: Store
) -> None:
    away = Away(Renew)

    async def hold(outage: float) -> None:
        async with watched(store, away).hold_lock("lock", 30):
            await trio.sleep(100)
            away.goes(outage)
            await trio.sleep(100)

    await hold(15)
    with pytest.raises(LockLost) as lost:
        await hold(math.inf)
    assert isinstance(lost.value.__cause__, DatabaseError)
    assert lost.value.__cause__.transient


@pytest.mark.trio
async def test_a_hold_is_cancelled_no_later_than_its_lease_may_live(autojump_clock: MockClock, store: Store) -> None:
    away = Away(Renew)
    renewed = cancelled = 0.0

    async def hold() -> None:
        nonlocal renewed, cancelled
        async with watched(store, away).hold_lock("lock", 30):
            renewed = trio.current_time()
            away.goes()
            try:
                await trio.sleep_forever()
            finally:
                cancelled = trio.current_time()

    with pytest.raises(LockLost):
        await hold()
    assert cancelled <= renewed + 30 + 0.1


class Silent:
    """A ``before`` that never lets some types of op through from when it is set."""

    def __init__(self, *kinds: type[Op[Any]]) -> None:
        self.kinds = kinds
        self.since = math.inf

    async def __call__(self, op: Op[Any]) -> None:
        if self.since <= trio.current_time() and isinstance(op, self.kinds):
            await trio.sleep_forever()


@pytest.mark.trio
@pytest.mark.parametrize("kind", [Renew, ReadClock])
async def test_a_hold_ends_with_its_lease_though_the_store_does_not_answer(
    autojump_clock: MockClock, store: Store, kind: type[Op[Any]]
) -> None:
    silent = Silent(kind)
    renewed = cancelled = 0.0

    async def hold() -> None:
        nonlocal renewed, cancelled
        async with watched(store, silent).hold_lock("lock", 30):
            renewed = silent.since = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                cancelled = trio.current_time()

    with trio.fail_after(60), pytest.raises(LockLost):
        await hold()
    assert cancelled <= renewed + 30 + NEARLY


@pytest.mark.trio
@pytest.mark.parametrize("kind", [Renew, DueSchedules, Fire])
async def test_a_leader_ends_with_its_lease_though_the_store_does_not_answer(
    autojump_clock: MockClock, store: Store, kind: type[Op[Any]]
) -> None:
    silent = Silent(kind)
    await store.schedule("s", "@every 1s", "fired", None)
    async with trio.open_nursery() as nursery:
        runner = Running(watched(store, silent).run_schedules)
        await nursery.start(runner)
        await trio.sleep(20.5)
        silent.since = trio.current_time()
        async with taking(TTL - 1, leeway=2):  # it ticks once a second
            assert isinstance(await runner.end(), LeadershipLost)
    assert len(await fires(store)) == 20


@pytest.mark.trio
async def test_a_lease_is_counted_from_before_the_renewal_that_is_answered_late(
    autojump_clock: MockClock, store: Store
) -> None:
    renewals: list[float] = []
    cancelled = 0.0

    class Late(_Front):
        async def do(self, op: Op[Any]) -> Any:
            if not isinstance(op, Renew):
                return await self._inner.do(op)
            renewals.append(trio.current_time())
            if len(renewals) > 2:
                await trio.sleep_forever()
            answer = await self._inner.do(op)
            await trio.sleep(5)
            return answer

    async def hold() -> None:
        nonlocal cancelled
        async with Store(engine).hold_lock("lock", 30):
            try:
                await trio.sleep_forever()
            finally:
                cancelled = trio.current_time()

    engine: Any = Late(store._engine)
    with trio.fail_after(100), pytest.raises(LockLost):
        await hold()
    assert renewals[1] + 30 - NEARLY <= cancelled <= renewals[1] + 30 + NEARLY


@pytest.mark.trio
async def test_a_hold_that_the_store_confirms_outlives_its_lease_by_the_loops_clock(autojump_clock: MockClock) -> None:
    frozen = 1_700_000_000.0
    async with open_memory(clock=lambda: frozen) as store, store.hold_lock("lock", 30):
        await trio.sleep(100)
        frozen += 10
        await trio.sleep(100)


# A clock that steps and cannot be slept on


@pytest.mark.trio
@pytest.mark.parametrize("step", [3_600, 14 * 86_400])
async def test_a_step_forward_of_the_stores_clock_is_noticed_within_two_seconds(
    autojump_clock: MockClock, step: float
) -> None:
    clock = SteppedClock()
    entered, ran = trio.Event(), trio.Event()

    async def handle(job: Job) -> None:
        ran.set()

    async def wait(store: Store) -> None:
        async with store.hold_lock("lock", 30):
            entered.set()
            await trio.sleep_forever()

    async with open_memory(clock=clock) as store:
        await store.queue("q").enqueue("x", delay=3_600)
        assert await store.try_lock("lock", "crashed", 3_600) is not None
        await store.schedule("s", "@every 1h", "fired", None)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.queue("q").run_worker, handle)
            nursery.start_soon(wait, store)
            runner = Running(store.run_schedules)
            await nursery.start(runner)
            await trio.sleep(100)
            clock.offset += step
            async with taking(0, leeway=SLICE):
                await ran.wait()
                await entered.wait()
                assert isinstance(await runner.end(), LeadershipLost)
            assert await fires(store) == []
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_step_back_of_the_stores_clock_spins_nobody_and_ends_nothing(autojump_clock: MockClock) -> None:
    clock = SteppedClock()
    asked: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    async def hold(store: Store) -> None:
        async with store.hold_lock("lock", 30):
            await trio.sleep_forever()

    async with open_memory(clock=clock) as opened:
        store = watched(opened, note)
        await store.queue("q").enqueue("long")
        await store.schedule("s", "@every 30s", "fired", None)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.queue("q").run_worker, forever)
            nursery.start_soon(hold, store)
            await nursery.start(store.run_schedules)
            await trio.sleep(100)
            assert len(await fires(store)) == 3
            clock.offset -= 3_600
            asked.clear()
            await trio.sleep(100)
            assert len(await fires(store)) == 3
            assert await store.try_lock("lock", "thief", 1) is None
            assert await hold_lease(store, "thief", 1) is None
            assert await store.queue("q").claim("thief") is None
            # seven tasks that look every two seconds, with two questions each
            assert len(asked) <= 7 * 2 * (100 / SLICE + 2)
            nursery.cancel_scope.cancel()
