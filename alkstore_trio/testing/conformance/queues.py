"""Queues: stamps, claims, the state machine, the dead."""

import math
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import anyio
import attrs
import pytest

from ..._errors import Closed, CodecError
from ..._ops import Claim, Move, Op
from ..._queue import JobHandle, Queue
from ..._store import Store
from ..._values import Job, JobState, QueueStatistics
from ..._waiting import StopToken
from .._clocks import ManualClock
from .._drive import tick
from .driving import rest, watched
from .kit import Effects

_LARGEST = sys.float_info.max

_PLAIN = (300.0, 3, 5.0, None)
_OUTBOX = (60.0, 5, 5.0, None)
_OWN: dict[str, Any] = {
    "visibility_timeout": timedelta(milliseconds=900),
    "max_attempts": 7,
    "base_backoff": 0,
    "dead_retention": 0.5,
}


# What the tests stand on


def _stamps(job: Job) -> tuple[float, int, float, float | None]:
    return job.visibility_timeout, job.max_attempts, job.base_backoff, job.dead_retention


async def _job(queue: Queue, job_id: int) -> Job:
    job = await queue.get_job(job_id)
    assert job is not None
    return job


async def _claimed(queue: Queue, **options: Any) -> JobHandle:
    """A claim of a new job, the first in line."""
    job_id = await queue.enqueue("x", priority=2**62, **options)
    handle = await queue.claim("w")
    assert handle is not None
    assert handle.job.id == job_id
    return handle


async def _dead(queue: Queue, error: str = "killed", **options: Any) -> int:
    """A new job, killed."""
    handle = await _claimed(queue, **options)
    assert await handle.fail(error)
    return handle.job.id


_SETTLING: dict[str, Callable[[JobHandle], Awaitable[bool]]] = {
    "ack": lambda handle: handle.ack(),
    "fail": lambda handle: handle.fail("late"),
    "retry": lambda handle: handle.retry("late"),
    "retry in 1 s": lambda handle: handle.retry("late", 1),
    "release": lambda handle: handle.release(),
    "release for 1 s": lambda handle: handle.release(1),
}
_OPS = _SETTLING | {
    "heartbeat": lambda handle: handle.heartbeat(),
    "heartbeat of 60 s": lambda handle: handle.heartbeat(60),
}
_each_op = pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in _OPS.items()])
_each_settling = pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in _SETTLING.items()])


async def _one_of_each(store: Store, clock: ManualClock, *names: str) -> list[dict[str, int]]:
    """In each queue a row of every kind, by what it is; 20 seconds go by."""
    built: list[dict[str, int]] = []
    for name in names:
        queue = store.queue(name, visibility_timeout=10)
        built.append(
            {
                "lapsed": (await _claimed(queue)).job.id,
                "lapsed, exhausted": (await _claimed(queue, max_attempts=1)).job.id,
                "lapsed, expired": (await _claimed(queue, expires=15)).job.id,
                "lapsed, exhausted, expired": (await _claimed(queue, expires=15, max_attempts=1)).job.id,
                "live": (await _claimed(store.queue(name, visibility_timeout=1_000))).job.id,
                "live, expired": (await _claimed(store.queue(name, visibility_timeout=1_000), expires=15)).job.id,
                "dead": await _dead(queue),
                "expired": await queue.enqueue("x", expires=15),
                "delayed": await queue.enqueue("x", delay=100),
                "delayed, expired": await queue.enqueue("x", delay=100, expires=15),
                "urgent": await queue.enqueue("x", priority=2**62, delay=1),
                "ready": await queue.enqueue("x"),
                "older": await queue.enqueue("x", run_at=clock() - 1),
                "last": await queue.enqueue("x", priority=-1),
            }
        )
    clock.advance(20)
    return built


_CLAIMABLE = ["lapsed", "urgent", "older", "ready", "last"]  # of the rows of `_one_of_each`, in claim order


# Stamps


async def _fired(store: Store, clock: ManualClock, **options: Any) -> Job:
    await store.schedule("s", "@every 1s", "q", "x", **options)
    clock.advance(1)
    assert await tick(store) == 1
    return (await store.queue("q").jobs())[-1]


async def _by_queue(store: Store, clock: ManualClock, **options: Any) -> Job:
    return await _job(store.queue("q"), await store.queue("q", **_OWN).enqueue("x", **options))


async def _by_queue_many(store: Store, clock: ManualClock, **options: Any) -> Job:
    return await _job(store.queue("q"), (await store.queue("q", **_OWN).enqueue_many(["x"], **options))[0])


async def _by_default_queue(store: Store, clock: ManualClock, **options: Any) -> Job:
    return await _job(store.queue("q"), await store.queue("q").enqueue("x", **options))


async def _by_tx(store: Store, clock: ManualClock, **options: Any) -> Job:
    async with store.transaction() as tx:
        job_id = await tx.enqueue_tx("q", "x", **options)
    return await _job(store.queue("q"), job_id)


async def _by_outbox(store: Store, clock: ManualClock, **options: Any) -> Job:
    job = await store.outbox("o").get_job(await store.outbox("o").enqueue("x", **options))
    assert job is not None
    return job


async def _by_outbox_tx(store: Store, clock: ManualClock, **options: Any) -> Job:
    async with store.transaction() as tx:
        job_id = await tx.outbox_enqueue_tx("o", "x", **options)
    job = await store.outbox("o").get_job(job_id)
    assert job is not None
    return job


@pytest.mark.parametrize(
    ("enqueued", "stamps"),
    [
        pytest.param(_by_queue, (0.9, 7, 0.0, 0.5), id="queue.enqueue"),
        pytest.param(_by_queue_many, (0.9, 7, 0.0, 0.5), id="queue.enqueue_many"),
        pytest.param(_by_default_queue, _PLAIN, id="queue.enqueue by default"),
        pytest.param(_by_tx, _PLAIN, id="tx.enqueue_tx"),
        pytest.param(_by_outbox, _OUTBOX, id="outbox.enqueue"),
        pytest.param(_by_outbox_tx, _OUTBOX, id="tx.outbox_enqueue_tx"),
        pytest.param(_fired, _PLAIN, id="a schedule's fire"),
    ],
)
@pytest.mark.parametrize("max_attempts", [None, 1, 2**63 - 1])
async def test_a_job_carries_the_stamps_of_its_enqueuer_and_the_calls_own_max_attempts(
    store: Store,
    clock: ManualClock,
    enqueued: Callable[..., Awaitable[Job]],
    stamps: tuple[float, int, float, float | None],
    max_attempts: int | None,
) -> None:
    job = await enqueued(store, clock, max_attempts=max_attempts)
    visibility, attempts, backoff, retention = stamps
    assert _stamps(job) == (visibility, attempts if max_attempts is None else max_attempts, backoff, retention)


