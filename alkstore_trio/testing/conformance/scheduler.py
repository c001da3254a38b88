"""The scheduler: registering, the tick, the runner and its lease."""

import logging
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import attrs
import pytest

from ..._errors import (
    AlkstoreError,
    Closed,
    CodecError,
    DatabaseError,
    InvalidName,
    InvalidSpec,
    LeadershipLost,
    ReservedName,
)
from ..._ops import DueSchedules, Fire, Op, Renew, Unlock
from ..._store import Store
from ..._values import JobState, Schedule, ScheduleOptions, ScheduleState
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import hold_lease, tick
from .driving import PASSING, Failing, Failure, Gate, Running, holds, passing, rest, to_be_cancelled, watched

_TTL = 10.0  # seconds: the runner's lease
_SLICE = 2.0  # seconds within which a runner looks again


async def _fires(store: Store, queue: str = "q") -> int:
    statistics = await store.queue(queue).statistics()
    return statistics.pending + statistics.processing + statistics.dead


async def _fired(store: Store, times: int) -> None:
    """Wait until the schedules have fired so many times in all."""

    async def so_many() -> bool:
        return await _fires(store) >= times

    await holds(so_many)
    assert await _fires(store) == times


async def _next_at(store: Store, name: str = "s") -> float:
    return {state.schedule.name: state.next_at for state in await store.schedules()}[name]


async def _is_led(store: Store) -> bool:
    """Whether somebody holds the lease; the one who asks gives it back."""
    lease = await hold_lease(store, "inspector", 1)
    if lease is None:
        return True
    await lease.release()
    return False


# Registering


async def test_a_schedule_reads_back_as_it_was_given(store: Store, clock: ManualClock) -> None:
    spec = " \t@every \t007m\t "
    given = await store.schedule("s", spec, "q", {"a": 1}, priority=-3, expires=1.5, max_attempts=7)
    assert given == Schedule("s", spec, "q", ScheduleOptions(-3, 1.5, 7))
    assert await store.schedules() == [ScheduleState(given, clock() + 420)]


