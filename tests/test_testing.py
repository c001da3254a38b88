"""`alkstore_trio.testing`: what it promises to the tests of an application."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import alkstore_trio.testing
from alkstore_trio import (
    Closed,
    Discard,
    Job,
    JobState,
    LeadershipLost,
    LockHandle,
    Snooze,
    StopToken,
    Store,
    open_memory,
)
from alkstore_trio.testing import LoopClock, ManualClock, drain, hold_lease, tick

pytest_plugins = ["pytester"]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
async def store(clock: ManualClock, anyio_backend: str) -> Any:
    async with open_memory(clock=clock) as opened:
        yield opened


# ManualClock


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock()
    assert clock() == clock() > 1_500_000_000


@pytest.mark.parametrize(
    "start",
    [1_000_000_000, 1e9, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), datetime.fromtimestamp(1e9, timezone.max)],
)
def test_a_manual_clock_starts_where_it_is_told_to(start: float | datetime) -> None:
    assert ManualClock(start)() == 1e9


@pytest.mark.parametrize(
    ("step", "times", "whole"),
    [(0.1, 10, 1), (0.1, 10_000, 1_000), (0.7, 10, 7), (1e-4, 10_000, 1), (timedelta(milliseconds=100), 10, 1)],
)
def test_many_small_steps_are_exactly_their_sum(step: float | timedelta, times: int, whole: int) -> None:
    clock = ManualClock()
    start = clock()
    for _ in range(times):
        clock.advance(step)
    assert clock() == start + whole


def test_steps_that_no_float_can_tell_apart_still_add_up() -> None:
    clock = ManualClock(1_700_000_000)
    for _ in range(1_000):
        clock.advance(1e-9)  # a float next to the start is 2e-7 away
    assert clock() == 1_700_000_000.000001


def test_a_step_there_and_back_is_none() -> None:
    clock = ManualClock()
    start = clock()
    for step in [0.1, 0.2, 1 / 3, 3_600, 1e-9]:
        clock.advance(step)
    for step in [1e-9, 3_600, 1 / 3, 0.2, 0.1]:
        clock.advance(-step)
    assert clock() == start


@pytest.mark.parametrize("moment", [5, 5.25, datetime.fromtimestamp(5.25, UTC), -3, 2**60])
def test_a_manual_clock_can_be_set_in_either_direction(moment: float | datetime) -> None:
    clock = ManualClock()
    clock.advance(1 / 3)
    clock.set(moment)
    assert clock() == (moment.timestamp() if isinstance(moment, datetime) else moment)


@pytest.mark.parametrize(
    ("value", "error"),
    [(float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError), (True, TypeError), (None, TypeError)],
)
def test_a_manual_clock_refuses_what_is_no_time_and_stays_where_it_is(value: Any, error: type[Exception]) -> None:
    clock = ManualClock()
    start = clock()
    with pytest.raises(error):
        ManualClock(value)
    with pytest.raises(error):
        clock.advance(value)
    with pytest.raises(error):
        clock.set(value)
    assert clock() == start


def test_a_naive_datetime_is_no_instant_for_a_clock() -> None:
    naive = datetime(2020, 1, 1)  # noqa: DTZ001 - what is refused
    refusals: list[Callable[[datetime], object]] = [ManualClock, ManualClock().set, LoopClock]
    for refusing in refusals:
        with pytest.raises(ValueError, match="aware"):
            refusing(naive)


async def _sleepers(clock: ManualClock, tasks: Any, *lengths: float) -> list[float]:
    """Tasks that sleep; the list grows by the length of each that is woken."""
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    for seconds in lengths:
        tasks.start_soon(sleep, seconds)
    await clock.settled()
    return woken


@pytest.mark.anyio
async def test_advance_wakes_whoever_is_due_and_nobody_else(clock: ManualClock) -> None:
    async with anyio.create_task_group() as tasks:
        woken = await _sleepers(clock, tasks, 3, 1, 2)
        for second in [1, 2, 3]:
            clock.advance(0.999)
            await clock.settled()
            assert sorted(woken) == list(range(1, second))
            clock.advance(0.001)
            await clock.settled()
            assert sorted(woken) == list(range(1, second + 1))


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1.1, 1 / 3])
async def test_advancing_by_what_a_task_sleeps_wakes_it_wherever_the_clock_stands(seconds: float) -> None:
    clock = ManualClock()
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            woken = await _sleepers(clock, tasks, seconds)
            clock.advance(seconds)
            await clock.settled()
            assert woken == [seconds]


@pytest.mark.anyio
async def test_ten_steps_of_a_tenth_wake_who_sleeps_for_one_second(clock: ManualClock) -> None:
    async with anyio.create_task_group() as tasks:
        woken = await _sleepers(clock, tasks, 1)
        for _ in range(9):
            clock.advance(0.1)
        await clock.settled()
        assert woken == []
        clock.advance(0.1)
        await clock.settled()
        assert woken == [1]


@pytest.mark.anyio
async def test_a_step_back_wakes_everybody_and_set_wakes_like_advance(clock: ManualClock) -> None:
    async with anyio.create_task_group() as tasks:
        woken = await _sleepers(clock, tasks, 5, 10_000)
        clock.set(clock() + 5)
        await clock.settled()
        assert woken == [5]
        clock.advance(-0.001)
        await clock.settled()
        assert woken == [5, 10_000]
        woken = await _sleepers(clock, tasks, 10_000)
        clock.set(clock() - 1)
        await clock.settled()
        assert woken == [10_000]


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0, -1, -1e9])
async def test_sleeping_for_no_time_yields_and_returns(clock: ManualClock, seconds: float) -> None:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await clock.sleep(seconds)
        await checkpoint()
        order.append("slept")
    assert order == ["other", "slept"]


@pytest.mark.anyio
async def test_a_sleep_of_no_time_is_still_a_cancellation_point(clock: ManualClock) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await clock.sleep(0)
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_a_cancelled_sleeper_leaves_nothing_behind(clock: ManualClock) -> None:
    with anyio.move_on_after(0):
        await clock.sleep(5)
    clock.advance(5)
    assert clock._sleepers == {}


@pytest.mark.anyio
async def test_settled_waits_for_a_long_chain_of_wakes_to_come_to_rest(clock: ManualClock) -> None:
    hops = 500
    doors = [anyio.Event() for _ in range(hops + 1)]
    passed: list[int] = []

    async def hop(place: int) -> None:
        await doors[place].wait()
        await checkpoint()
        passed.append(place)
        doors[place + 1].set()

    async with anyio.create_task_group() as tasks:
        for place in range(hops):
            tasks.start_soon(hop, place)
        await clock.settled()
        assert passed == []
        doors[0].set()
        await clock.settled()
        assert passed == list(range(hops))


@pytest.mark.anyio
async def test_settled_returns_once_everything_on_a_store_waits_again(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    ran: list[Any] = []
    events: list[Any] = []

    async def handle(job: Job) -> None:
        ran.append(job.payload)
        await store.stream("done").publish(job.payload)

    async def follow() -> None:
        async with store.stream("done").subscribe("c") as received:
            while True:
                events.append((await received.receive()).payload)

    await store.schedule("s", "@every 10s", "q", "fired")
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await tasks.start(store.queue("q").run_worker, handle)
        tasks.start_soon(follow)
        await clock.settled()
        for count in range(1, 6):
            for _ in range(5):  # a lease lives for ten seconds
                clock.advance(2)
                await clock.settled()
            assert ran == events == ["fired"] * count
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_settled_returns_at_once_when_nobody_runs(clock: ManualClock) -> None:
    await clock.settled()


# LoopClock


@pytest.mark.anyio
@pytest.mark.parametrize("start", [5.0, 1_700_000_000, datetime.fromtimestamp(7, UTC)])
async def test_a_loop_clock_is_at_its_start_at_the_first_reading_and_follows_the_loop(start: float | datetime) -> None:
    clock = LoopClock(start)
    before = anyio.current_time()
    first = clock()
    assert first == (start.timestamp() if isinstance(start, datetime) else start)
    second = clock()
    after = anyio.current_time()
    assert first <= second
    assert second - first <= Fraction(after) - Fraction(before) + Fraction(1, 1_000_000)


@pytest.mark.anyio
async def test_a_loop_clock_starts_in_the_recent_past_unless_told(anyio_backend: str) -> None:
    assert 1_500_000_000 < LoopClock()() < 2_000_000_000


@pytest.mark.anyio
async def test_a_store_on_a_loop_clock_stamps_and_waits_by_it() -> None:
    clock = LoopClock(100)
    async with open_memory(clock=clock) as store:
        queue = store.queue("q")
        job_id = await queue.enqueue("x", delay=0.01)
        job = await queue.get_job(job_id)
        assert job is not None
        assert 100 <= job.created_at <= clock()
        ran = anyio.Event()

        async def handle(job: Job) -> None:
            ran.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(queue.run_worker, handle)
            with anyio.fail_after(30):
                await ran.wait()
            tasks.cancel_scope.cancel()
        assert clock() >= job.run_at


@pytest.mark.parametrize(("start", "error"), [(float("nan"), ValueError), ("1", TypeError), (False, TypeError)])
def test_a_loop_clock_refuses_a_start_that_is_no_instant(start: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        LoopClock(start)


# tick, hold_lease


@pytest.mark.anyio
async def test_tick_returns_the_number_of_fires(store: Store, clock: ManualClock) -> None:
    assert await tick(store) == 0
    await store.schedule("a", "@every 1s", "q", None)
    await store.schedule("b", "@every 2s", "q", None)
    clock.advance(4)
    assert await tick(store) == 6
    assert await tick(store) == 0
    assert (await store.queue("q").statistics()).pending == 6


@pytest.mark.anyio
async def test_tick_is_refused_while_a_runner_leads(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        with pytest.raises(LeadershipLost):
            await tick(store)
        stop.cancel()
    assert await tick(store) == 0


@pytest.mark.anyio
async def test_a_tick_that_is_cancelled_gives_its_lease_back(store: Store) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await tick(store)
    assert scope.cancelled_caught
    assert await hold_lease(store, "next", 1) is not None


@pytest.mark.anyio
async def test_a_held_lease_plays_another_leader_until_it_ends(store: Store, clock: ManualClock) -> None:
    lease = await hold_lease(store, "other", 5)
    assert isinstance(lease, LockHandle)
    assert lease.owner == "other"
    assert await hold_lease(store, "third", 5) is None
    again = await hold_lease(store, "other", 5)
    assert again is not None
    assert again.token == lease.token
    with pytest.raises(LeadershipLost):
        await store.run_schedules()
    clock.advance(5)
    assert await lease.renew(5) is False
    assert await hold_lease(store, "third", timedelta(seconds=5)) is not None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("owner", "ttl", "error"), [("", 1, ValueError), ("a", 0, ValueError), ("a", "1", TypeError), (1, 1, TypeError)]
)
async def test_hold_lease_checks_its_arguments(store: Store, owner: Any, ttl: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await hold_lease(store, owner, ttl)
    assert await hold_lease(store, "other", 1) is not None


# drain


@pytest.mark.anyio
async def test_drain_runs_what_is_ready_in_order_and_returns_how_many(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    await queue.enqueue("second")
    await queue.enqueue("first", priority=1)
    await queue.enqueue("later", delay=1)
    ran: list[Any] = []

    async def handle(job: Job) -> None:
        ran.append(job.payload)

    assert await drain(queue, handle) == 2
    assert ran == ["first", "second"]
    assert await drain(queue, handle) == 0
    clock.advance(1)
    assert await drain(queue, handle) == 1
    assert await queue.jobs() == []


@pytest.mark.anyio
async def test_drain_runs_what_its_handler_adds(store: Store) -> None:
    queue = store.queue("q")
    await queue.enqueue(3)

    async def handle(job: Job) -> None:
        if job.payload:
            await queue.enqueue(job.payload - 1)

    assert await drain(queue, handle) == 4


@pytest.mark.anyio
async def test_drain_settles_as_a_worker_does(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    failing, discarded, snoozed = await queue.enqueue_many([ValueError.__name__, Discard.__name__, Snooze.__name__])

    async def handle(job: Job) -> None:
        raise {failing: ValueError("x"), discarded: Discard("x"), snoozed: Snooze(9)}[job.id]

    assert await drain(queue, handle) == 3
    jobs = {job.id: job for job in await queue.jobs()}
    assert (jobs[failing].state, jobs[failing].last_error) == (JobState.PENDING, "ValueError: x")
    assert (jobs[discarded].state, jobs[discarded].last_error) == (JobState.DEAD, "x")
    assert (jobs[snoozed].attempts, jobs[snoozed].run_at) == (0, clock() + 9)


@pytest.mark.anyio
async def test_a_drain_that_is_cancelled_gives_its_job_back(store: Store) -> None:
    queue = store.queue("q")
    job_id = await queue.enqueue("x")

    async def handle(job: Job) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await drain(queue, handle)
    job = await queue.get_job(job_id)
    assert job is not None
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("handler", [None, lambda job: None], ids=["not callable", "not awaitable"])
async def test_drain_refuses_what_is_no_handler(store: Store, handler: Any) -> None:
    queue = store.queue("q")
    await queue.enqueue("x")
    with pytest.raises(TypeError):
        await drain(queue, handler)
    assert (await queue.statistics()).ready == 1


@pytest.mark.anyio
async def test_what_drives_a_store_is_closed_on_a_closed_one(store: Store) -> None:
    queue = store.queue("q")

    async def handle(job: Job) -> None:
        pytest.fail("ran")

    await store.aclose()
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: tick(store),
        lambda: hold_lease(store, "other", 1),
        lambda: drain(queue, handle),
    ]
    for verb in verbs:
        with pytest.raises(Closed):
            await verb()


# The package


def test_the_package_exports_what_it_lists() -> None:
    assert sorted(alkstore_trio.testing.__all__) == ["LoopClock", "ManualClock", "drain", "hold_lease", "tick"]
    for name in alkstore_trio.testing.__all__:
        assert getattr(alkstore_trio.testing, name).__doc__


def test_the_package_imports_without_pytest() -> None:
    program = """
