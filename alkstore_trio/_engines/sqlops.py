"""What each op asks of SQLite: a generator that yields statements and is sent their results.

It yields a pair of text and parameters, one mapping or a list of them, and is sent the rows, or how many rows changed
where a statement gives none. It does no I/O, reads no clock, and may be run again from its beginning.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import attrs

from .. import _ops as ops
from .._ops import Op
from .._rules import queue as jobs
from .._rules import ticks
from .._rules.bounds import deadline
from .._rules.queue import BURIED, EXPIRED, READY, JobRow, slot
from .._rules.stamps import PLAIN, overridden
from .._values import QueueStatistics, StreamEvent, StreamStatistics
from . import statements as sql
from .outcomes import enqueued, settled
from .overlay import Staged
from .reads import READS, STATE_NUMBERS, get_offset, job_rows, names, next_ready, page

__all__ = [
    "HANDLERS",
    "Call",
    "Steps",
    "give_back",
    "heard",
    "ids_of",
    "merge",
    "reserve",
    "wake",
]

A = TypeVar("A")

Call = tuple[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]]
Steps = Generator[Call, Any, A]

WAKES_KEPT = 4_096  # rows
PRUNE_EVERY = 1_024  # commits of an origin that woke somebody

_LANES = {READY: 1, EXPIRED: 2, BURIED: 3}  # the rest, 0, waits for an instant


def ids_of(op: Op[Any]) -> int:
    """How many job ids an op needs."""
    if isinstance(op, ops.Enqueue):
        return len(op.bodies)
    return op.times if isinstance(op, ops.Fire) else 0


def reserve(n: int) -> Steps[range]:
    """New job ids, for this store alone."""
    [(last,)] = yield sql.RESERVE, {"name": "job", "n": n}
    return range(last - n + 1, last + 1)


def give_back(unused: range) -> Steps[None]:
    """Reserved ids that nobody was given, if they are still the last."""
    yield sql.GIVE_BACK, {"last": unused.start - 1, "end": unused.stop - 1}


# Rows


def _new(row: JobRow, now: float) -> dict[str, Any]:
    """The parameters of a job that is added."""
    stamps = row.stamps
    return {
        "id": row.id,
        "queue": row.queue,
        "body": row.body,
        "lane": _LANES.get(slot(row, now), 0),
        "priority": row.priority,
        "run_at": row.run_at,
        "expires_at": row.expires_at,
        "max_attempts": stamps.max_attempts,
        "visibility_timeout": stamps.visibility_timeout,
        "base_backoff": stamps.base_backoff,
        "dead_retention": stamps.dead_retention,
        "created_at": row.created_at,
    }


# Queues


def _added(op: ops.Enqueue, ids: Iterable[int], now: float) -> list[dict[str, Any]]:
    return [_new(row, now) for row in enqueued(op, ids, now)]


def _enqueue(op: ops.Enqueue, now: float, ids: Sequence[int]) -> Steps[list[int]]:
    yield sql.ENQUEUE, _added(op, ids, now)
    return list(ids)


def _count_jobs(op: ops.CountJobs, now: float, ids: Sequence[int]) -> Steps[QueueStatistics]:
    [counts] = yield sql.COUNT_JOBS, {"queue": op.queue, "now": now}
    return QueueStatistics(*counts)


def _next_ready_at(op: ops.NextReadyAt, now: float, ids: Sequence[int]) -> Steps[ops.NextReady]:
    where = {"queue": op.queue, "now": now}
    [(ready,)] = yield sql.READY_NOW, where
    if ready:
        return ops.NextReady(now, now)
    due = yield sql.NEXT_DUE, where
    [strays] = yield sql.NEXT_STRAY, where
    return next_ready(now, *(due[0] if due else (None, None)), *strays)


def _queue_names(op: ops.QueueNames, now: float, ids: Sequence[int]) -> Steps[list[str]]:
    return names(sql.QUEUE_NAMES)


def _claim(op: ops.Claim, now: float, ids: Sequence[int]) -> Steps[list[JobRow]]:
    where = {"queue": op.queue, "now": now, "error": jobs.EXHAUSTED_TEXT}
    [(moved,)] = yield sql.MOVED, where
    if moved & 4:
        yield sql.FILE_UNEXPIRED, where
    if moved & 5:
        yield sql.BURY_SPENT, where
        yield sql.FILE_DUE, where
    if moved & 2:
        yield sql.FILE_EXPIRED, where
    rows = yield sql.FIRST_READY, {"queue": op.queue, "now": now, "n": op.n}
    claims = [jobs.claimed(row, op.worker_id, now) for row in job_rows(rows)]
    yield (
        sql.CLAIM,
        [
            {
                "id": row.id,
                "attempts": row.attempts,
                "token": row.token,
                "worker_id": row.worker_id,
                "claim_expires_at": row.claim_expires_at,
            }
            for row in claims
        ],
    )
    return claims


def _ack(op: ops.Ack, now: float, ids: Sequence[int]) -> Steps[int]:
    landed: int = yield (
        sql.ACK,
        [{"id": job_id, "token": token, "queue": op.queue, "now": now} for job_id, token in op.claims],
    )
    return landed


def _settle(op: ops.Fail | ops.Retry, now: float, ids: Sequence[int]) -> Steps[bool]:
    return bool((yield from _settle_claims(op, ((op.id, op.token),), now)))


def _settle_each(op: ops.Release | ops.Heartbeat, now: float, ids: Sequence[int]) -> Steps[list[tuple[int, int]]]:
    return _settle_claims(op, op.claims, now)


def _settle_claims(
    op: ops.Fail | ops.Retry | ops.Release | ops.Heartbeat, claims: Iterable[tuple[int, int]], now: float
) -> Steps[list[tuple[int, int]]]:
    """Change the rows of the claims that are valid; which were."""
    landed, refiled = [], []
    for job_id, token in claims:
        held = yield sql.HELD, {"id": job_id, "queue": op.queue, "token": token, "now": now}
        for row in job_rows(held):
            landed.append((job_id, token))
            refiled.append(_refiled(settled(row, op, now), now))
    yield sql.REFILE, refiled
    return landed


def _refiled(row: JobRow, now: float) -> dict[str, Any]:
    """The parameters of a job that is changed."""
    return {
        "id": row.id,
        "state": STATE_NUMBERS[row.state],
        "lane": _LANES.get(slot(row, now), 0),
        "due": row.run_at if row.claim_expires_at is None else row.claim_expires_at,
        "run_at": row.run_at,
        "attempts": row.attempts,
        "worker_id": row.worker_id,
        "claim_expires_at": row.claim_expires_at,
        "last_error": row.last_error,
        "died_at": row.died_at,
    }


def _sweep(op: ops.Sweep, now: float, ids: Sequence[int]) -> Steps[int]:
    where = {"queue": op.queue, "now": now, "error": jobs.EXPIRED_TEXT}
    deleted: int = yield sql.DELETE_RETAINED, where
    buried: int = yield sql.BURY_EXPIRED, where
    return deleted + buried


def _revive(op: ops.Revive, now: float, ids: Sequence[int]) -> Steps[int]:
    revived: int = yield sql.REVIVE, [{"id": job_id, "queue": op.queue, "now": now} for job_id in op.ids]
    return revived


def _delete(op: ops.Delete, now: float, ids: Sequence[int]) -> Steps[int]:
    deleted: int = yield sql.DELETE, [{"id": job_id, "queue": op.queue, "now": now} for job_id in op.ids]
    return deleted


# Streams


def _publish(op: ops.Publish, now: float, ids: Sequence[int]) -> Steps[list[int]]:
    n = len(op.bodies)
    if not n:
        return []
    [(last,)] = yield sql.NEXT_OFFSETS, {"stream": op.stream, "n": n}
    offsets = list(range(last - n + 1, last + 1))
    alike = {"stream": op.stream, "key": op.key, "created_at": now}
    together = len(sql.BODIES)
    whole = n - n % together
    if whole:
        yield (
            sql.PUBLISH_TOGETHER,
            [
                {**alike, "offset": offsets[at], **dict(zip(sql.BODIES, op.bodies[at : at + together], strict=True))}
                for at in range(0, whole, together)
            ],
        )
    if whole < n:
        yield sql.PUBLISH, [{**alike, "offset": offsets[at], "body": op.bodies[at]} for at in range(whole, n)]
    return offsets


def _save_offset(op: ops.SaveOffset, now: float, ids: Sequence[int]) -> Steps[bool]:
    if op.offset <= 0:  # where everybody begins
        return False
    saved = yield sql.SAVE_OFFSET, {"stream": op.stream, "consumer": op.consumer, "offset": op.offset}
    return bool(saved)


def _read_from_consumer(op: ops.ReadFromConsumer, now: float, ids: Sequence[int]) -> Steps[list[StreamEvent]]:
    offset = yield from get_offset(op)
    return (yield from page(op.stream, offset, op.limit))


def _count_events(op: ops.CountEvents, now: float, ids: Sequence[int]) -> Steps[StreamStatistics]:
    [(first, last)] = yield sql.STREAM_ENDS, {"stream": op.stream}
    consumers = yield sql.CONSUMERS, {"stream": op.stream}
    return StreamStatistics(first, last, dict(consumers))


def _trim(op: ops.Trim, now: float, ids: Sequence[int]) -> Steps[int]:
    trimmed: int = yield sql.TRIM, {"stream": op.stream, "horizon": op.horizon}
    return trimmed


# Notify


def _notify(op: ops.Notify, now: float, ids: Sequence[int]) -> Steps[None]:
    """Nothing is kept but the wake."""
    yield from ()


# Locks


def _try_lock(op: ops.TryLock, now: float, ids: Sequence[int]) -> Steps[int | None]:
    rows = yield sql.GET_LOCK, {"name": op.name}
    for owner, token, expires_at in rows:
        if expires_at > now:
            held: int | None = token if owner == op.owner else None
            return held
    [(last,)] = yield sql.RESERVE, {"name": "token", "n": 1}
    yield (
        sql.TAKE_LOCK,
        {"name": op.name, "owner": op.owner, "token": last, "expires_at": deadline(now, op.ttl)},
    )
    taken: int = last
    return taken


def _renew(op: ops.Renew, now: float, ids: Sequence[int]) -> Steps[bool]:
    hold = {"name": op.name, "token": op.token, "expires_at": deadline(now, op.ttl), "now": now}
    renewed = yield sql.RENEW, hold
    return bool(renewed)


def _unlock(op: ops.Unlock, now: float, ids: Sequence[int]) -> Steps[bool]:
    unlocked = yield sql.UNLOCK, {"name": op.name, "token": op.token}
    return bool(unlocked)


# Schedules


def _add_schedule(op: ops.AddSchedule, now: float, ids: Sequence[int]) -> Steps[None]:
    known = yield sql.GET_SCHEDULE, {"name": op.name}
    if known:
        [(next_at, interval)] = known
        next_at = ticks.kept_boundary(next_at, interval, op.interval, now)
    else:
        next_at = ticks.first_boundary(now, op.interval)
    yield (
        sql.ADD_SCHEDULE,
        {
            "name": op.name,
            "spec": op.spec,
            "interval": op.interval,
            "queue": op.queue,
            "body": op.body,
            "priority": op.options.priority,
            "expires": op.options.expires,
            "max_attempts": op.options.max_attempts,
            "next_at": next_at,
        },
    )


def _remove_schedule(op: ops.RemoveSchedule, now: float, ids: Sequence[int]) -> Steps[bool]:
    removed = yield sql.REMOVE_SCHEDULE, {"name": op.name}
    return bool(removed)


def _due_schedules(op: ops.DueSchedules, now: float, ids: Sequence[int]) -> Steps[ops.Due]:
    due = yield sql.DUE_SCHEDULES, {"now": now}
    [(next_at,)] = yield sql.NEXT_SCHEDULE, {"now": now}
    return ops.Due([ops.DueSchedule(*row) for row in sorted(due, key=itemgetter(1, 0))], next_at, now)


def _fire(op: ops.Fire, now: float, ids: Sequence[int]) -> Steps[ops.Fired | None]:
    lease = yield sql.GET_LOCK, {"name": op.lease}
    if not any(token == op.token and expires_at > now for _, token, expires_at in lease):
        return None
    advanced = yield sql.ADVANCE, {"name": op.name, "seen": op.seen, "next_at": op.next_at}
    if not advanced:
        return ops.Fired(0, "")
    [(queue, body, priority, expires, max_attempts)] = advanced
    stamps = overridden(PLAIN, max_attempts)
    yield from _enqueue(ops.Enqueue(queue, (body,) * op.times, stamps, None, None, priority, expires), op.at, ids)
    return ops.Fired(op.times, queue)


# Transactions


def merge(record: Sequence[Staged]) -> Steps[None]:
    """Make staged effects stand."""
    added: list[dict[str, Any]] = []
    for effect in record:
        match effect.write:
            case ops.Enqueue() as write:
                added += _added(write, effect.answer, effect.now)
            case ops.SaveOffset() as write:
                yield from _save_offset(write, effect.now, ())
            case ops.Publish() | ops.Notify():  # the one is never staged, of the other only the wake is kept
                pass
    if added:
        yield sql.ENQUEUE, added


# Wakes


def wake(channels: Iterable[str], origin: int, seq: int, now: float) -> Steps[None]:
    """Tell the other stores; now and then, and at the first of an origin, forget what is too much."""
    yield (
        sql.ADD_WAKE,
        [{"channel": channel, "origin": origin, "seq": seq, "now": now} for channel in channels],
    )
    if seq % PRUNE_EVERY == 1:
        yield from _prune()


def _prune() -> Steps[None]:
    """Forget the oldest wakes, and note up to when."""
    superfluous = yield sql.SUPERFLUOUS_WAKES, {"kept": WAKES_KEPT}
    for (until,) in superfluous:
        yield sql.PRUNE_WAKES, {"until": until}
        yield sql.PRUNE, {"until": math.ceil(until)}


@attrs.frozen
class Heard:
    """What the other stores have woken so far."""

    wakes: list[tuple[str, int, int]]  # channel, origin, and the number that it has there
    prunings: int
    pruned_until: float  # unix time


def heard(origin: int) -> Steps[Heard]:
    """All that is kept of wakes but one's own."""
    wakes = yield sql.WAKES, {"origin": origin}
    [(prunings, pruned_until)] = yield sql.PRUNED, {}
    return Heard(wakes, prunings, pruned_until)