async def test_schedules_are_listed_by_name(store: Store) -> None:
    for name in ["b", "a", "C", "ä"]:
        await store.schedule(name, "@every 1h", "q", None)
    assert [state.schedule.name for state in await store.schedules()] == ["C", "a", "b", "ä"]


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ("@every 1s", 1),
        ("@every 2m", 120),
        ("@every 3h", 10_800),
        ("@every 4d", 345_600),
        ("  @every 1s", 1),
        ("\t@every\t1s\t", 1),
        ("@every \t  1s  ", 1),
        ("@every 0007s", 7),
        ("@every " + "0" * 5_000 + "1s", 1),
        ("@every 3650d", 315_360_000),
        ("@every 87600h", 315_360_000),
        ("@every 315360000s", 315_360_000),
    ],
)
async def test_the_first_boundary_is_one_interval_from_now(
    store: Store, clock: ManualClock, spec: str, seconds: float
) -> None:
    assert (await store.schedule("s", spec, "q", None)).spec == spec
    assert await _next_at(store) == clock() + seconds


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "   ",
        "@every",
        "@every ",
        "@every s",
        "@every 1",
        "@every1s",
        "@every 1 s",
        "@every 1\ts",
        "@every 0s",
        "@every 000d",
        "@every -1s",
        "@every +1s",
        "@every 1.5s",
        "@every 1e3s",
        "@every 1_000s",
        "@every 0x1s",
        "@every 1S",
        "@every 1H",
        "@EVERY 1s",
        "@Every 1s",
        "every 1s",
        "@every 1ms",
        "@every 1w",
        "@every 1sec",
        "@every 1h30m",
        "@every 1s 2s",
        "@every 1s;",
        "x@every 1s",
        "@every \N{ARABIC-INDIC DIGIT ONE}s",
        "@every \N{SUPERSCRIPT TWO}s",
        "@every \N{FULLWIDTH DIGIT ONE}s",
        "@every\n1s",
        "@every 1s\n",
        "\n@every 1s",
        "@every\N{NO-BREAK SPACE}1s",
        "@every 1s\N{NO-BREAK SPACE}",
        "@every 1s\0",
        "@every 3651d",
        "@every 315360001s",
        "@every 87601h",
        "@every " + "9" * 5_000 + "s",
        "* * * * *",
        "*/5 * * * *",
        "@hourly",
        "@daily",
        "\ud800",
    ],
)
async def test_any_other_spec_is_refused_and_nothing_is_written(store: Store, spec: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        await store.schedule("s", spec, "q", None)
    assert refusal.value.spec == spec
    assert isinstance(refusal.value, ValueError)
    assert await store.schedules() == []


@pytest.mark.parametrize("spec", [None, 5, 1.0, b"@every 1s", ["@every 1s"]])
async def test_a_spec_that_is_no_text_is_a_type_error(store: Store, spec: Any) -> None:
    with pytest.raises(TypeError):
        await store.schedule("s", spec, "q", None)
    assert await store.schedules() == []


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", InvalidName),
        (" \t", InvalidName),
        ("x" * 513, InvalidName),
        ("a\0b", InvalidName),
        ("\ud800", InvalidName),
        ("__alkstore_", ReservedName),
        ("__alkstore_scheduler", ReservedName),
        ("__alkstore_outbox:x", ReservedName),
        (5, TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.parametrize("place", ["name", "queue"])
async def test_the_name_and_the_queue_of_a_schedule_are_validated_alike(
    store: Store, place: str, name: Any, error: type[Exception]
) -> None:
    names: dict[str, Any] = {"name": "s", "queue": "q"} | {place: name}
    with pytest.raises(error):
        await store.schedule(names["name"], "@every 1s", names["queue"], None)
    assert await store.schedules() == []


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"spec": "0 0 * * *"}, InvalidSpec),
        ({"payload": float("nan")}, CodecError),
        ({"payload": object()}, CodecError),
        ({"priority": 2**63}, ValueError),
        ({"priority": True}, TypeError),
        ({"priority": 1.0}, TypeError),
        ({"expires": float("inf")}, ValueError),
        ({"expires": "1"}, TypeError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": 2**63}, ValueError),
        ({"max_attempts": False}, TypeError),
    ],
)
async def test_a_refused_registration_leaves_the_schedule_that_was_there(
    store: Store, clock: ManualClock, changed: dict[str, Any], error: type[Exception]
) -> None:
    await store.schedule("s", "@every 60s", "q", "kept", priority=4)
    before = await store.schedules()
    arguments: dict[str, Any] = {"name": "s", "spec": "@every 5s", "queue": "other", "payload": "lost"} | changed
    with pytest.raises(error):
        await store.schedule(**arguments)
    assert await store.schedules() == before
    clock.advance(60)
    assert await tick(store) == 1
    [job] = await store.queue("q").jobs()
    assert (job.payload, job.priority) == ("kept", 4)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "", "queue": "__alkstore_x", "spec": "?", "payload": object(), "max_attempts": 0}, InvalidName),
        ({"name": "s", "queue": "__alkstore_x", "spec": "?", "payload": object(), "max_attempts": 0}, ReservedName),
        ({"name": "s", "queue": "q", "spec": "?", "payload": object(), "max_attempts": 0}, InvalidSpec),
        ({"name": "s", "queue": "q", "spec": "@every 1s", "payload": object(), "max_attempts": 0}, CodecError),
    ],
)
async def test_a_registration_checks_names_then_spec_then_payload_then_numbers(
    store: Store, arguments: dict[str, Any], error: type[AlkstoreError]
) -> None:
    with pytest.raises(error):
        await store.schedule(**arguments)


@pytest.mark.parametrize("same", ["@every 60s", "@every 1m", " @every 060s "])
async def test_an_unchanged_interval_keeps_the_grid_and_replaces_the_rest(
    store: Store, clock: ManualClock, same: str
) -> None:
    await store.schedule("s", "@every 60s", "q", "old", priority=1, expires=5, max_attempts=2)
    grid = await _next_at(store)
    clock.advance(45)
    again = await store.schedule("s", same, "other", "new", max_attempts=9)
    assert await store.schedules() == [ScheduleState(again, grid)]
    assert again == Schedule("s", same, "other", ScheduleOptions(0, None, 9))
    clock.set(grid)
    assert await tick(store) == 1
    [job] = await store.queue("other").jobs()
    assert (job.payload, job.priority, job.expires_at, job.max_attempts) == ("new", 0, None, 9)
    assert await _fires(store) == 0