import sys

for absent in ["pytest", "_pytest", "pytest_trio", "hypothesis"]:
    sys.modules[absent] = None  # an import of it fails

import alkstore_trio.testing

clock = alkstore_trio.testing.ManualClock(3)
clock.advance(0.5)
print(clock())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "3.5\n"


_APPLICATION = """
import anyio
import pytest

pytest_plugins = ["alkstore_trio.testing.fixtures"]


async def follow(store, clock):
    start = clock()
    job_id = await store.queue("q").enqueue("x", delay=60)
    assert await store.queue("q").claim("w") is None
    clock.advance(60)
    handle = await store.queue("q").claim("w")
    assert handle.job.id == job_id
    assert handle.job.run_at == start + 60
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules)
        await store.schedule("s", "@every 1s", "q", None)
        await clock.settled()
        clock.advance(1)
        await clock.settled()
        assert (await store.queue("q").statistics()).pending == 1
        tasks.cancel_scope.cancel()
"""

_UNDER_ANYIO = """
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio", "asyncio"])
async def test_anyio(memory_store, manual_clock, anyio_backend):
    await follow(memory_store, manual_clock)
"""

_UNDER_TRIO = """
@pytest.mark.trio
async def test_trio(memory_store, manual_clock):
    await follow(memory_store, manual_clock)
"""


@pytest.mark.parametrize(("test", "passed"), [(_UNDER_ANYIO, 2), (_UNDER_TRIO, 1)], ids=["anyio", "pytest-trio"])
def test_the_fixtures_serve_an_application(pytester: pytest.Pytester, test: str, passed: int) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers")
    pytester.makepyfile(_APPLICATION + test)
    pytester.runpytest_subprocess().assert_outcomes(passed=passed)


_ENGINE = """
import pytest

from alkstore_trio import open_memory
from alkstore_trio.testing.conformance import *


@pytest.fixture
def case() -> Case:
    return Case("mine", open_memory)
"""


def test_the_suite_runs_for_a_third_partys_engine(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers")
    pytester.makepyfile(_ENGINE)
    pytester.runpytest_subprocess(
        "-k", "test_a_batch_of_none_claims_nothing or test_unschedule_tells_whether_there_was_one"
    ).assert_outcomes(passed=8)