def _timeless(read: Callable[[Any], Steps[Any]]) -> Callable[[Any, float, Sequence[int]], Steps[Any]]:
    return lambda op, now, ids: read(op)


HANDLERS: dict[type[Op[Any]], Callable[[Any, float, Sequence[int]], Steps[Any]]] = {
    **{kind: _timeless(read) for kind, read in READS.items()},
    ops.Enqueue: _enqueue,
    ops.Publish: _publish,
    ops.Notify: _notify,
    ops.SaveOffset: _save_offset,
    ops.ReadFromConsumer: _read_from_consumer,
    ops.QueueNames: _queue_names,
    ops.CountJobs: _count_jobs,
    ops.NextReadyAt: _next_ready_at,
    ops.CountEvents: _count_events,
    ops.DueSchedules: _due_schedules,
    ops.Claim: _claim,
    ops.Ack: _ack,
    ops.Fail: _settle,
    ops.Retry: _settle,
    ops.Release: _settle_each,
    ops.Heartbeat: _settle_each,
    ops.Sweep: _sweep,
    ops.Revive: _revive,
    ops.Delete: _delete,
    ops.Trim: _trim,
    ops.TryLock: _try_lock,
    ops.Renew: _renew,
    ops.Unlock: _unlock,
    ops.AddSchedule: _add_schedule,
    ops.RemoveSchedule: _remove_schedule,
    ops.Fire: _fire,
}