async def test_an_overdue_boundary_survives_a_registration_with_an_unchanged_interval(
    store: Store, clock: ManualClock
) -> None:
    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(70)
    await store.schedule("s", "@every 60s", "q", None)
    assert await tick(store) == 1


@pytest.mark.parametrize("changed", ["@every 30s", "@every 2m"])
async def test_a_changed_interval_starts_a_new_grid(store: Store, clock: ManualClock, changed: str) -> None:
    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(70)
    await store.schedule("s", changed, "q", None)
    assert await _next_at(store) == clock() + {"@every 30s": 30, "@every 2m": 120}[changed]
    assert await tick(store) == 0


async def test_the_payload_is_taken_at_the_registration(store: Store, clock: ManualClock) -> None:
    payload = {"n": [1]}
    await store.schedule("s", "@every 1s", "q", payload)
    payload["n"].append(2)
    clock.advance(1)
    await tick(store)
    assert [job.body for job in await store.queue("q").jobs()] == ['{"n":[1]}']


async def test_unschedule_tells_whether_there_was_one(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 1s", "q", None)
    await store.schedule("t", "@every 1h", "q", None)
    assert await store.unschedule("s") is True
    assert await store.unschedule("s") is False
    assert await store.unschedule("never") is False
    assert [state.schedule.name for state in await store.schedules()] == ["t"]
    clock.advance(5)
    assert await tick(store) == 0


@pytest.mark.parametrize(("name", "error"), [("__alkstore_s", ReservedName), ("", InvalidName), (1, TypeError)])
async def test_unschedule_refuses_a_name_that_no_schedule_can_have(
    store: Store, name: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await store.unschedule(name)


async def test_a_schedule_that_comes_back_starts_a_new_grid(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(45)
    await store.unschedule("s")
    await store.schedule("s", "@every 60s", "q", None)
    assert await _next_at(store) == clock() + 60


# The tick


async def test_nothing_fires_before_its_boundary_and_one_job_at_it(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 60s", "q", None)
    boundary = clock() + 60
    clock.advance(59.999)
    assert await tick(store) == 0
    clock.set(boundary)
    assert await tick(store) == 1
    assert await _fires(store) == 1
    assert await _next_at(store) == boundary + 60


async def test_no_boundary_fires_twice(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(60)
    assert [await tick(store), await tick(store)] == [1, 0]
    clock.advance(-30)
    assert await tick(store) == 0
    clock.advance(30)
    assert await tick(store) == 0
    clock.advance(60)
    assert await tick(store) == 1


async def test_a_fire_is_ready_at_the_ticks_instant_with_the_stamps_of_its_registration(
    store: Store, clock: ManualClock
) -> None:
    await store.schedule("plain", "@every 60s", "q", {"n": 1})
    await store.schedule("rich", "@every 60s", "r", None, priority=-5, expires=10, max_attempts=7)
    clock.advance(75)
    assert await tick(store) == 2
    [plain] = await store.queue("q", visibility_timeout=1, max_attempts=1, base_backoff=1, dead_retention=1).jobs()
    assert (plain.run_at, plain.created_at, plain.expires_at) == (clock(), clock(), None)
    assert (plain.visibility_timeout, plain.max_attempts, plain.base_backoff, plain.dead_retention) == (300, 3, 5, None)
    assert (plain.state, plain.attempts, plain.priority, plain.body) == (JobState.PENDING, 0, 0, '{"n":1}')
    [rich] = await store.queue("r").jobs()
    assert (rich.run_at, rich.expires_at, rich.priority) == (clock(), clock() + 10, -5)
    assert (rich.visibility_timeout, rich.max_attempts, rich.base_backoff, rich.dead_retention) == (300, 7, 5, None)


async def test_fired_jobs_are_ordinary_work(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 60s", "q", "tick")
    other = await store.queue("q").enqueue("other", priority=1)
    clock.advance(120)
    assert await tick(store) == 2
    first, second, third = await store.queue("q").claim_batch("w", 5)
    assert first.job.id == other
    assert other < second.job.id < third.job.id
    assert second.job.payload == "tick"
    assert await second.ack()
    assert await third.retry("again", 0)
    again = await store.queue("q").claim("w")
    assert again is not None
    assert (again.job.id, again.job.attempts, again.job.last_error) == (third.job.id, 2, "again")


@pytest.mark.parametrize(
    ("behind", "fires"), [(0, 0), (2, 1), (3.5, 1), (126, 63), (128, 64), (130, 64), (600, 64), (1_209_600, 64)]
)
async def test_a_tick_makes_up_for_at_most_64_boundaries_and_stays_on_its_grid(
    store: Store, clock: ManualClock, behind: float, fires: int
) -> None:
    start = clock()
    await store.schedule("s", "@every 2s", "q", None)
    clock.advance(behind)
    assert await tick(store) == fires
    assert await _fires(store) == fires
    next_at = await _next_at(store)
    assert clock() < next_at <= clock() + 2
    assert (next_at - start) % 2 == 0
    assert await tick(store) == 0


async def test_every_boundary_that_a_tick_makes_up_for_is_ready_at_the_ticks_instant(
    store: Store, clock: ManualClock
) -> None:
    await store.schedule("s", "@every 2s", "q", None)
    clock.advance(7)
    assert await tick(store) == 3
    assert {job.run_at for job in await store.queue("q").jobs()} == {clock()}


async def test_schedules_fire_in_order_of_boundary_and_name_each_with_all_its_fires(
    store: Store, clock: ManualClock
) -> None:
    for name, spec in [("b", "@every 10s"), ("c", "@every 5s"), ("a", "@every 10s"), ("later", "@every 11s")]:
        await store.schedule(name, spec, "q", name)
    clock.advance(10)
    assert await tick(store) == 4
    assert [job.payload for job in await store.queue("q").jobs()] == ["c", "c", "a", "b"]


async def test_schedules_that_are_not_due_are_untouched(store: Store, clock: ManualClock) -> None:
    await store.schedule("due", "@every 1m", "q", None)
    await store.schedule("not due", "@every 1h", "q", None, priority=2, expires=3, max_attempts=4)
    before = {state.schedule.name: state for state in await store.schedules()}
    clock.advance(60)
    assert await tick(store) == 1
    after = {state.schedule.name: state for state in await store.schedules()}
    assert after["not due"] == before["not due"]
    assert after["due"] == attrs.evolve(before["due"], next_at=clock() + 60)


async def test_a_tick_needs_the_lease_and_gives_it_back(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 1s", "q", None)
    clock.advance(1)
    lease = await hold_lease(store, "other", 5)
    assert lease is not None
    with pytest.raises(LeadershipLost):
        await tick(store)
    assert await _fires(store) == 0
    await lease.release()
    assert await tick(store) == 1
    assert not await _is_led(store)


async def test_a_leader_that_stalls_past_its_lease_before_a_fire_fires_nothing(
    store: Store, clock: ManualClock
) -> None:
    async def stall(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            clock.advance(_TTL)

    await store.schedule("s", "@every 60s", "q", None)
    boundary = clock() + 60
    clock.set(boundary)
    with pytest.raises(LeadershipLost):
        await tick(watched(store, stall))
    assert await _fires(store) == 0
    assert await _next_at(store) == boundary


async def test_a_leader_that_stalls_within_its_lease_fires_as_of_its_reading(store: Store, clock: ManualClock) -> None:
    async def stall(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            clock.advance(_TTL - 0.5)

    await store.schedule("s", "@every 60s", "q", None, expires=30)
    clock.advance(60)
    reading = clock()
    assert await tick(watched(store, stall)) == 1
    [job] = await store.queue("q").jobs()
    assert (job.run_at, job.expires_at) == (reading, reading + 30)


async def test_a_lease_that_another_took_meanwhile_fires_nothing(store: Store, clock: ManualClock) -> None:
    async def lose(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            clock.advance(_TTL)
            assert await hold_lease(store, "other", _TTL) is not None

    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(60)
    with pytest.raises(LeadershipLost):
        await tick(watched(store, lose))
    assert await _fires(store) == 0


async def test_a_lease_that_was_released_meanwhile_fires_nothing(store: Store, clock: ManualClock) -> None:
    async def lose(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            assert await store._engine.do(Unlock(op.lease, op.token))

    await store.schedule("s", "@every 60s", "q", None)
    clock.advance(60)
    with pytest.raises(LeadershipLost):
        await tick(watched(store, lose))
    assert await _fires(store) == 0


async def test_a_lease_lost_between_two_fires_keeps_the_first_and_withholds_the_second(
    store: Store, clock: ManualClock
) -> None:
    async def stall(op: Op[Any]) -> None:
        if isinstance(op, Fire) and op.name == "b":
            clock.advance(_TTL)

    await store.schedule("a", "@every 60s", "q", "a")
    await store.schedule("b", "@every 60s", "q", "b")
    clock.advance(60)
    with pytest.raises(LeadershipLost):
        await tick(watched(store, stall))
    assert [job.payload for job in await store.queue("q").jobs()] == ["a"]
    clock.advance(-_TTL)
    assert await tick(store) == 1
    assert [job.payload for job in await store.queue("q").jobs()] == ["a", "b"]


@pytest.mark.parametrize("change", ["removed", "moved"])
async def test_a_schedule_that_changes_after_the_reading_does_not_fire_on_what_was_read(
    store: Store, clock: ManualClock, change: str
) -> None:
    async def interfere(op: Op[Any]) -> None:
        if isinstance(op, Fire) and op.name == "s":
            if change == "removed":
                assert await store.unschedule("s")
            else:
                await store.schedule("s", "@every 7s", "q", "moved")

    await store.schedule("s", "@every 60s", "q", "s")
    await store.schedule("t", "@every 60s", "q", "t")
    clock.advance(60)
    assert await tick(watched(store, interfere)) == 1
    assert [job.payload for job in await store.queue("q").jobs()] == ["t"]


# The runner


async def test_nothing_fires_without_a_runner(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 1s", "q", None)
    await passing(store, clock, 5, step=1)
    assert await _fires(store) == 0


async def test_a_runner_fires_at_every_boundary(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 3s", "q", None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        for boundary in range(1, 6):
            await passing(store, clock, 2.5)
            assert await _fires(store) == boundary - 1
            clock.advance(0.5)
            await _fired(store, boundary)
        stop.cancel()
    assert [job.run_at for job in await store.queue("q").jobs()] == [clock() - 12 + 3 * n for n in range(5)]


async def test_a_runner_wakes_for_a_boundary_that_it_has_just_set(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1s", "q", None)  # less than any slice
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        for boundary in range(1, 5):
            await rest(store)
            clock.advance(1)
            await _fired(store, boundary)
        stop.cancel()
    assert [job.run_at for job in await store.queue("q").jobs()] == [clock() - 3 + n for n in range(4)]


async def test_a_runner_makes_up_for_what_was_missed_before_it_came(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 2s", "q", None)
    clock.advance(600)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await _fired(store, 64)
        stop.cancel()
    assert await _next_at(store) == clock() + 2


async def test_an_idle_runner_wakes_at_once_for_a_schedule_that_is_added(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await rest(store)
        await store.schedule("s", "@every 1s", "q", None)
        await rest(store)
        clock.advance(1)  # less than any slice: only a runner that was woken knows of it
        await _fired(store, 1)
        stop.cancel()


async def test_a_schedule_that_is_added_while_a_runner_reads_is_not_overlooked(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopToken()
    do = store._engine.do
    read, added = anyio.Event(), anyio.Event()

    async def slow(op: Op[Any]) -> Any:
        answer = await do(op)
        if isinstance(op, DueSchedules) and not read.is_set():
            read.set()
            await added.wait()
        return answer

    monkeypatch.setattr(store._engine, "do", slow)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await read.wait()
        await store.schedule("s", "@every 1s", "q", None)
        added.set()
        await rest(store)
        clock.advance(1)  # less than any slice
        await _fired(store, 1)
        stop.cancel()


async def test_a_runner_wakes_at_once_for_a_schedule_that_is_changed(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1h", "q", None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await rest(store)
        await store.schedule("s", "@every 1s", "q", None)
        await rest(store)
        clock.advance(1)
        await _fired(store, 1)
        stop.cancel()


async def test_a_schedule_that_is_forgotten_under_a_runner_fires_no_more(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 3s", "q", "s")
    await store.schedule("t", "@every 3s", "q", "t")
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        await rest(store)
        assert await store.unschedule("s")
        clock.advance(3)
        await _fired(store, 1)
        stop.cancel()
    assert [job.payload for job in await store.queue("q").jobs()] == ["t"]


async def test_an_idle_runner_keeps_its_lease_for_good(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        for _ in range(15):
            await passing(store, clock, 6, step=_SLICE)
            assert await hold_lease(store, "other", _TTL) is None
        stop.cancel()


async def test_a_sleeping_runner_renews_at_least_every_two_seconds_and_never_spins(
    store: Store, clock: ManualClock
) -> None:
    renewals: list[float] = []

    async def count(op: Op[Any]) -> None:
        if isinstance(op, Renew):
            renewals.append(clock())

    stop = StopToken()
    await store.schedule("s", "@every 1h", "q", None)
    start = clock()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, count).run_schedules, stop)
        await passing(store, clock, 30)
        seen = [start, *renewals, clock()]
        assert max(later - earlier for earlier, later in pairwise(seen)) <= _SLICE
        assert len(renewals) <= 1 + 30 / _SLICE
        stop.cancel()


async def test_a_runner_renews_before_every_tick(store: Store, clock: ManualClock) -> None:
    asked: list[type[Op[Any]]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(type(op))

    stop = StopToken()
    await store.schedule("s", "@every 1s", "q", None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched(store, note).run_schedules, stop)
        await passing(store, clock, 3)
        stop.cancel()
    readings = [place for place, kind in enumerate(asked) if kind is DueSchedules]
    assert len(readings) >= 3
    assert all(asked[place - 1] is Renew for place in readings)


async def test_of_two_runners_one_leads_and_the_other_is_refused(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1s", "q", None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules, stop)
        with pytest.raises(LeadershipLost):
            await store.run_schedules()
        await rest(store)
        clock.advance(1)
        await _fired(store, 1)
        stop.cancel()


async def test_a_runner_that_is_refused_has_fired_nothing(store: Store, clock: ManualClock) -> None:
    await store.schedule("s", "@every 1s", "q", None)
    clock.advance(1)
    assert await hold_lease(store, "other", _TTL) is not None
    with pytest.raises(LeadershipLost):
        await store.run_schedules()
    assert await _fires(store) == 0


async def test_a_lease_that_ends_while_its_runner_sleeps_ends_it_before_any_fire(
    store: Store, clock: ManualClock
) -> None:
    await store.schedule("s", "@every 1m", "q", None)
    async with anyio.create_task_group() as tasks:
        runner = Running(store.run_schedules)
        await tasks.start(runner)
        await rest(store)
        clock.advance(60)
        assert isinstance(await runner.end(), LeadershipLost)
    assert await _fires(store) == 0
    assert not await _is_led(store)


async def test_a_foreign_holder_ends_a_runner_before_any_fire_and_keeps_the_lease(
    store: Store, clock: ManualClock
) -> None:
    await store.schedule("s", "@every 1m", "q", None)
    async with anyio.create_task_group() as tasks:
        runner = Running(store.run_schedules)
        await tasks.start(runner)
        await rest(store)
        clock.advance(60)
        foreign = await hold_lease(store, "other", _TTL)
        assert isinstance(await runner.end(), LeadershipLost)
        assert foreign is not None
        assert await foreign.renew(_TTL)
    assert await _fires(store) == 0


async def test_a_stalled_runner_past_its_lease_ends_before_its_fire(store: Store, clock: ManualClock) -> None:
    async def stall(op: Op[Any]) -> None:
        if isinstance(op, Fire):
            clock.advance(_TTL)

    await store.schedule("s", "@every 1s", "q", None)
    clock.advance(1)
    with pytest.raises(LeadershipLost):
        await watched(store, stall).run_schedules()
    assert await _fires(store) == 0


async def test_a_stop_returns_none_and_the_next_runner_starts_at_once(store: Store) -> None:
    for _ in range(3):
        stop = StopToken()
        async with anyio.create_task_group() as tasks:
            runner = Running(partial(store.run_schedules, stop))
            await tasks.start(runner)
            assert await _is_led(store)
            stop.cancel()
            assert await runner.end() is None
        assert not await _is_led(store)


async def test_a_stop_that_was_called_before_takes_nothing(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    stop.cancel()
    await store.schedule("s", "@every 1s", "q", None)
    clock.advance(1)
    asked: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    lease = await hold_lease(store, "other", _TTL)
    for standby in [False, True]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(watched(store, note).run_schedules, stop, standby=standby))
    assert asked == []
    assert lease is not None
    assert await lease.renew(_TTL)


async def test_one_token_stops_many_runners(store: Store) -> None:
    stop = StopToken()
    async with anyio.create_task_group() as tasks:
        leader = Running(partial(store.run_schedules, stop))
        await tasks.start(leader)
        standbys = [Running(partial(store.run_schedules, stop, standby=True)) for _ in range(3)]
        for standby in standbys:
            tasks.start_soon(standby)
        await rest(store)
        assert not any(runner.ended for runner in [leader, *standbys])
        stop.cancel()
        assert [await runner.end() for runner in [leader, *standbys]] == [None] * 4
    assert not await _is_led(store)


async def test_a_standby_that_is_stopped_before_its_turn_has_still_reported_itself_started(store: Store) -> None:
    stop = StopToken()
    assert await hold_lease(store, "other", _TTL) is not None

    async def soon(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        await rest(store)
        stop.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(soon)
        await tasks.start(partial(store.run_schedules, stop, standby=True))


async def test_leadership_lost_wins_over_a_simultaneous_stop(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1m", "q", None)
    async with anyio.create_task_group() as tasks:
        runner = Running(partial(store.run_schedules, stop))
        await tasks.start(runner)
        await rest(store)
        clock.advance(60)
        stop.cancel()
        assert isinstance(await runner.end(), LeadershipLost)
    assert await _fires(store) == 0


async def test_cancelling_a_runner_releases_its_lease(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules)
        assert await _is_led(store)
        tasks.cancel_scope.cancel()
    assert not await _is_led(store)


async def test_a_runners_own_error_leaves_as_itself_and_releases_its_lease(store: Store) -> None:
    with pytest.raises(DatabaseError, match="away"):
        await watched(store, Failing(DueSchedules, 1)).run_schedules()
    assert not await _is_led(store)


@pytest.mark.parametrize("failure", PASSING)
async def test_a_runner_rides_out_a_store_that_is_away_for_a_while(
    store: Store, clock: ManualClock, failure: Failure
) -> None:
    stop = StopToken()
    failing = Failing((Renew, DueSchedules, Fire), 5, failure)
    await store.schedule("s", "@every 5s", "q", None)
    clock.advance(5)
    async with anyio.create_task_group() as tasks:
        runner = Running(partial(watched(store, failing).run_schedules, stop))
        await tasks.start(runner)
        await passing(store, clock, 4)
        assert failing.times == 0
        await _fired(store, 1)
        stop.cancel()
        assert await runner.end() is None


async def test_a_standby_takes_over_within_two_seconds_of_a_release(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    await store.schedule("s", "@every 1s", "q", None)
    foreign = await hold_lease(store, "other", 3_600)
    assert foreign is not None
    async with anyio.create_task_group() as tasks:
        standby = Running(partial(store.run_schedules, stop, standby=True))
        tasks.start_soon(standby)
        await passing(store, clock, 20)
        assert await _fires(store) == 0
        assert await foreign.release()
        await passing(store, clock, _SLICE)
        assert await _is_led(store)
        await _fired(store, 22)
        stop.cancel()
        assert await standby.end() is None


async def test_a_standby_takes_over_within_its_ttl_and_two_seconds_of_a_crash(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    assert await hold_lease(store, "crashed", _TTL) is not None
    async with anyio.create_task_group() as tasks:
        standby = Running(partial(store.run_schedules, stop, standby=True))
        tasks.start_soon(standby)
        await passing(store, clock, _TTL + _SLICE)
        assert await hold_lease(store, "other", 1) is None
        stop.cancel()
        assert await standby.end() is None


async def test_a_standby_has_started_once_it_leads(store: Store, clock: ManualClock) -> None:
    stop = StopToken()
    foreign = await hold_lease(store, "other", 3_600)
    assert foreign is not None
    order: list[str] = []

    async def starting() -> None:
        await tasks.start(partial(store.run_schedules, stop, standby=True))
        order.append("started")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(starting)
        await passing(store, clock, 6)
        order.append("released")
        await foreign.release()
        await passing(store, clock, _SLICE)
        assert order == ["released", "started"]
        stop.cancel()


async def test_a_standby_that_loses_its_lease_logs_it_and_waits_for_its_turn(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stop, gate = StopToken(), Gate()
    await store.schedule("s", "@every 60s", "q", None)
    async with anyio.create_task_group() as tasks:
        standby = Running(partial(watched(store, gate).run_schedules, stop, standby=True))
        await tasks.start(standby)
        await rest(store)
        with caplog.at_level(logging.WARNING, "alkstore_trio"):
            gate.shut()
            clock.advance(60)
            foreign = await hold_lease(store, "other", 3_600)
            assert foreign is not None
            gate.open()
            await passing(store, clock, 10)
        assert not standby.ended
        assert await _fires(store) == 0
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        await foreign.release()
        await passing(store, clock, _SLICE)
        await _fired(store, 1)
        stop.cancel()
        assert await standby.end() is None


async def test_a_handover_between_two_standbys_fires_every_boundary_once(store: Store, clock: ManualClock) -> None:
    first, second = StopToken(), StopToken()
    await store.schedule("s", "@every 1s", "q", None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(store.run_schedules, first, standby=True))
        waiting = Running(partial(store.run_schedules, second, standby=True))
        tasks.start_soon(waiting)
        await passing(store, clock, 5)
        await _fired(store, 5)
        first.cancel()
        await passing(store, clock, 5)
        await _fired(store, 10)
        second.cancel()
        assert await waiting.end() is None


async def test_a_store_that_closes_under_a_runner_ends_it_with_closed(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        runner = Running(store.run_schedules)
        await tasks.start(runner)
        await rest(store)
        await store.aclose()
        assert isinstance(await runner.end(), Closed)


async def test_a_store_that_closes_under_a_waiting_standby_ends_it_with_closed(store: Store) -> None:
    assert await hold_lease(store, "other", 3_600) is not None
    async with anyio.create_task_group() as tasks:
        standby = Running(partial(store.run_schedules, standby=True))
        tasks.start_soon(standby)
        await rest(store)
        await store.aclose()
        assert isinstance(await standby.end(), Closed)


async def test_a_runner_of_a_closed_store_is_closed_even_when_it_was_stopped_before(store: Store) -> None:
    stop = StopToken()
    stop.cancel()
    await store.aclose()
    for token in [None, stop]:
        with pytest.raises(Closed):
            await store.run_schedules(token)


@pytest.mark.parametrize("stop", [True, 5, "stop", anyio.Event])
async def test_a_stop_that_is_no_token_is_a_type_error(store: Store, stop: Any) -> None:
    with pytest.raises(TypeError):
        await store.run_schedules(stop)
    assert not await _is_led(store)


# Stop tokens


async def test_a_token_ends_its_scopes_and_wakes_its_waiters(store: Store) -> None:
    stop = StopToken()
    woken: list[str] = []

    async def wait() -> None:
        await stop.wait()
        woken.append("waiter")

    async def scoped() -> None:
        with stop.scope() as scope:
            await to_be_cancelled()
        assert scope.cancel_called
        woken.append("scope")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(scoped)
        await rest(store)
        assert woken == []
        assert not stop.cancel_called
        stop.cancel()
        stop.cancel()
    assert stop.cancel_called
    assert sorted(woken) == ["scope", "waiter"]


async def test_a_token_that_is_cancelled_ends_a_scope_at_its_first_checkpoint(store: Store) -> None:
    stop = StopToken()
    stop.cancel()
    await stop.wait()
    with stop.scope() as scope:
        await store.queue("q").enqueue("never")
    assert scope.cancelled_caught
    assert await _fires(store) == 0


async def test_waiting_for_a_token_can_be_cancelled(store: Store) -> None:
    stop = StopToken()
    with anyio.move_on_after(0) as scope:
        await stop.wait()
    assert scope.cancelled_caught
    assert not stop.cancel_called