async def test_stamps_travel_with_a_job_into_its_grave_and_nobody_looks_the_options_up(
    store: Store, clock: ManualClock
) -> None:
    job_id = await store.queue("q", **_OWN).enqueue("x")
    other = store.queue("q", visibility_timeout=5_000, max_attempts=1, base_backoff=50, dead_retention=50)
    handle = await other.claim("w")
    assert handle is not None
    assert handle.job.claim_expires_at == clock() + 0.9
    assert await handle.retry("again")
    assert (await _job(other, job_id)).run_at == clock()
    handle = await other.claim("w")
    assert handle is not None
    assert await handle.heartbeat()
    assert await handle.fail("enough")
    assert _stamps(await _job(other, job_id)) == (0.9, 7, 0.0, 0.5)
    clock.advance(0.5)
    assert await other.sweep_expired() == 1


# Enqueue


async def test_a_job_is_read_back_as_it_was_enqueued(effects: Effects, clock: ManualClock) -> None:
    job_id = await effects.enqueue("q", {"a": [1]}, delay=0.25, priority=-4, expires=60, max_attempts=9)
    assert await effects.get_job("q", job_id) == Job(
        id=job_id,
        queue="q",
        body='{"a":[1]}',
        state=JobState.PENDING,
        priority=-4,
        run_at=clock() + 0.25,
        expires_at=clock() + 60,
        attempts=0,
        max_attempts=9,
        visibility_timeout=300.0,
        base_backoff=5.0,
        dead_retention=None,
        worker_id=None,
        claim_expires_at=None,
        created_at=clock(),
        last_error=None,
        died_at=None,
    )


_INSTANT = datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "run_at", "relative"),
    [
        ({}, 0.0, True),
        ({"delay": 0.25}, 0.25, True),
        ({"delay": 3}, 3.0, True),
        ({"delay": -7}, -7.0, True),
        ({"delay": timedelta(hours=1, milliseconds=250)}, 3_600.25, True),
        ({"delay": 0, "run_at": 1e9}, 0.0, True),
        ({"delay": 5, "run_at": 1e9}, 5.0, True),
        ({"run_at": 12}, 12.0, False),
        ({"run_at": -1.5}, -1.5, False),
        ({"run_at": _INSTANT}, _INSTANT.timestamp(), False),
        ({"run_at": _INSTANT.astimezone(timezone(timedelta(hours=-9)))}, _INSTANT.timestamp(), False),
    ],
)
async def test_a_job_is_ready_at_once_or_after_its_delay_or_at_its_run_at_and_the_delay_wins(
    effects: Effects, clock: ManualClock, options: dict[str, Any], run_at: float, relative: bool
) -> None:
    job = await effects.get_job("q", await effects.enqueue("q", "x", **options))
    assert job is not None
    assert job.run_at == (clock() + run_at if relative else run_at)
    assert type(job.run_at) is float


async def test_a_jobs_expiry_counts_from_its_enqueue_not_from_its_delay(effects: Effects, clock: ManualClock) -> None:
    job = await effects.get_job("q", await effects.enqueue("q", "x", delay=50, expires=timedelta(seconds=10)))
    assert job is not None
    assert job.expires_at == clock() + 10


async def test_ids_are_one_counter_of_the_store_that_begins_at_one(effects: Effects) -> None:
    assert [
        await effects.enqueue("a", "x"),
        await effects.enqueue("b", "x"),
        await effects.outbox_enqueue("o", "x"),
        await effects.enqueue("a", "x"),
    ] == [1, 2, 3, 4]


async def test_many_jobs_are_enqueued_in_order(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many((str(i) for i in range(5)), priority=3, delay=-1)
    assert ids == sorted(set(ids))
    handles = await queue.claim_batch("w", 10)
    assert [(handle.job.id, handle.job.payload) for handle in handles] == list(zip(ids, "01234", strict=True))


async def test_of_many_jobs_none_is_enqueued_when_one_cannot_be(store: Store) -> None:
    queue = store.queue("q")
    first = await queue.enqueue("x")
    with pytest.raises(CodecError):
        await queue.enqueue_many(["y", object(), "z"])
    assert [job.id for job in await queue.jobs()] == [first]
    assert await queue.enqueue_many([]) == []
    assert await queue.enqueue("x") == first + 1


async def test_a_payload_is_what_it_was_at_the_call(effects: Effects) -> None:
    payload = {"list": [1]}
    job_id = await effects.enqueue("q", payload)
    payload["list"].append(2)
    job = await effects.get_job("q", job_id)
    assert job is not None
    assert job.payload == {"list": [1]}


async def test_a_payload_staged_in_a_transaction_is_what_it_was_at_the_call(store: Store) -> None:
    payload = [1]
    async with store.transaction() as tx:
        job_id = await tx.enqueue_tx("q", payload)
        payload.append(2)
    assert (await _job(store.queue("q"), job_id)).payload == [1]


# Jobs as values


async def test_a_job_is_frozen(store: Store) -> None:
    queue = store.queue("q")
    job = await _job(queue, await queue.enqueue("x"))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        job.attempts = 5  # type: ignore[misc]  # that is the point


async def test_a_jobs_payload_is_decoded_once_and_converted_at_will(store: Store) -> None:
    queue = store.queue("q")
    job = await _job(queue, await queue.enqueue({"year": 2024, "month": 2}))
    assert job.payload is job.payload
    assert job.payload_as(lambda value: value["year"] + value["month"]) == 2026
    assert job.payload_as(sorted) == ["month", "year"]
    with pytest.raises(CodecError) as refusal:
        job.payload_as(lambda value: value["day"])
    assert isinstance(refusal.value.__cause__, KeyError)


async def test_a_handles_job_is_the_job_as_it_was_claimed(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    claimed = handle.job
    assert claimed == await _job(queue, claimed.id)
    clock.advance(10)
    assert await handle.heartbeat()
    assert await handle.fail("no")
    assert handle.job == claimed


# Handles


async def test_making_a_handle_touches_no_storage(store: Store) -> None:
    asked: list[Op[Any]] = []

    async def note(op: Op[Any]) -> None:
        asked.append(op)

    noted = watched(store, note)
    for _ in range(2):
        noted.queue("q", max_attempts=9)
        noted.stream("s")
        noted.outbox("o")
    assert asked == []
    assert await noted.queues() == await noted.streams() == []
    assert len(asked) == 2


# Claims


async def test_claims_go_by_priority_then_run_at_then_id(effects: Effects, store: Store, clock: ManualClock) -> None:
    late = await effects.enqueue("q", "late", run_at=clock() - 1)
    early = await effects.enqueue("q", "early", run_at=clock() - 2)
    first_of_two = await effects.enqueue("q", "a", priority=1)
    second_of_two = await effects.enqueue("q", "b", priority=1)
    claims = await store.queue("q").claim_batch("w", 10)
    assert [handle.job.id for handle in claims] == [first_of_two, second_of_two, early, late]


async def test_claims_go_in_order_over_fresh_and_lapsed_rows_alike(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=10)
    rows = [(priority, clock() - age) for priority in (-1, 0, 2**63 - 1, -(2**63)) for age in (0, 7, 3, 7)]
    ids = {await queue.enqueue("x", priority=priority, run_at=at): (-priority, at) for priority, at in rows}
    await queue.claim_batch("dead worker", 6)
    clock.advance(11)
    ids |= {await queue.enqueue("x", priority=priority, run_at=at): (-priority, at) for priority, at in rows}
    await queue.claim_batch("another", 9)
    clock.advance(11)
    claims = await queue.claim_batch("w", 100)
    assert [handle.job.id for handle in claims] == sorted(ids, key=lambda job_id: (*ids[job_id], job_id))


async def test_a_claim_order_holds_over_many_priorities(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    rows = [(i * 37 % 41 - 20, clock() - i * 17 % 5) for i in range(200)]
    ids = {await queue.enqueue("x", priority=priority, run_at=at): (-priority, at) for priority, at in rows}
    claims = [await queue.claim_batch("w", 7) for _ in range(30)]
    in_order = sorted(ids, key=lambda job_id: (*ids[job_id], job_id))
    assert [handle.job.id for batch in claims for handle in batch] == in_order


async def test_a_claim_takes_the_row_for_its_own_visibility_timeout(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=0.9)
    fresh = await _job(queue, await queue.enqueue("x"))
    clock.advance(5)
    handle = await queue.claim("w")
    assert handle is not None
    assert handle.job == await _job(queue, fresh.id)
    assert handle.job == attrs.evolve(
        fresh, state=JobState.PROCESSING, worker_id="w", claim_expires_at=clock() + 0.9, attempts=1
    )


async def test_a_queue_with_nothing_to_claim_gives_none(store: Store) -> None:
    await store.queue("other").enqueue("x")
    assert await store.queue("q").claim("w") is None
    assert await store.queue("q").claim_batch("w", 5) == []


@pytest.mark.parametrize("n", [0, -1, -(2**70)])
async def test_a_batch_of_none_claims_nothing(store: Store, n: int) -> None:
    await store.queue("q").enqueue("x")
    assert await store.queue("q").claim_batch("w", n) == []
    assert (await store.queue("q").statistics()).ready == 1


async def test_a_batch_is_as_many_single_claims(store: Store, clock: ManualClock) -> None:
    batched, single = await _one_of_each(store, clock, "batched", "single")
    batch = await store.queue("batched").claim_batch("w", 100)
    singles: list[JobHandle] = []
    while (handle := await store.queue("single").claim("w")) is not None:
        singles.append(handle)
    assert [handle.job.id for handle in batch] == [batched[kind] for kind in _CLAIMABLE]
    assert [handle.job.id for handle in singles] == [single[kind] for kind in _CLAIMABLE]
    rows = [[attrs.evolve(row, id=0, queue="") for row in await store.queue(q).jobs()] for q in ("batched", "single")]
    assert rows[0] == rows[1]


async def test_a_batch_takes_no_more_than_it_asks_for(store: Store, clock: ManualClock) -> None:
    [rows] = await _one_of_each(store, clock, "q")
    handles = await store.queue("q").claim_batch("w", 2)
    assert [handle.job.id for handle in handles] == [rows[kind] for kind in _CLAIMABLE[:2]]


async def test_a_claim_is_valid_at_its_deadline_and_lapsed_at_the_next_float(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await _claimed(queue)
    deadline = handle.job.claim_expires_at
    assert deadline is not None
    clock.set(deadline)
    assert await queue.claim("other") is None
    clock.set(math.nextafter(deadline, math.inf))
    again = await queue.claim("other")
    assert again is not None
    assert again.job.id == handle.job.id


async def test_a_row_is_claimable_from_its_run_at_on(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    await queue.enqueue("x", delay=10)
    run_at = clock() + 10
    clock.set(math.nextafter(run_at, -math.inf))
    assert await queue.claim("w") is None
    clock.set(run_at)
    assert await queue.claim("w") is not None


async def test_a_reclaim_eats_an_attempt(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=3)
    await queue.enqueue("x")
    seen = []
    while (handle := await queue.claim("w")) is not None:
        seen.append(handle.job.attempts)
        clock.advance(11)
    assert seen == [1, 2, 3]


# The exhausted


async def test_a_lapsed_claim_without_attempts_dies_of_the_next_claim(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=1)
    handle = await _claimed(queue)
    clock.advance(11)
    lapsed = await _job(queue, handle.job.id)
    assert await queue.claim("w") is None
    assert await _job(queue, handle.job.id) == attrs.evolve(
        lapsed, state=JobState.DEAD, last_error="max attempts exceeded", died_at=clock()
    )
    assert lapsed.state is JobState.PROCESSING


async def test_only_a_claim_of_the_same_queue_buries_the_exhausted(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=1)
    handle = await _claimed(queue)
    clock.advance(11)
    lapsed = await _job(queue, handle.job.id)
    assert await queue.claim_batch("w", 0) == []
    assert await store.queue("other").claim("w") is None
    assert await queue.next_ready_at() is None
    assert await queue.sweep_expired() == 0
    assert await _job(queue, handle.job.id) == lapsed


async def test_the_exhausted_that_has_expired_waits_for_the_sweep(store: Store, clock: ManualClock) -> None:
    [rows] = await _one_of_each(store, clock, "q")
    queue = store.queue("q")
    before = {kind: await _job(queue, rows[kind]) for kind in ("lapsed, expired", "lapsed, exhausted, expired")}
    await queue.claim_batch("w", 100)
    assert {kind: await _job(queue, rows[kind]) for kind in before} == before
    assert (await _job(queue, rows["lapsed, exhausted"])).last_error == "max attempts exceeded"


async def test_a_live_last_attempt_is_left_alone(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=1)
    handle = await _claimed(queue)
    clock.advance(10)
    assert await queue.claim("w") is None
    assert await handle.ack()


# The late


async def _lapsed(queue: Queue, clock: ManualClock, **options: Any) -> JobHandle:
    handle = await _claimed(queue, **options)
    clock.advance(11)
    return handle


async def _reclaimed(queue: Queue, clock: ManualClock) -> tuple[JobHandle, JobHandle]:
    stale = await _lapsed(queue, clock)
    newer = await queue.claim("w")
    assert newer is not None
    return stale, newer


async def _only_lapsed(queue: Queue, clock: ManualClock) -> JobHandle:
    return await _lapsed(queue, clock)


async def _taken_by_the_same_worker(queue: Queue, clock: ManualClock) -> JobHandle:
    stale, _ = await _reclaimed(queue, clock)
    return stale


async def _taken_and_released(queue: Queue, clock: ManualClock) -> JobHandle:
    stale, newer = await _reclaimed(queue, clock)
    assert await newer.release()
    return stale


async def _taken_and_released_and_taken_anew(queue: Queue, clock: ManualClock) -> JobHandle:
    stale = await _taken_and_released(queue, clock)
    assert await queue.claim("w") is not None
    return stale


async def _taken_and_killed(queue: Queue, clock: ManualClock) -> JobHandle:
    stale, newer = await _reclaimed(queue, clock)
    assert await newer.fail("killed")
    return stale


async def _killed_and_revived_and_taken_anew(queue: Queue, clock: ManualClock) -> JobHandle:
    stale = await _taken_and_killed(queue, clock)
    assert await queue.revive([stale.job.id]) == 1
    assert await queue.claim("w") is not None
    return stale


async def _swept(queue: Queue, clock: ManualClock) -> JobHandle:
    stale = await _lapsed(queue, clock, expires=5)
    assert await queue.sweep_expired() == 1
    return stale


async def _buried(queue: Queue, clock: ManualClock) -> JobHandle:
    stale = await _lapsed(queue, clock, max_attempts=1)
    assert await queue.claim("w") is None
    return stale


async def _deleted(queue: Queue, clock: ManualClock) -> JobHandle:
    stale = await _lapsed(queue, clock)
    assert await queue.delete([stale.job.id]) == 1
    return stale


_Late = Callable[[Queue, ManualClock], Awaitable[JobHandle]]
_each_late = pytest.mark.parametrize(
    "late",
    [
        _only_lapsed,
        _taken_by_the_same_worker,
        _taken_and_released,
        _taken_and_released_and_taken_anew,
        _taken_and_killed,
        _killed_and_revived_and_taken_anew,
        _swept,
        _buried,
        _deleted,
    ],
)


@_each_op
@_each_late
async def test_a_late_op_is_refused_and_the_row_is_as_it_was(
    store: Store, clock: ManualClock, op: Callable[[JobHandle], Awaitable[bool]], late: _Late
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await late(queue, clock)
    before = await queue.get_job(handle.job.id)
    assert await op(handle) is False
    assert await queue.get_job(handle.job.id) == before


@_each_late
async def test_a_late_ack_of_a_batch_is_refused_and_the_row_is_as_it_was(
    store: Store, clock: ManualClock, late: _Late
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await late(queue, clock)
    before = await queue.get_job(handle.job.id)
    assert await queue.ack_batch([handle]) == 0
    assert await queue.get_job(handle.job.id) == before


@_each_op
async def test_an_op_is_in_time_at_the_deadline(
    store: Store, clock: ManualClock, op: Callable[[JobHandle], Awaitable[bool]]
) -> None:
    handle = await _claimed(store.queue("q", visibility_timeout=10))
    clock.advance(10)
    assert await op(handle) is True


async def test_a_newer_claim_lands_after_a_stale_handle_of_the_same_worker_tried_everything(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    stale, newer = await _reclaimed(queue, clock)
    for op in _OPS.values():
        assert await op(JobHandle(stale._unit, stale._row)) is False  # of a handle that has settled nothing yet
    assert await newer.ack()
    assert await queue.get_job(newer.job.id) is None


# Ack


async def test_an_ack_deletes_the_row(store: Store) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    assert await handle.ack()
    assert await queue.get_job(handle.job.id) is None
    assert await queue.statistics() == QueueStatistics(0, 0, 0, 0)
    assert await store.queues() == []


async def test_a_batch_of_acks_is_judged_row_by_row(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    lapsed = await _claimed(queue)
    renewed = await _claimed(queue)
    fresh = await _claimed(store.queue("q"))
    done = await _claimed(store.queue("q"))
    assert await done.fail("done")
    clock.advance(10)
    assert await renewed.heartbeat()
    clock.advance(1)
    before = [await queue.get_job(handle.job.id) for handle in (lapsed, done)]
    assert await queue.ack_batch(handle for handle in (lapsed, renewed, done, fresh)) == 2
    assert [await queue.get_job(handle.job.id) for handle in (lapsed, done)] == before
    assert [await queue.get_job(handle.job.id) for handle in (renewed, fresh)] == [None, None]


async def test_a_handle_named_twice_in_a_batch_of_acks_counts_once(store: Store) -> None:
    queue = store.queue("q")
    handle, other = await _claimed(queue), await _claimed(queue)
    assert await queue.ack_batch([handle, other, handle, handle]) == 2
    assert await queue.ack_batch([handle, other]) == 0
    assert await queue.ack_batch([]) == 0


async def test_a_batch_of_acks_with_a_handle_of_another_queue_is_refused_whole(store: Store) -> None:
    queue = store.queue("q")
    mine, foreign = await _claimed(queue), await _claimed(store.queue("other"))
    with pytest.raises(ValueError, match="other"):
        await queue.ack_batch([mine, foreign])
    with pytest.raises(TypeError):
        await queue.ack_batch([mine, mine.job.id])  # type: ignore[list-item]  # that is the point
    assert await _job(queue, mine.job.id) == mine.job
    assert await mine.ack()
    assert await foreign.ack()


async def test_a_settled_handle_of_another_queue_is_refused_in_a_batch_of_acks_too(store: Store) -> None:
    foreign = await _claimed(store.queue("other"))
    assert await foreign.ack()
    with pytest.raises(ValueError, match="other"):
        await store.queue("q").ack_batch([foreign])


async def test_a_batch_of_acks_settles_its_handles_landed_or_refused(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    fresh = await _claimed(store.queue("q"))
    lapsed = await _lapsed(queue, clock)
    assert await queue.ack_batch([lapsed, fresh]) == 1
    clock.advance(-11)  # even where its claim is valid again
    assert [await op(lapsed) for op in _OPS.values()] == [False] * len(_OPS)
    assert [await op(fresh) for op in _OPS.values()] == [False] * len(_OPS)


async def test_two_handles_on_one_queue_may_ack_each_others_claims(store: Store) -> None:
    handle = await _claimed(store.queue("q"))
    assert await store.queue("q", visibility_timeout=1).ack_batch([handle]) == 1


# Fail


async def test_a_failed_row_keeps_everything_and_gains_its_error_and_the_instant(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", dead_retention=9)
    handle = await _claimed(queue, expires=1_000)
    clock.advance(3)
    assert await handle.fail("no such file")
    assert await _job(queue, handle.job.id) == attrs.evolve(
        handle.job, state=JobState.DEAD, last_error="no such file", died_at=clock()
    )
    assert await queue.claim("w") is None


_TEXTS = [
    pytest.param("", "", id="empty"),
    pytest.param("plain", "plain", id="plain"),
    pytest.param(" kept\n", " kept\n", id="blanks"),
    pytest.param("a\0b\0", "a\ufffdb\ufffd", id="nul"),
    pytest.param("\ud800x\udfff", "\ufffdx\ufffd", id="surrogates"),
    pytest.param("é💡", "é💡", id="not ascii"),
    pytest.param("y" * 8_192, "y" * 8_192, id="8192"),
    pytest.param("💡" * 8_193, "💡" * 8_192, id="8193"),
    pytest.param("z" * 2**20, "z" * 8_192, id="a mebi"),
    pytest.param("n" * 8_191 + "\0\0", "n" * 8_191 + "\ufffd", id="nul at the cut"),
]


@pytest.mark.parametrize(("error", "stored"), _TEXTS)
async def test_an_error_text_is_cleaned_and_cut(store: Store, error: str, stored: str) -> None:
    queue = store.queue("q")
    killed, spent, again = await _claimed(queue), await _claimed(queue, max_attempts=1), await _claimed(queue)
    assert await killed.fail(error)
    assert await spent.retry(error)
    assert await again.retry(error)
    rows = [await _job(queue, handle.job.id) for handle in (killed, spent, again)]
    assert [row.last_error for row in rows] == [stored] * 3
    assert [row.state for row in rows] == [JobState.DEAD, JobState.DEAD, JobState.PENDING]


@pytest.mark.parametrize("error", [None, 5, b"text", ValueError("text")])
async def test_an_error_that_is_no_text_is_a_type_error_and_settles_nothing(store: Store, error: Any) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    with pytest.raises(TypeError):
        await handle.fail(error)
    with pytest.raises(TypeError):
        await handle.retry(error)
    assert await _job(queue, handle.job.id) == handle.job
    assert await handle.ack()


# Retry


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (0, 0.0),
        (-5, -5.0),
        (0.25, 0.25),
        (timedelta(minutes=1, milliseconds=500), 60.5),
        (2**63 - 1, float(2**63 - 1)),
        (-(2**63), -float(2**63)),
        (10**400, _LARGEST),
        (-(10**400), -_LARGEST),
        (_LARGEST, _LARGEST),
    ],
)
async def test_an_explicit_delay_of_a_retry_or_a_release_counts_from_now(
    store: Store, clock: ManualClock, delay: float | timedelta, seconds: float
) -> None:
    queue = store.queue("q", max_attempts=2)
    retried, released = await _claimed(queue), await _claimed(queue)
    clock.advance(3)
    assert await retried.retry("again", delay)
    assert await released.release(delay)
    pending: dict[str, Any] = {
        "state": JobState.PENDING,
        "run_at": clock() + seconds,
        "worker_id": None,
        "claim_expires_at": None,
    }
    assert await _job(queue, retried.job.id) == attrs.evolve(retried.job, last_error="again", **pending)
    assert await _job(queue, released.job.id) == attrs.evolve(released.job, attempts=0, **pending)


async def test_a_retry_without_attempts_left_kills_with_its_text(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", max_attempts=2, base_backoff=0)
    first = await _claimed(queue)
    assert await first.retry("first")
    second = await queue.claim("w")
    assert second is not None
    assert second.job.attempts == 2
    clock.advance(1)
    assert await second.retry("second", 60)
    assert await _job(queue, second.job.id) == attrs.evolve(
        second.job, state=JobState.DEAD, last_error="second", died_at=clock()
    )


def _ceiling(base: float, attempts: int) -> float:
    doubled = base * 2.0 ** min(attempts - 1, 1_023)
    return min(doubled, 86_400.0)


@pytest.mark.parametrize("base", [0, 5e-324, 0.25, 5, 86_400, 86_401, 1e308])
async def test_the_delay_of_a_retry_is_on_the_curve(store: Store, clock: ManualClock, base: float) -> None:
    queue = store.queue("q", base_backoff=base, max_attempts=10_000)
    job_id = await queue.enqueue("x")
    for attempts in range(1, 25):
        handle = await queue.claim("w")
        assert handle is not None
        assert handle.job.attempts == attempts
        assert await handle.retry("again")
        ceiling = _ceiling(base, attempts)
        run_at = (await _job(queue, job_id)).run_at
        assert clock() + ceiling / 2 <= run_at <= clock() + ceiling
        clock.set(run_at)


async def test_the_curve_does_not_overflow_after_many_attempts(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", base_backoff=5, max_attempts=10_000)
    job_id = await queue.enqueue("x")
    for _ in range(1_100):
        handle = await queue.claim("w")
        assert handle is not None
        assert await handle.retry("again", 0)
    handle = await queue.claim("w")
    assert handle is not None
    assert await handle.retry("again")
    assert clock() + 43_200 <= (await _job(queue, job_id)).run_at <= clock() + 86_400


async def test_the_delays_of_retries_are_spread(store: Store) -> None:
    queue = store.queue("q", base_backoff=1_000)
    await queue.enqueue_many(["x"] * 20)
    for handle in await queue.claim_batch("w", 20):
        assert await handle.retry("again")
    assert len({job.run_at for job in await queue.jobs()}) > 10


# Release


async def test_a_release_refunds_the_attempt_and_keeps_run_at(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", max_attempts=1)
    fresh = await _job(queue, await queue.enqueue("x", run_at=clock() - 5))
    for _ in range(3):
        handle = await queue.claim("w")
        assert handle is not None
        assert handle.job.attempts == 1
        clock.advance(1)
        assert await handle.release()
        assert await _job(queue, fresh.id) == fresh


async def test_a_released_row_is_claimed_in_its_old_place(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(["x"] * 3)
    handle = await queue.claim("w")
    assert handle is not None
    assert await handle.release()
    assert [handle.job.id for handle in await queue.claim_batch("w", 3)] == ids


async def test_a_row_released_for_a_while_waits_for_it(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue, expires=1_000)
    assert await handle.release(30)
    assert await queue.claim("w") is None
    assert await queue.next_ready_at() == clock() + 30
    clock.advance(30)
    assert await queue.claim("w") is not None


# Heartbeat


@pytest.mark.parametrize(
    ("extend", "seconds"),
    [(None, 10.0), (0.25, 0.25), (60, 60.0), (timedelta(minutes=2), 120.0), (10**400, _LARGEST)],
)
async def test_a_heartbeat_sets_the_deadline_from_now(
    store: Store, clock: ManualClock, extend: float | timedelta | None, seconds: float
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await _claimed(queue)
    clock.advance(7)
    assert await handle.heartbeat(extend)
    assert await _job(queue, handle.job.id) == attrs.evolve(handle.job, claim_expires_at=clock() + seconds)


async def test_a_heartbeat_may_be_repeated_also_at_one_instant(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await _claimed(queue, expires=100)
    for _ in range(3):
        assert await handle.heartbeat()
        assert await handle.heartbeat()
        clock.advance(10)
    assert await handle.heartbeat(1)
    assert await handle.heartbeat(1)
    clock.advance(2)
    assert await handle.heartbeat() is False
    again = await queue.claim("w")
    assert again is not None
    assert again.job.attempts == 2


async def test_a_job_that_expires_may_be_released_and_taken_any_number_of_times(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=100, dead_retention=50)
    job_id = await queue.enqueue("x", expires=1_000, delay=5)
    clock.advance(5)
    for _ in range(3):
        for settle in (JobHandle.release, lambda handle: handle.release(0), lambda handle: handle.retry("again", 0)):
            handle = await queue.claim("w")
            assert handle is not None
            assert await settle(handle)
    for _ in range(3):
        handle = await queue.claim("w")
        assert handle is not None
        assert await handle.fail("no")
        assert await queue.revive([job_id]) == 1
    assert await queue.statistics() == QueueStatistics(1, 0, 0, 1)


# Expiry


async def test_a_row_is_claimable_until_just_before_it_expires(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue, expires=10)
    assert await handle.release()
    expires_at = clock() + 10
    clock.set(math.nextafter(expires_at, -math.inf))
    handle_again = await queue.claim("w")
    assert handle_again is not None
    assert await handle_again.release()
    clock.set(expires_at)
    assert await queue.claim("w") is None


async def test_a_live_claim_may_finish_after_its_expiry(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue, expires=10)
    clock.advance(20)
    assert await queue.sweep_expired() == 0
    assert await handle.heartbeat()
    assert await handle.ack()


@pytest.mark.parametrize("expires", [0, -1, timedelta(0), -(10**400)])
async def test_a_row_expired_at_its_enqueue_waits_for_the_sweep(
    effects: Effects, store: Store, clock: ManualClock, expires: float | timedelta
) -> None:
    queue = store.queue("q")
    fresh = await _job(queue, await effects.enqueue("q", "x", expires=expires, max_attempts=1))
    assert await queue.claim("w") is None
    assert await queue.next_ready_at() is None
    assert await queue.statistics() == QueueStatistics(1, 0, 0, 0)
    assert await _job(queue, fresh.id) == fresh
    clock.advance(1)
    assert await queue.sweep_expired() == 1
    assert await _job(queue, fresh.id) == attrs.evolve(
        fresh, state=JobState.DEAD, last_error="expired", died_at=clock()
    )


# Sweep


async def test_a_sweep_buries_what_expired_unclaimed_or_lapsed_and_nothing_else(
    store: Store, clock: ManualClock
) -> None:
    [rows] = await _one_of_each(store, clock, "q")
    queue = store.queue("q")
    before = {kind: await _job(queue, job_id) for kind, job_id in rows.items()}
    buried = {"lapsed, expired", "lapsed, exhausted, expired", "expired", "delayed, expired"}
    assert await queue.sweep_expired() == len(buried)
    gained: dict[str, Any] = {"state": JobState.DEAD, "last_error": "expired", "died_at": clock()}
    assert {kind: await _job(queue, job_id) for kind, job_id in rows.items()} == {
        kind: attrs.evolve(job, **gained) if kind in buried else job for kind, job in before.items()
    }
    assert await queue.sweep_expired() == 0


async def test_a_sweep_counts_what_it_buries_and_what_it_deletes(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", dead_retention=0)
    kept = store.queue("q")
    deleted = [await _dead(queue) for _ in range(2)]
    stays = await _dead(kept)
    expired = await queue.enqueue("x", expires=0)
    assert await queue.sweep_expired() == 3
    assert [await queue.get_job(job_id) for job_id in deleted] == [None, None]
    assert [job.id for job in await queue.jobs(JobState.DEAD)] == [stays, expired]  # deletes first, then buries
    assert await queue.sweep_expired() == 1
    clock.advance(10**9)
    assert await queue.sweep_expired() == 0
    assert [job.id for job in await queue.jobs()] == [stays]


async def test_a_dead_row_is_kept_for_its_retention(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", dead_retention=timedelta(seconds=10))
    handle = await _claimed(queue)
    clock.advance(5)
    assert await handle.fail("no")
    died_at = clock()
    clock.set(math.nextafter(died_at + 10, -math.inf))
    assert await queue.sweep_expired() == 0
    clock.set(died_at + 10)
    assert await queue.sweep_expired() == 1
    assert await queue.get_job(handle.job.id) is None


async def test_a_sweep_keeps_to_its_queue(store: Store) -> None:
    other = store.queue("other", dead_retention=0)
    await _dead(other)
    await other.enqueue("x", expires=0)
    assert await store.queue("q").sweep_expired() == 0
    assert await other.sweep_expired() == 2


async def test_a_row_revived_before_its_retention_ended_is_not_deleted(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", dead_retention=10)
    job_id = await _dead(queue)
    clock.advance(9)
    assert await queue.revive([job_id]) == 1
    clock.advance(9)
    assert await queue.sweep_expired() == 0
    assert (await _job(queue, job_id)).state is JobState.PENDING


# Reads


async def test_statistics_count_rows_by_state_and_what_a_claim_would_take(store: Store, clock: ManualClock) -> None:
    await _one_of_each(store, clock, "q", "other")
    queue = store.queue("q")
    assert await queue.statistics() == QueueStatistics(pending=7, processing=6, dead=1, ready=len(_CLAIMABLE))
    await queue.claim_batch("w", 100)
    assert await queue.statistics() == QueueStatistics(pending=3, processing=9, dead=2, ready=0)
    await queue.sweep_expired()
    assert await queue.statistics() == QueueStatistics(pending=1, processing=7, dead=6, ready=0)


async def test_the_next_ready_instant_is_none_where_only_a_change_helps(store: Store) -> None:
    queue = store.queue("q")
    assert await queue.next_ready_at() is None
    await _dead(queue)
    await queue.enqueue("x", expires=-1)
    await store.queue("other").enqueue("x")
    assert await queue.next_ready_at() is None


async def test_the_next_ready_instant_of_a_lease_is_the_float_after_its_deadline(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    await _claimed(queue)
    deadline = clock() + 10
    assert await queue.next_ready_at() == math.nextafter(deadline, math.inf)
    clock.set(deadline)
    assert await queue.next_ready_at() == math.nextafter(deadline, math.inf)
    await queue.enqueue("x", delay=3)
    assert await queue.next_ready_at() == math.nextafter(deadline, math.inf)


async def test_the_next_ready_instant_is_the_earliest_of_all(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10)
    await _claimed(queue)
    await queue.enqueue("x", delay=7)
    early = await queue.enqueue("x", delay=4)
    assert await queue.next_ready_at() == clock() + 4
    assert await queue.delete([early]) == 1
    assert await queue.next_ready_at() == clock() + 7
    await queue.enqueue("x")
    at = await queue.next_ready_at()
    assert at is not None
    assert at <= clock()


async def test_a_waiter_on_the_next_ready_instant_neither_oversleeps_nor_spins(
    store: Store, clock: ManualClock
) -> None:
    [rows] = await _one_of_each(store, clock, "q")
    queue = store.queue("q", visibility_timeout=7)
    for delay in (3, 3, 0.5, 250):
        await queue.enqueue("x", delay=delay, expires=200)
    taken: list[int] = []
    while (at := await queue.next_ready_at()) is not None:
        if at > clock():
            assert await queue.claim("early") is None
            clock.set(max(math.nextafter(at, -math.inf), clock()))
            assert await queue.claim("early") is None
            clock.set(at)
        elif len(taken) % 3:
            handle = await queue.claim("w")
            assert handle is not None
            taken.append(handle.job.id)
        else:
            handle = await queue.claim("w")
            assert handle is not None
            taken.append(handle.job.id)
            assert await handle.ack()
    assert await queue.claim("w") is None
    assert {rows[kind] for kind in (*_CLAIMABLE, "delayed")} <= set(taken)
    assert rows["live"] in taken
    assert rows["live, expired"] not in taken


async def test_jobs_are_listed_by_ascending_id_of_one_state_or_all(store: Store, clock: ManualClock) -> None:
    [rows, _] = await _one_of_each(store, clock, "q", "other")
    queue = store.queue("q")
    ids = sorted(rows.values())
    assert [job.id for job in await queue.jobs()] == ids
    assert await queue.jobs() == [await _job(queue, job_id) for job_id in ids]
    by_state = {state: await queue.jobs(state) for state in JobState}
    assert sorted(job.id for jobs in by_state.values() for job in jobs) == ids
    for state, jobs in by_state.items():
        assert [job.id for job in jobs] == sorted(job.id for job in jobs)
        assert {job.state for job in jobs} == {state}
    assert [job.id for job in by_state[JobState.DEAD]] == [rows["dead"]]


@pytest.mark.parametrize("state", [None, JobState.PENDING])
async def test_jobs_are_paged_by_the_last_id(store: Store, state: JobState | None) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(250), priority=7)
    assert [job.id for job in await queue.jobs(state)] == ids[:100]
    paged: list[int] = []
    while page := await queue.jobs(state, limit=60, after=paged[-1] if paged else 0):
        assert len(page) <= 60
        paged += [job.id for job in page]
    assert paged == ids
    assert await queue.jobs(state, limit=0) == await queue.jobs(state, limit=-1) == []
    assert len(await queue.jobs(state, limit=2**70, after=-(2**70))) == 250
    assert await queue.jobs(state, after=2**70) == []


@pytest.mark.parametrize("state", [JobState.PROCESSING, JobState.DEAD])
async def test_the_claimed_and_the_dead_are_paged_by_the_last_id_too(store: Store, state: JobState) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(6))
    handles = await queue.claim_batch("w", 5)
    if state is JobState.DEAD:
        for handle in handles:
            assert await handle.fail("dead")
    paged: list[int] = []
    while page := await queue.jobs(state, limit=2, after=paged[-1] if paged else 0):
        paged += [job.id for job in page]
    assert paged == ids[:5]


@pytest.mark.parametrize("state", ["pending", 1, True])
async def test_a_state_that_is_none_of_the_three_is_a_type_error(store: Store, state: Any) -> None:
    with pytest.raises(TypeError, match="state"):
        await store.queue("q").jobs(state)


async def test_a_job_is_seen_in_its_own_queue_alone_and_when_dead(effects: Effects, store: Store) -> None:
    job_id = await effects.enqueue("q", "x")
    handle = await store.queue("q").claim("w")
    assert handle is not None
    assert await effects.get_job("q", job_id) == handle.job
    assert await handle.fail("no")
    dead = await effects.get_job("q", job_id)
    assert dead is not None
    assert dead.state is JobState.DEAD
    assert await effects.get_job("other", job_id) is None
    assert await effects.get_job("q", job_id + 1) is None


async def test_queues_are_listed_by_name_while_they_have_a_row(effects: Effects, store: Store) -> None:
    assert await store.queues() == []
    await effects.enqueue("b", "x")
    await effects.enqueue("B", "x")
    await effects.outbox_enqueue("o", "x")
    dead = await _dead(store.queue("a"))
    await store.queue("empty").claim("w")
    assert await store.queues() == ["B", "__alkstore_outbox:o", "a", "b"]
    assert await store.queue("a").delete([dead]) == 1
    handle = await store.queue("b").claim("w")
    assert handle is not None
    assert await handle.ack()
    assert await store.queues() == ["B", "__alkstore_outbox:o"]


# Revive and delete


async def test_a_revived_row_is_as_new_and_ready_now(store: Store, clock: ManualClock) -> None:
    queue = store.queue("q", visibility_timeout=10, max_attempts=1)
    fresh = await _job(queue, await queue.enqueue("x", expires=1_000, priority=3))
    handle = await queue.claim("w")
    assert handle is not None
    assert await handle.retry("spent")
    clock.advance(2_000)
    assert await queue.revive([fresh.id]) == 1
    assert await _job(queue, fresh.id) == attrs.evolve(fresh, run_at=clock(), expires_at=None)
    again = await queue.claim("w")
    assert again is not None
    assert again.job.attempts == 1
    assert await handle.heartbeat() is False
    assert await again.ack()


async def test_only_dead_rows_of_the_queue_are_revived_each_once(store: Store, clock: ManualClock) -> None:
    [rows, others] = await _one_of_each(store, clock, "q", "other")
    queue = store.queue("q")
    before = {job.id: job for job in await queue.jobs()}
    everything = [*rows.values(), *rows.values(), *others.values(), 0, -1, 2**70]
    assert await queue.revive(iter(everything)) == 1
    after = {job.id: job for job in await queue.jobs()}
    assert {job_id for job_id in before if before[job_id] != after[job_id]} == {rows["dead"]}
    assert (await _job(store.queue("other"), others["dead"])).state is JobState.DEAD
    assert await queue.revive([]) == 0


async def test_a_revived_row_wakes_a_worker(store: Store) -> None:
    queue = store.queue("q")
    dead, stop, ran = await _dead(queue), StopToken(), anyio.Event()
    begun = anyio.Event()
    await queue.enqueue("first")

    async def handler(job: Job) -> None:
        begun.set()
        if job.id == dead:
            ran.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, stop=stop))
        await begun.wait()
        assert await queue.revive([dead]) == 1
        await ran.wait()
        stop.cancel()


async def test_everything_but_a_live_claim_of_the_queue_is_deleted(store: Store, clock: ManualClock) -> None:
    [rows, others] = await _one_of_each(store, clock, "q", "other")
    queue = store.queue("q")
    everything = [*rows.values(), *rows.values(), *others.values(), 0, -1, 2**70]
    live = [rows["live"], rows["live, expired"]]
    before = [await _job(queue, job_id) for job_id in live]
    assert await queue.delete(iter(everything)) == len(rows) - len(live)
    assert await queue.jobs() == before
    assert len(await store.queue("other").jobs()) == len(others)
    assert await queue.statistics() == QueueStatistics(0, 2, 0, 0)
    assert await queue.delete([]) == 0


@pytest.mark.parametrize("job_ids", ["12", b"12", 5, None, ["1"], [1.0], [True], [None]])
async def test_ids_that_are_none_are_a_type_error_and_change_nothing(store: Store, job_ids: Any) -> None:
    queue = store.queue("q")
    dead = await _dead(queue)
    with pytest.raises(TypeError):
        await queue.revive(job_ids)
    with pytest.raises(TypeError):
        await queue.delete(job_ids)
    assert [job.id for job in await queue.jobs(JobState.DEAD)] == [dead]


# Settling


@_each_settling
async def test_the_first_settlement_decides_and_any_later_one_is_false(
    store: Store, op: Callable[[JobHandle], Awaitable[bool]]
) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    assert await op(handle) is True
    settled = await queue.get_job(handle.job.id)
    assert [await later(handle) for later in _OPS.values()] == [False] * len(_OPS)
    assert await queue.ack_batch([handle]) == 0
    assert await queue.get_job(handle.job.id) == settled


@_each_settling
async def test_a_refused_settlement_decides_too(
    store: Store, clock: ManualClock, op: Callable[[JobHandle], Awaitable[bool]]
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await _lapsed(queue, clock)
    assert await op(handle) is False
    clock.advance(-11)  # the claim is valid again, the handle is settled all the same
    assert [await later(handle) for later in _OPS.values()] == [False] * len(_OPS)
    assert await _job(queue, handle.job.id) == handle.job


async def test_a_refused_heartbeat_settles_nothing(store: Store, clock: ManualClock) -> None:
    handle = await _lapsed(store.queue("q", visibility_timeout=10), clock)
    assert await handle.heartbeat() is False
    clock.advance(-11)
    assert await handle.ack() is True


async def test_of_settlements_at_the_same_time_one_decides(store: Store) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    landed: list[str] = []

    async def settle(name: str) -> None:
        if await _SETTLING[name](handle):
            landed.append(name)

    async def settle_in_a_batch() -> None:
        if await queue.ack_batch([handle]):
            landed.append("ack")

    async with anyio.create_task_group() as tasks:
        for name in _SETTLING:
            tasks.start_soon(settle, name)
        tasks.start_soon(settle_in_a_batch)
    [decided] = landed
    job = await queue.get_job(handle.job.id)
    state = None if job is None else job.state
    assert state is {"ack": None, "fail": JobState.DEAD}.get(decided, JobState.PENDING)


async def test_while_a_settlement_is_in_flight_any_other_is_false_and_asks_nothing(store: Store) -> None:
    asked: list[Op[Any]] = []
    allowed = anyio.Event()

    async def hold(op: Op[Any]) -> None:
        if isinstance(op, Move) and not isinstance(op, Claim):
            asked.append(op)
            await allowed.wait()

    queue = watched(store, hold).queue("q")
    handle = await _claimed(queue)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle.ack)
        await rest(store)
        assert [await op(handle) for op in _OPS.values()] == [False] * len(_OPS)
        assert await queue.ack_batch([handle]) == 0
        assert len(asked) == 1
        allowed.set()
    assert await queue.jobs() == []


@_each_settling
async def test_a_cancelled_settlement_leaves_the_handle_unsettled(
    store: Store, op: Callable[[JobHandle], Awaitable[bool]]
) -> None:
    queue = store.queue("q")
    handle = await _claimed(queue)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await op(handle)
    assert scope.cancelled_caught
    assert await _job(queue, handle.job.id) == handle.job
    assert await op(handle) is True


async def test_a_cancelled_batch_of_acks_leaves_its_handles_unsettled(store: Store) -> None:
    queue = store.queue("q")
    handles = [await _claimed(queue), await _claimed(queue)]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await queue.ack_batch(handles)
    assert scope.cancelled_caught
    assert await handles[0].ack() is True
    assert await queue.ack_batch(handles) == 1


async def test_a_settlement_that_raised_leaves_the_handle_unsettled(store: Store) -> None:
    handle = await _claimed(store.queue("q"))
    with pytest.raises(ValueError, match="delay"):
        await handle.retry("again", math.nan)
    with pytest.raises(ValueError, match="delay"):
        await handle.release(math.inf)
    with pytest.raises(ValueError, match="extend"):
        await handle.heartbeat(0)
    assert await handle.ack() is True


async def test_the_ops_of_a_handle_on_a_closed_store_are_closed_settled_or_not(store: Store) -> None:
    queue = store.queue("q")
    settled, open_handle = await _claimed(queue), await _claimed(queue)
    assert await settled.ack()
    await store.aclose()
    for handle in (settled, open_handle):
        for op in _OPS.values():
            with pytest.raises(Closed):
                await op(handle)
        with pytest.raises(Closed):
            await queue.ack_batch([handle])
    with pytest.raises(Closed):
        await queue.ack_batch([])
    with pytest.raises(Closed):
        await queue.claim_batch("w", 0)


# A clock that steps back


async def test_a_clock_that_steps_back_makes_a_row_wait_and_a_claim_valid_again(
    store: Store, clock: ManualClock
) -> None:
    queue = store.queue("q", visibility_timeout=10)
    handle = await _lapsed(queue, clock)
    delayed = await queue.enqueue("x", delay=5, expires=20)
    clock.advance(25)
    assert await queue.statistics() == QueueStatistics(1, 1, 0, 1)
    clock.advance(-36)
    assert await queue.statistics() == QueueStatistics(1, 1, 0, 0)
    assert await queue.claim("w") is None
    assert await queue.next_ready_at() == math.nextafter(clock() + 10, math.inf)
    assert await handle.ack()
    clock.advance(16)
    again = await queue.claim("w")
    assert again is not None
    assert again.job.id == delayed


# Tasks that ask at the same time


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5.0},
        {"run_at": 5.0},
        {"priority": 1},
        {"expires": 5.0},
        {"max_attempts": 1},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_of_enqueues_at_the_same_time_each_keeps_its_own_options(store: Store, options: dict[str, Any]) -> None:
    expected: dict[int, Job | None] = {}
    for wanted in ({}, options):
        job_id = await store.queue("q").enqueue("x", **wanted)
        expected[len(wanted)] = await store.queue("q").get_job(job_id)

    async def enqueue(number: int) -> None:
        wanted: dict[str, Any] = options if number % 2 else {}
        job_id = await store.queue("q").enqueue(number, **wanted)
        job, like = await store.queue("q").get_job(job_id), expected[len(wanted)]
        assert job is not None
        assert like is not None
        assert job == attrs.evolve(like, id=job_id, body=str(number))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(enqueue, number)


async def test_of_enqueues_at_the_same_time_each_goes_to_its_own_queue(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(store.queue(f"q{number % 2}").enqueue, number)
    for number in range(2):
        payloads = {job.payload for job in await store.queue(f"q{number}").jobs()}
        assert payloads == set(range(number, 8, 2))


async def test_of_claims_at_the_same_time_each_has_its_own_worker_and_jobs(store: Store) -> None:
    queue = store.queue("q")
    ids = await queue.enqueue_many(range(18))
    claimed: list[int] = []

    async def claim(number: int) -> None:
        handles = await queue.claim_batch(f"w{number}", 3)
        assert [handle.job.worker_id for handle in handles] == [f"w{number}"] * 3
        claimed.extend(handle.job.id for handle in handles)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(claim, number)
    assert sorted(claimed) == ids


async def test_of_acks_of_one_claim_at_the_same_time_one_lands(store: Store) -> None:
    queue = store.queue("q")
    handles = [await _claimed(queue) for _ in range(3)]
    another = await _claimed(queue)
    landed: list[int] = []

    async def ack() -> None:
        landed.append(await queue.ack_batch([JobHandle(handle._unit, handle._row) for handle in handles]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(another.ack)
        for _ in range(5):
            tasks.start_soon(ack)
    assert sum(landed) == 3
    assert await queue.jobs() == []
